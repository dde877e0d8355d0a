"""Tensors and modules that leafwise refuses, with the reason."""

import sys
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.vetting import Vetting
from leafwise.homes.torch.checkpoints.state import differs, has_hooks, writes_its_own
from leafwise.homes.torch.checkpoints.unsupported_tensors import may_be_marked, not_understood
from leafwise.homes.torch.parallel import fsdp1

_PACKED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
_OFFLOADED = (
    "accelerate has offloaded its values, and restores them for each forward; remove its hooks with "
    "accelerate.hooks.remove_hook_from_module(model, recurse=True), or load before you dispatch the model"
)
_ON_DISK = (
    "diffusers has offloaded its values to disk, and reads them for each forward; load and save before "
    "apply_group_offloading"
)
_MERGED = (
    "its adapter is merged into its weights, where it would count twice after a load; call unmerge_adapter() first "
    "(unfuse_lora() in diffusers, train() in loralib), or merge_and_unload() to keep the merged weights alone"
)
_PLAIN = {torch.Tensor, nn.Parameter, nn.Buffer}


class TorchVetting(Vetting):
    def may_be_foreign(self, values: list[Any]) -> bool:
        """Whether any of these may have values that leafwise cannot read; plain tensors need no check."""
        inside_transform = torch._C._functorch.peek_interpreter_stack() is not None
        return may_be_marked() or inside_transform or bool(set(map(type, values)) - _PLAIN)

    def not_understood(self, values: list[torch.Tensor]) -> dict[int, str]:
        reasons = ((number, not_understood(value)) for number, value in enumerate(values))
        return {number: reason for number, reason in reasons if reason}

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        """Modules with values outside of their parameters and buffers: the reason, by number."""
        classes = set(map(type, objects))
        packed = {cls for cls in classes if cls.__module__.startswith(_PACKED)}
        reasons = {}
        if packed:
            reasons = {
                number: f"{type(obj).__name__} keeps its weights packed, outside of the tree; use the model from "
                "before it was quantized"
                for number, obj in enumerate(objects)
                if type(obj) in packed
            }
        reasons |= self.home.capability(Distributing).gathered(objects)
        if "torch.distributed.fsdp" in sys.modules:
            reasons |= fsdp1.without_unit(objects)
        if "diffusers" in sys.modules:
            reasons |= {number: _ON_DISK for number, obj in enumerate(objects) if _is_on_disk(obj)}
        if "accelerate" in sys.modules:
            reasons |= {number: _OFFLOADED for number, obj in enumerate(objects) if _is_offloaded(obj)}
        return reasons

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        """Modules whose state dict differs from their values: the difference, by number."""
        classes = {cls for cls in set(map(type, objects)) if issubclass(cls, nn.Module)}
        own, adapted = set(filter(writes_its_own, classes)), set(filter(_merges_adapters, classes))
        reasons = {}
        for number, module in enumerate(objects):
            if type(module) in own or (isinstance(module, nn.Module) and has_hooks(module, "_state_dict_hooks")):
                if reason := differs(module):
                    reasons[number] = reason
            if type(module) in adapted and getattr(module, "merged", False):
                reasons[number] = _MERGED
        return reasons


def _merges_adapters(cls: type) -> bool:
    """Whether layers of a class can add an adapter to their weights, which stay beside it."""
    return any(base.__module__.partition(".")[0] in ("peft", "loralib") for base in cls.__mro__)


def _is_on_disk(module: Any) -> bool:
    registry = vars(module).get("_diffusers_hook") if isinstance(module, nn.Module) else None
    hook = getattr(registry, "hooks", {}).get("group_offloading")
    return getattr(getattr(hook, "group", None), "offload_to_disk_path", None) is not None


def _is_offloaded(module: Any) -> bool:
    hook = vars(module).get("_hf_hook") if isinstance(module, nn.Module) else None
    hooks = () if hook is None else (hook, *getattr(hook, "hooks", ()))
    return any(getattr(part, "offload", False) for part in hooks)
