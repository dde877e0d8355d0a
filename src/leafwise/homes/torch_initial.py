"""Initial values of tensors: where they go, and when a lazy layer can take them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leafwise.core.home import Draw
from leafwise.homes.torch_filling import cannot_write, holds_nothing, is_lazy


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


def fill(value: torch.Tensor, order: tuple[int, ...] | None, start: int, rows: Any) -> None:
    """Writes rows of a tensor, its axes taken in this order; cast to its dtype."""
    # Tensors know no read-only memory.
    _put(value, order, start, torch.from_numpy(rows if rows.flags.writeable else rows.copy()))


def _put(value: torch.Tensor, order: tuple[int, ...] | None, start: int, rows: torch.Tensor) -> None:
    with torch.no_grad():
        seen = value.detach() if order is None else value.detach().permute(order)
        seen = seen if seen.dim() else seen.view(1)
        seen[start : start + len(rows)].copy_(rows)


def draw(value: torch.Tensor, order: tuple[int, ...] | None, start: int, words: Any, draw: Draw) -> bool:
    """Makes numbers of words, in 64 bits and on the device of the tensor; says no for tensors of 64 bits, of which the
    last bits would depend on the device."""
    if value.dtype in (torch.float64, torch.complex128) or value.device.type == "mps":
        return False
    x = torch.from_numpy(words).to(value.device).double().add_(0.5).mul_(2.0**-31)
    if draw.normal:
        x.mul_(draw.narrow).erfinv_().mul_(math.sqrt(2))
    _put(value, order, start, x.mul_(draw.scale).add_(draw.shift))
    return True


class _Waiting:
    """Fills a lazy layer after its first forward has given it shapes; not if something else gave it values before."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.then = then
        self.was_lazy = False

    def before(self, module: nn.Module, inputs: Any) -> None:
        """Runs first of all that comes before the forward, while shapes are not known."""
        leaves = [*module._parameters.values(), *module._buffers.values()]
        self.was_lazy = any(leaf is not None and is_lazy(leaf) for leaf in leaves)

    def after(self, module: nn.Module, inputs: Any) -> None:
        """Runs last, when shapes are known."""
        for key, hook in list(module._forward_pre_hooks.items()):
            if getattr(hook, "__self__", None) is self:
                del module._forward_pre_hooks[key]
        if self.was_lazy:
            self.then(module)


def when_shaped(owner: nn.Module, then: Callable[[Any], None]) -> None:
    for key, hook in list(owner._forward_pre_hooks.items()):
        if isinstance(getattr(hook, "__self__", None), _Waiting):
            del owner._forward_pre_hooks[key]  # what was to be filled in before
    waiting = _Waiting(then)
    owner.register_forward_pre_hook(waiting.before, prepend=True)
    owner.register_forward_pre_hook(waiting.after)
