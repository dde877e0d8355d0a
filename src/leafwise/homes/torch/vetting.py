"""Tensors and modules that leafwise refuses by name."""

import sys
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.vetting import Vetting
from leafwise.homes.torch.foreign import DTENSOR, may_be_marked, not_understood
from leafwise.homes.torch.state import differs, has_hooks, writes_its_own

_PACKED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
_OFFLOADED = (
    "accelerate has offloaded its values, and puts them back for each forward; take the hooks off with "
    "accelerate.hooks.remove_hook_from_module(model, recurse=True), or load before you dispatch the model"
)
_FSDP2 = f"FSDP2 shards it, also while its parameters are whole for a forward: {DTENSOR}"
_ON_DISK = (
    "diffusers has offloaded its values to a disk, and reads them for each forward; load and save before "
    "apply_group_offloading"
)
_PLAIN = {torch.Tensor, nn.Parameter, nn.Buffer}


class TorchVetting(Vetting):
    def may_be_foreign(self, values: list[Any]) -> bool:
        """Whether any of these may be something else than it seems; plain tensors need no further look."""
        inside_transform = torch._C._functorch.peek_interpreter_stack() is not None
        return may_be_marked() or inside_transform or bool(set(map(type, values)) - _PLAIN)

    def not_understood(self, values: list[torch.Tensor]) -> dict[int, str]:
        reasons = ((number, not_understood(value)) for number, value in enumerate(values))
        return {number: reason for number, reason in reasons if reason}

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        """Modules that have what is not in their parameters and buffers: by their number, what that is."""
        packed = {kind for kind in set(map(type, objects)) if kind.__module__.startswith(_PACKED)}
        found = {}
        if packed:
            found = {
                number: f"{type(one).__name__} keeps its weights packed, outside of the tree; take the model before it"
                " was quantised"
                for number, one in enumerate(objects)
                if type(one) in packed
            }
        sharded = {
            kind for kind in set(map(type, objects)) if any(base.__name__ == "FSDPModule" for base in kind.__mro__)
        }
        if sharded:
            found |= {number: _FSDP2 for number, one in enumerate(objects) if type(one) in sharded}
        if "diffusers" in sys.modules:
            found |= {number: _ON_DISK for number, one in enumerate(objects) if _is_on_disk(one)}
        if "accelerate" in sys.modules:
            found |= {number: _OFFLOADED for number, one in enumerate(objects) if _is_offloaded(one)}
        return found

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        """Modules whose state dict does not say what they hold: by their number, what it says otherwise."""
        own = {kind for kind in set(map(type, objects)) if issubclass(kind, nn.Module) and writes_its_own(kind)}
        found = {}
        for number, module in enumerate(objects):
            if type(module) in own or (isinstance(module, nn.Module) and has_hooks(module, "_state_dict_hooks")):
                if reason := differs(module):
                    found[number] = reason
        return found


def _is_on_disk(module: Any) -> bool:
    registry = vars(module).get("_diffusers_hook") if isinstance(module, nn.Module) else None
    hook = getattr(registry, "hooks", {}).get("group_offloading")
    return getattr(getattr(hook, "group", None), "offload_to_disk_path", None) is not None


def _is_offloaded(module: Any) -> bool:
    hook = vars(module).get("_hf_hook") if isinstance(module, nn.Module) else None
    return hook is not None and any(getattr(one, "offload", False) for one in (hook, *getattr(hook, "hooks", ())))
