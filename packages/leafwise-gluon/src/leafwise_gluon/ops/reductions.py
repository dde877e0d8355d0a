"""Reductions, sorting and searching with MXNet's dtypes, over plain tensors."""

from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1

Axis = int | tuple[int, ...] | list[int] | None


def _axes(name: str, tensor: torch.Tensor, axis: Axis) -> tuple[int, ...]:
    """The axes as numbers from 0; every axis for None."""
    if axis is None:
        return tuple(range(tensor.ndim))
    numbers = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise MXNetError(f"ndarray.{name}: an axis must be an integer, not {number!r}")
        if not -tensor.ndim <= number < tensor.ndim:
            raise MXNetError(f"ndarray.{name}: axis {number} is out of bounds for array of dimension {tensor.ndim}")
    return tuple(number % tensor.ndim for number in numbers)


def _reduced(result: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    """Drops the axes of size one that a reduction with `keepdim=True` left."""
    if keepdims:
        return result
    return result.reshape([size for axis, size in enumerate(result.shape) if axis not in axes])


def sum(tensor: torch.Tensor, axis: Axis, dtype: torch.dtype | None, keepdims: bool) -> torch.Tensor:
    """Integers keep their dtype, and overflow as they do in MXNet; bool is counted in int64."""
    axes = _axes("sum", tensor, axis)
    dtype = dtype or (torch.int64 if tensor.dtype == torch.bool else tensor.dtype)
    if not dtype.is_floating_point:
        tensor = tensor.detach()
    if not axes:
        return tensor.to(dtype, copy=True)
    result = torch.sum(tensor, axes, keepdim=True, dtype=_computed_in(tensor, dtype)).to(dtype)
    return _reduced(result, axes, keepdims)


def _computed_in(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a sum or product is computed: floats are truncated to integers only in the end."""
    return torch.float64 if tensor.dtype.is_floating_point and not dtype.is_floating_point else dtype


def prod(tensor: torch.Tensor, axis: Axis, dtype: torch.dtype | None, keepdims: bool) -> torch.Tensor:
    """The product; like `sum`, it keeps the dtype of integers."""
    axes = _axes("prod", tensor, axis)
    dtype = dtype or (torch.int64 if tensor.dtype == torch.bool else tensor.dtype)
    if tensor.requires_grad and bool((tensor == 0).any()):
        raise refusal("the gradient of np.prod of zeros, which is NaN in MXNet", "mask the zeros")
    if not tensor.numel() and is_v1():
        raise refusal("np.prod of an empty array, which is 0 in MXNet 1.x", "check x.size first")
    result = tensor.to(_computed_in(tensor, dtype), copy=True)
    for number in axes:
        result = torch.prod(result, number, keepdim=True, dtype=result.dtype)
    return _reduced(result.to(dtype), axes, keepdims)


def trace(tensor: torch.Tensor, offset: int, axis1: int, axis2: int) -> torch.Tensor:
    if tensor.ndim < 2:
        raise MXNetError(f"np.trace needs an array of at least 2 dimensions, not {tensor.ndim}")
    return torch.diagonal(tensor, offset, axis1, axis2).sum(-1, dtype=tensor.dtype)


def mean(tensor: torch.Tensor, axis: Axis, dtype: torch.dtype | None, keepdims: bool) -> torch.Tensor:
    """The mean in float32, whatever the array's dtype, unless `dtype` is given; in MXNet 1.x, floats keep theirs."""
    axes = _axes("mean", tensor, axis)
    if not tensor.numel() and is_v1():
        raise refusal("np.mean of an empty array, which is 0 in MXNet 1.x", "check x.size first")
    dtype = dtype or (tensor.dtype if is_v1() and tensor.dtype.is_floating_point else torch.float32)
    if not dtype.is_floating_point:
        raise refusal("ndarray.mean with an integer dtype", "leave out dtype, and use .astype() on the result")
    wide = tensor.to(torch.promote_types(tensor.dtype, dtype))
    result = torch.mean(wide, axes, keepdim=True) if axes else wide.clone()
    return _reduced(result, axes, keepdims).to(dtype)


def extremum(name: str, tensor: torch.Tensor, axis: Axis, keepdims: bool) -> torch.Tensor:
    axes = _axes(name, tensor, axis)
    if not tensor.numel():
        raise MXNetError(f"ndarray.{name} is not defined for an empty array")
    if not axes:
        return tensor.clone()
    result: torch.Tensor = _Extremum.apply(tensor, name, axes)  # type: ignore[no-untyped-call]
    return _reduced(result, axes, keepdims)


class _Extremum(torch.autograd.Function):
    """`max` or `min` that gives the whole gradient to each of several equal elements, where PyTorch splits it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, axes: tuple[int, ...]) -> torch.Tensor:
        result = (torch.amax if name == "max" else torch.amin)(tensor, axes, keepdim=True)
        ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensor, result = ctx.saved_tensors
        return grads[0] * (tensor == result), None, None


def moment(
    name: str, tensor: torch.Tensor, axis: Axis, dtype: torch.dtype | None, ddof: int, keepdims: bool
) -> torch.Tensor:
    """`std` and `var`."""
    axes = _axes(name, tensor, axis)
    if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        raise refusal(f"ndarray.{name} of integers, which MXNet truncates", "use .astype('float32') first")
    if dtype is not None and not dtype.is_floating_point:
        raise MXNetError(f"ndarray.{name} needs a float dtype, not {dtype_name(dtype)}")
    if tensor.dtype == torch.bool:
        raise MXNetError(f"ndarray.{name} is not defined for bool")
    if tensor.dtype == torch.float16 and dtype not in (None, torch.float16):
        raise refusal(f"ndarray.{name} of float16 with another dtype, for which MXNet rounds the mean", "use .astype()")
    check_gradient(f"ndarray.{name}", tensor)
    wide = tensor if dtype is None else tensor.to(dtype)
    if not axes:
        return torch.zeros_like(wide)
    reduce = torch.std if name == "std" else torch.var
    return _reduced(reduce(wide, axes, correction=ddof, keepdim=True), axes, keepdims)


def check_gradient(name: str, tensor: torch.Tensor) -> None:
    """Raises if a gradient would be computed for an operation that MXNet differentiates as if it were constant."""
    if tensor.requires_grad:
        raise refusal(
            f"the gradient of {name}, which is zeros in MXNet",
            "compute it from x.mean(), or use x.detach() if you need no gradient",
        )


def truth(name: str, tensor: torch.Tensor, axis: Axis, keepdims: bool) -> torch.Tensor:
    """`all` and `any`."""
    axes = _axes(name, tensor, axis)
    is_true = tensor != 0
    if not axes:
        return is_true
    reduce = torch.all if name == "all" else torch.any
    return _reduced(reduce(is_true, axes, keepdim=True), axes, keepdims)


def position(name: str, tensor: torch.Tensor, axis: Any, keepdims: bool) -> torch.Tensor:
    """`argmax` and `argmin`: the first of several equal elements; NaN is ignored, but not in MXNet 1.x."""
    if not tensor.numel():
        raise MXNetError(f"ndarray.{name} is not defined for an empty array")
    if axis is not None and len(_axes(name, tensor, axis)) != 1:
        raise MXNetError(f"ndarray.{name} needs one axis, not {axis}")
    if isinstance(axis, tuple | list):
        raise MXNetError(f"ndarray.{name} needs an integer as axis, not {axis}")
    if tensor.dtype.is_floating_point and not is_v1():
        tensor = torch.nan_to_num(tensor, nan=float("-inf" if name == "argmax" else "inf"))
    elif tensor.dtype == torch.bool:
        tensor = tensor.to(torch.uint8)
    find = torch.argmax if name == "argmax" else torch.argmin
    if axis is None:
        result = find(tensor)
        return result.reshape([1] * tensor.ndim) if keepdims else result
    return find(tensor, axis, keepdim=keepdims)


def cumsum(tensor: torch.Tensor, axis: Any, dtype: torch.dtype | None) -> torch.Tensor:
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    elif isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < tensor.ndim:
        raise MXNetError(f"ndarray.cumsum: axis must be from 0 to {tensor.ndim - 1}, or None, not {axis}")
    dtype = dtype or (torch.int64 if tensor.dtype == torch.bool else tensor.dtype)
    return torch.cumsum(tensor if dtype.is_floating_point else tensor.detach(), axis, dtype=dtype)


def sort(tensor: torch.Tensor, axis: Any, descending: Any, positions: bool) -> torch.Tensor:
    """The sorted values; with `positions`, their positions in the original, in int64."""
    name = "argsort" if positions else "sort"
    if tensor.dtype == torch.bool:
        raise MXNetError(f"ndarray.{name} is not defined for bool")
    if axis is None:
        tensor, axis = tensor.reshape(-1), -1
    if tensor.ndim == 0:
        raise refusal(f"ndarray.{name} of a 0-d array", "there is nothing to sort")
    (axis,) = _axes(name, tensor, axis)
    if tensor.dtype.is_floating_point and bool(tensor.isnan().any()):
        raise refusal(f"ndarray.{name} of NaN, which MXNet leaves anywhere", "use np.nan_to_num first")
    values, indices = torch.sort(tensor, dim=axis, descending=bool(descending), stable=True)
    return indices if positions else values


def nonzero(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nonzero(tensor, as_tuple=True)


def take(tensor: torch.Tensor, indices: Any, axis: Any, mode: str | None) -> torch.Tensor:
    if not isinstance(indices, torch.Tensor):
        raise MXNetError(f"ndarray.take needs an array of indices, not {type(indices).__name__}; use np.array(indices)")
    if indices.dtype == torch.bool:
        raise refusal("ndarray.take with a mask", "use x[mask]")
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    (axis,) = _axes("take", tensor, axis)
    size = tensor.shape[axis]
    at = indices.long()
    if mode == "clip":
        at = at.clamp(0, size - 1)
    elif mode == "wrap":
        at = at % size
    elif mode not in (None, "raise"):
        raise MXNetError(f"ndarray.take: unknown mode {mode!r}; use 'raise', 'clip' or 'wrap'")
    elif at.numel() and not 0 <= int(at.min()) <= int(at.max()) < size:
        raise MXNetError(f"ndarray.take: an index is out of bounds for axis {axis} with size {size}")
    taken = torch.index_select(tensor, axis, at.reshape(-1))
    return taken.reshape(*tensor.shape[:axis], *at.shape, *tensor.shape[axis + 1 :])
