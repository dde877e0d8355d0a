"""Initial values of tensors: where they go, and when a lazy layer can take them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leafwise.core.home import Draw
from leafwise.homes.torch_filling import cannot_write, holds_nothing, tensor_over


def is_stock(cls: type) -> bool:
    """Whether the layer begins with what PyTorch says: it resets itself by a method of PyTorch's own."""
    for base in cls.__mro__:
        if "reset_parameters" in vars(base) or "_reset_parameters" in vars(base):
            return (base.__module__ + ".").startswith("torch.nn.")
    return False


def cannot_fill(value: torch.Tensor) -> str:
    if reason := holds_nothing(value):
        return reason
    return "" if _is_sharded(value) else cannot_write(value)


def _is_sharded(value: torch.Tensor) -> bool:
    return hasattr(value, "device_mesh") and hasattr(value, "to_local")


def local_parts(value: torch.Tensor) -> list[tuple[torch.Tensor, tuple[int, ...] | None]]:
    """What of a tensor is in this process, and where in the whole it begins."""
    if not _is_sharded(value):
        return [(value, None)]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = value.detach()
    _, starts = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return [(sharded.to_local(), tuple(starts))]


def fill(value: torch.Tensor, start: int, rows: Any) -> None:
    """Writes rows of a tensor, cast to its dtype."""
    _put(value, start, tensor_over(rows if rows.flags.writeable else rows.copy()))  # tensors know no read-only memory


def _put(value: torch.Tensor, start: int, rows: torch.Tensor) -> None:
    with torch.no_grad():
        plain = value.detach()
        plain = plain if plain.dim() else plain.view(1)
        plain[start : start + len(rows)].copy_(rows)


def draw(value: torch.Tensor, start: int, words: Any, draw: Draw) -> bool:
    """Makes numbers of words, in 64 bits and on the device of the tensor; says no for tensors of 64 bits, of which the
    last bits would depend on the device."""
    if value.dtype in (torch.float64, torch.complex128) or value.device.type == "mps":
        return False
    x = torch.from_numpy(words).to(value.device).double().add_(0.5).mul_(2.0**-31)
    if draw.normal:
        x.mul_(draw.narrow).erfinv_().mul_(math.sqrt(2))
    _put(value, start, x.mul_(draw.scale).add_(draw.shift))
    return True


_INITIALIZE = "initialize_parameters"  # what a lazy layer calls when it sees its first input


class WhenShaped:
    """In the place of the method by which one lazy layer gets its shapes: calls it, and then what waits for shapes. Not
    if something else, a load, gave it shapes before. A class, so that it is copied and pickled with the layer."""

    def __init__(self, module: nn.Module, then: Callable[[Any], None]) -> None:
        self.module, self.then = module, then

    def __call__(self, *inputs: Any, **named: Any) -> None:
        module: Any = self.module
        waits = module.has_uninitialized_params()
        getattr(type(module), _INITIALIZE)(module, *inputs, **named)
        module.__dict__.pop(_INITIALIZE, None)
        if waits:
            self.then(module)


def when_shaped(owner: nn.Module, then: Callable[[Any], None]) -> None:
    owner.__dict__[_INITIALIZE] = WhenShaped(owner, then)
