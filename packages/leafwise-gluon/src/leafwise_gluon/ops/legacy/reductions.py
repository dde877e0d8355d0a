"""Reductions of nd arrays. A reduction of all axes gives the shape (1,), never ()."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops import reductions
from leafwise_gluon.ops.legacy.gradients import product, with_zero_gradient
from leafwise_gluon.ops.legacy.shaping import as_tuple

Axis = Any  # None, an integer, or several


def axes_of(name: str, data: torch.Tensor, axis: Axis, exclude: Any = False) -> tuple[int, ...]:
    """The axes as numbers from 0; every axis for None and (); with `exclude`, all the others."""
    numbers = () if axis is None else as_tuple(axis)
    for number in numbers:
        if not isinstance(number, int) or not -data.ndim <= number < data.ndim:
            raise MXNetError(f"nd.{name}: axis {number} is out of bounds for array of dimension {data.ndim}")
    axes = tuple(sorted({number % data.ndim for number in numbers}))
    if exclude:
        return tuple(number for number in range(data.ndim) if number not in axes)
    return axes or tuple(range(data.ndim))


def without(result: torch.Tensor, axes: tuple[int, ...], keepdims: Any) -> torch.Tensor:
    """Drops the axes of size one that a reduction with `keepdim=True` left; the shape () becomes (1,)."""
    if keepdims:
        return result
    return result.reshape([size for axis, size in enumerate(result.shape) if axis not in axes] or [1])


def _reduction(name: str, compute: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]) -> Any:
    def function(data: torch.Tensor, axis: Axis = None, keepdims: Any = False, exclude: Any = False) -> torch.Tensor:
        if data.dtype == torch.bool:
            raise refusal(f"nd.{name} of bool", "use .astype('float32') first")
        if not data.numel():
            raise refusal(f"nd.{name} of an empty array", "check x.size first")
        axes = axes_of(name, data, axis, exclude)
        return without(compute(data, axes).to(data.dtype), axes, keepdims) if axes else data.clone()

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` over some axes, or over all of them, in the dtype of the array."
    return function


def _mean(data: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    if data.dtype.is_floating_point:
        return torch.mean(data, axes, keepdim=True)
    count = torch.ones_like(data).sum(axes, keepdim=True)
    return torch.div(torch.sum(data, axes, keepdim=True, dtype=data.dtype), count, rounding_mode="trunc")


def _extremum(name: str) -> Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]:
    return lambda data, axes: reductions.extremum(name, data, axes, keepdims=True)


sum = _reduction("sum", lambda data, axes: torch.sum(data, axes, keepdim=True, dtype=data.dtype))
mean = _reduction("mean", _mean)
prod = _reduction("prod", product)
max = _reduction("max", _extremum("max"))
min = _reduction("min", _extremum("min"))
nansum = _reduction("nansum", lambda data, axes: torch.nansum(data, axes, keepdim=True))
nanprod = _reduction("nanprod", lambda data, axes: product(torch.where(data.isnan(), 1.0, data), axes))


def norm(
    data: torch.Tensor, ord: int = 2, axis: Axis = None, out_dtype: Any = None, keepdims: Any = False
) -> torch.Tensor:
    """The sum of absolute values (`ord` 1) or the root of the sum of squares (`ord` 2)."""
    if ord not in (1, 2):
        raise MXNetError(f"nd.norm: ord must be 1 or 2, not {ord}")
    if not data.dtype.is_floating_point:
        raise refusal("nd.norm of integers", "use .astype('float32') first")
    axes = axes_of("norm", data, axis)
    if out_dtype is not None and torch_dtype(out_dtype) != data.dtype:
        raise MXNetError(f"nd.norm: out_dtype must be the dtype of the array; use .astype({out_dtype!r}) on the result")
    return without(torch.linalg.vector_norm(data, ord, axes, keepdim=True), axes, keepdims)


def _position(name: str) -> Any:
    find = torch.argmax if name == "argmax" else torch.argmin  # both find a NaN

    def function(data: torch.Tensor, axis: int | None = None, keepdims: Any = False) -> torch.Tensor:
        axes = axes_of(name, data, axis)
        ones = [1] * data.ndim
        positions = find(data.reshape(-1)).reshape(ones) if axis is None else find(data, axis, keepdim=True)
        # Positions have the dtype of the array: those in float32 are exact up to 2**24.
        return with_zero_gradient(without(positions, axes, keepdims).to(data.dtype), data)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` along an axis, or of the flattened array, in the dtype of the array."
    return function


argmax, argmin = _position("argmax"), _position("argmin")


def argmax_channel(data: torch.Tensor) -> torch.Tensor:
    """`argmax` along axis 1; it cannot be differentiated."""
    return argmax(data.detach(), axis=1)  # type: ignore[no-any-return]


def moments(data: torch.Tensor, axes: Axis = None, keepdims: Any = False) -> list[torch.Tensor]:
    """The mean and the variance."""
    numbers = axes_of("moments", data, axes)
    mean = torch.mean(data, numbers, keepdim=True)
    variance = torch.mean((data - mean) ** 2, numbers, keepdim=True)
    return [without(part, numbers, keepdims) for part in (mean, variance)]


def cumsum(a: torch.Tensor, axis: int | None = None, dtype: Any = None) -> torch.Tensor:
    return reductions.cumsum(a, axis, None if dtype is None else torch_dtype(dtype))


def L2Normalization(data: torch.Tensor, eps: float = 1e-10, mode: str = "instance") -> torch.Tensor:  # noqa: N802
    """Divides by the norm: of each example ('instance'), over channels ('channel') or over positions ('spatial')."""
    modes = {"instance": tuple(range(1, data.ndim)), "channel": (1,), "spatial": tuple(range(2, data.ndim))}
    if mode not in modes:
        raise MXNetError(f"nd.L2Normalization: mode must be 'instance', 'channel' or 'spatial', not {mode!r}")
    squares = data * data
    sums = torch.sum(squares, modes[mode], keepdim=True) if modes[mode] else squares  # no axes: each number by itself
    return data / torch.sqrt(sums + eps)


def softmax_cross_entropy(data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The sum of the cross entropies of a batch of logits, as an array of shape (1,)."""
    return torch.nn.functional.cross_entropy(data, label.long(), reduction="sum").reshape(1)
