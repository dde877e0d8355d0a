"""Writing values into tensors of a live model."""

from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.loading import Landing, Loading, Order
from leafwise.core.home import Memory, Spec
from leafwise.homes.torch.checkpoints.state import has_hooks, load_own_part, reads_its_own
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded, may_be_marked, not_understood
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
    if 0 in value.stride() and is_expanded(value):
        return "it is expanded: several of its elements share memory; give each its own with .contiguous()"
    return ""


def _cannot_write(value: torch.Tensor) -> str:
    if isinstance(value, FlatShard) and (reason := value.owner.cannot_load()):
        return reason
    held = local_tensor(value) if is_sharded(value) else value
    return not_understood(held) or deepspeed_zero.cannot_load_whole(held) or _is_not_writable(held)


def _writable_bytes(value: torch.Tensor) -> memoryview | None:
    if value.device.type != "cpu" or cannot_read(value) or not value.is_contiguous():
        return None
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        return None
    if not plain.numel():
        return memoryview(bytearray())
    # A tensor with one element is contiguous, whatever its strides, but `view` checks them.
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def _location(value: torch.Tensor, storage: tuple[Any, ...], memory: Memory | None) -> tuple[object, Memory]:
    assert memory is not None
    marks = " conj" * value.is_conj() + " neg" * value.is_neg()
    memory = memory._replace(dtype=dtype_name(value.dtype) + marks)
    # The CPU is one address space, and all CUDA devices together are another. Other devices have no addresses.
    kind = value.device.type
    if kind in ("cpu", "cuda"):
        return kind, memory._replace(offset=memory.offset + storage[1])
    return storage, memory


class TorchLoading(Loading):
    def cannot_write(self, values: list[torch.Tensor]) -> list[str]:
        if any(value.device.type == "cuda" for value in values):
            check_not_capturing("load")
        marked = may_be_marked()
        return [
            _is_not_writable(value)
            if not marked and type(value) is nn.Parameter and not value.__dict__
            else _cannot_write(value)
            for value in values
        ]

    def writable_bytes(self, values: list[torch.Tensor]) -> list[memoryview | None]:
        return list(map(_writable_bytes, values))

    def landings(
        self, values: list[torch.Tensor], stored: list[tuple[Spec, Order]], only_check: bool
    ) -> list[Landing | None]:
        if not any(value.device.type in landing.LANDING_DEVICES for value in values):
            return [None] * len(values)
        return [
            landing.landing_of(value, spec, order, only_check) if landing.has_landings(value) else None
            for value, (spec, order) in zip(values, stored, strict=True)
        ]

    def locations(self, values: list[torch.Tensor]) -> list[tuple[object, Memory] | None]:
        storages = self.home.storages(values)
        return [
            _location(value, storage, self.home.memory(value)) if isinstance(storage, tuple) else None
            for value, storage in zip(values, storages, strict=True)
        ]

    def mark_written(self, values: list[torch.Tensor]) -> None:
        """Notifies autograd that tensors were written to. It notices only writes by PyTorch itself."""
        changed = [value for value in values if not value.is_inference()]
        torch.autograd.graph.increment_version(changed)
        is_zero = deepspeed_zero.is_imported()
        for value in values:
            if isinstance(value, FlatShard):
                value.owner.after_load()
            elif is_zero:
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
