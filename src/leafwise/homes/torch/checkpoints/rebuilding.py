"""New tensors for those without memory, and values that modules save besides tensors."""

from math import prod
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.sharding import Distributing
from leafwise.errors import Unsupported
from leafwise.homes.torch.checkpoints.state import EXTRA, has_extra_state, load_own_part, writes_its_own
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded, not_understood
from leafwise.homes.torch.parallel.sharding import empty_like_sharded
from leafwise.homes.torch.ties.keepers import bonds_at
from leafwise.homes.torch.values.tensor_values import same_memory


class TorchRebuilding(Rebuilding):
    def allocate(self, value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor with memory to replace one without; on PyTorch's current default device. For a DTensor, memory for
        its part in this process, on the device of its mesh."""
        sharded = is_sharded(value)
        reason = self.home.capability(Distributing).cannot_use_parts(value) if sharded else not_understood(value)
        if reason:
            raise Unsupported("torch", "allocate a new tensor", reason)
        try:
            made = empty_like_sharded(value) if sharded else torch.empty(shape, dtype=value.dtype)
        except RuntimeError as error:  # PyTorch also has errors without a class of their own for too little memory
            needed = prod(shape) * value.dtype.itemsize
            raise Unsupported("torch", "allocate a new tensor", _too_little_memory(needed, error)) from error
        if isinstance(value, nn.Parameter):
            made = nn.Parameter(made, requires_grad=value.requires_grad)
            made.__dict__.update(value.__dict__)  # attributes that other libraries set on it
        return made

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        own: dict[str, Any] = {}
        writes = writes_its_own(type(owner))
        for name, value in changes.items():
            if name == EXTRA:
                owner.set_extra_state(value)
            elif writes and not any(name in held for held in (owner._parameters, owner._buffers, owner._modules)):
                own[name] = value
            elif isinstance(value, torch.Tensor):
                _put(owner, name, value)
        if own:
            load_own_part(owner, {**owner.state_dict(), **own})
        return owner

    def recompute(self, places: list[tuple[tuple[Any, ...], list[str]]]) -> list[dict[str, Any]]:
        from leafwise.homes.torch.checkpoints.recompute import recompute  # importing torch.overrides takes a second

        return [*recompute(places)]

    def shows_copies(self, obj: Any) -> bool:
        cls: Any = type(obj)
        return has_extra_state(cls) or writes_its_own(cls)


def _too_little_memory(needed: int, error: RuntimeError) -> str:
    device = torch.empty(0).device  # the current default device
    if device.type == "cuda" and isinstance(error, torch.OutOfMemoryError):
        free, _ = torch.cuda.mem_get_info(device)
        # What PyTorch has freed, it uses again before it asks the device for more.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return f"{device} is out of memory: {needed:,} bytes are needed, and {free:,} are free"
    return f"{needed:,} bytes are needed on {device}: {str(error).strip().partition(chr(10))[0].rstrip('.')}"


def _put(owner: nn.Module, name: str, new: torch.Tensor) -> None:
    """Replaces a tensor that had no memory, under this name and all names that are kept tied to it."""
    held: Any = owner._parameters.get(name)
    if held is None:
        held = owner._buffers.get(name)
    if held is new or (type(held) is nn.Parameter and not new.is_meta and same_memory(held, new)):
        return  # the second case: a lazy parameter that has got its values here under another name
    if held is not None and nn.parameter.is_lazy(held):
        held.materialize(new.shape, device=new.device, dtype=new.dtype)
        held.data = new.detach()
        return
    for bond, number in bonds_at(owner, name):
        if number == bond.source:
            bond.replace_source(new)
            return
    setattr(owner, name, new)
