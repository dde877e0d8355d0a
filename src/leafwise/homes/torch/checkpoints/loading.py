"""Writing values into tensors of a live model."""

from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.loading import Loading
from leafwise.core.home import Memory, Spec
from leafwise.homes.torch.checkpoints.state import has_hooks, load_own_part, reads_its_own
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded, not_understood
from leafwise.homes.torch.gpu import landing
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.parallel import deepspeed_zero
from leafwise.homes.torch.parallel.flat_shards import FlatShard
from leafwise.homes.torch.parallel.sharding import local_tensor
from leafwise.homes.torch.tensors import cannot_read, dtype_name, is_expanded


def cannot_change(value: torch.Tensor) -> str:
    """Why values cannot be written into a tensor; empty if they can. Whether a graph is being captured is not checked
    here, because that takes time, and need not be done for each tensor."""
    return not_understood(value) or deepspeed_zero.cannot_change(value) or _is_not_writable(value)


def _is_not_writable(value: torch.Tensor) -> str:
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode, and can be written only there; load inside torch.inference_mode()"
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return "it is sparse, nested or quantized, and values cannot be written into it"
    if is_expanded(value):
        return "it is expanded: several of its elements share memory; give each its own with .contiguous()"
    return ""


class TorchLoading(Loading):
    def cannot_write(self, value: torch.Tensor) -> str:
        """Why values cannot be written into a tensor; empty if they can."""
        if value.device.type == "cuda":
            check_not_capturing("load")
        if isinstance(value, FlatShard) and (reason := value.owner.cannot_load()):
            return reason
        held = local_tensor(value) if is_sharded(value) else value
        return not_understood(held) or deepspeed_zero.cannot_load_whole(held) or _is_not_writable(held)

    def writable_bytes(self, value: torch.Tensor) -> memoryview | None:
        """The memory of a tensor as writable bytes in C order; None if it is in another order or on a device."""
        if cannot_read(value) or value.device.type != "cpu" or not value.is_contiguous():
            return None
        plain = value.detach()
        if plain.is_conj() or plain.is_neg():
            return None
        if not plain.numel():
            return memoryview(bytearray())
        # A tensor with one element is contiguous, whatever its strides, but `view` checks them.
        flat = plain.as_strided((plain.numel(),), (1,))
        return flat.view(torch.uint8).numpy().data

    def has_landings(self, value: torch.Tensor) -> bool:
        return landing.has_landings(value)

    def landing(
        self, value: torch.Tensor, stored: Spec, order: tuple[int, ...] | None, only_check: bool
    ) -> landing.TorchLanding | None:
        return landing.landing_of(value, stored, order, only_check)

    def location(self, value: torch.Tensor) -> tuple[object, Memory] | None:
        (storage,) = self.home.storages([value])
        if not isinstance(storage, tuple):
            return None
        marks = " conj" * value.is_conj() + " neg" * value.is_neg()
        memory = self.home.memory(value)
        assert memory is not None
        memory = memory._replace(dtype=dtype_name(value.dtype) + marks)
        # The CPU is one address space, and all CUDA devices together are another. Other devices have no addresses.
        kind = value.device.type
        if kind in ("cpu", "cuda"):
            return kind, memory._replace(offset=memory.offset + storage[1])
        return storage, memory

    def mark_written(self, values: list[torch.Tensor]) -> None:
        """Notifies autograd that tensors were written to. It notices only writes by PyTorch itself."""
        changed = [value for value in values if not value.is_inference()]
        torch.autograd.graph.increment_version(changed)
        for value in values:
            if isinstance(value, FlatShard):
                value.owner.after_load()
            else:
                deepspeed_zero.update_master(value)

    def after_load(self, objects: list[Any]) -> None:
        # Modules with their own way to load state dicts load their new values that way.
        own = {cls for cls in set(map(type, objects)) if issubclass(cls, nn.Module) and self.reads_its_own(cls)}
        hooks = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
        for module in objects:
            if type(module) in own or (isinstance(module, nn.Module) and has_hooks(module, *hooks)):
                load_own_part(module, module.state_dict())

    def reads_its_own(self, cls: type) -> bool:
        """Whether modules of a class have a method that must be called after their values were loaded."""
        return reads_its_own(cls)
