"""Sorting and choosing elements. Positions are given as floats unless a dtype is asked for, as in MXNet."""

from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.legacy.gradients import with_zero_gradient


def _sorted(data: torch.Tensor, axis: Any, is_ascend: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if axis is None:
        data, axis = data.reshape(-1), 0
    values, positions = torch.sort(data, dim=axis, descending=not is_ascend, stable=True)
    return values, positions


def sort(data: torch.Tensor, axis: int | None = -1, is_ascend: Any = True) -> torch.Tensor:
    return _sorted(data, axis, is_ascend)[0]


def argsort(data: torch.Tensor, axis: int | None = -1, is_ascend: Any = True, dtype: Any = "float32") -> torch.Tensor:
    return with_zero_gradient(_sorted(data, axis, is_ascend)[1].to(torch_dtype(dtype)), data)


def topk(
    data: torch.Tensor,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: str = "indices",
    is_ascend: Any = False,
    dtype: Any = "float32",
) -> torch.Tensor | list[torch.Tensor]:
    """The largest (or smallest) elements along an axis: their positions, their values, both, or a mask of them."""
    if ret_typ not in ("indices", "value", "both", "mask"):
        raise MXNetError(f"nd.topk: ret_typ must be 'indices', 'value', 'both' or 'mask', not {ret_typ!r}")
    shape = data.shape
    if axis is None:
        data, axis = data.reshape(-1), 0
    size = data.shape[axis]
    if k > size or k < 0:
        raise MXNetError(f"nd.topk: k must be from 0 to {size}, not {k}")
    values, positions = _sorted(data, axis, is_ascend)
    count = k if k >= 1 else size
    values, positions = values.narrow(axis, 0, count), positions.narrow(axis, 0, count)
    if ret_typ == "value":
        return values.clone()
    if ret_typ == "mask":
        mask = torch.zeros_like(data).scatter(axis, positions, 1)
        return with_zero_gradient(mask.reshape(shape), data)
    indices = with_zero_gradient(positions.to(torch_dtype(dtype)), data)
    return indices if ret_typ == "indices" else [values.clone(), indices]


# -- choosing by positions -------------------------------------------------------------------------------------


def in_bounds(name: str, indices: torch.Tensor, size: int, mode: str) -> torch.Tensor:
    """Positions as int64, with those outside the axis clipped or wrapped around."""
    if mode not in ("clip", "wrap", "raise"):
        raise MXNetError(f"nd.{name}: mode must be 'clip', 'wrap' or 'raise', not {mode!r}")
    at = indices.detach().long()
    if mode == "raise" and at.numel() and not 0 <= int(at.min()) <= int(at.max()) < size:
        raise MXNetError(f"nd.{name}: an index is out of bounds for an axis of size {size}")
    return at % size if mode == "wrap" else at.clamp(0, size - 1)


def take(a: torch.Tensor, indices: torch.Tensor, axis: int = 0, mode: str = "clip") -> torch.Tensor:
    """Elements along an axis."""
    if not -a.ndim <= axis < a.ndim:
        raise MXNetError(f"nd.take: axis {axis} is out of bounds for array of dimension {a.ndim}")
    axis %= a.ndim
    at = in_bounds("take", indices, a.shape[axis], mode)
    taken = torch.index_select(a, axis, at.reshape(-1))
    result = taken.reshape(*a.shape[:axis], *at.shape, *a.shape[axis + 1 :])
    return result + with_zero_gradient(torch.zeros_like(result), indices) if indices.requires_grad else result


def batch_take(a: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """One element of each row; it cannot be differentiated."""
    if indices.dtype != torch.int32:
        raise MXNetError("nd.batch_take needs indices of int32; use .astype('int32')")
    return pick(a.detach(), indices, axis=1)


def pick(
    data: torch.Tensor, index: torch.Tensor, axis: int | None = -1, keepdims: Any = False, mode: str = "clip"
) -> torch.Tensor:
    """One element along an axis for each position on the others."""
    if axis is None:
        data, axis = data.reshape(-1), 0
    axis %= data.ndim
    at = in_bounds("pick", index, data.shape[axis], mode)
    kept = [1 if number == axis else size for number, size in enumerate(data.shape)]
    if at.numel() != torch.Size(kept).numel():
        raise MXNetError(f"nd.pick: an index of shape {tuple(index.shape)} does not fit data of {tuple(data.shape)}")
    result = torch.gather(data, axis, at.reshape(kept))
    if not keepdims:
        result = result.reshape([size for number, size in enumerate(kept) if number != axis] or [1])
    return result + with_zero_gradient(torch.zeros_like(result), index) if index.requires_grad else result


def one_hot(
    indices: torch.Tensor, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = "float32"
) -> torch.Tensor:
    """`on_value` at each index along a new last axis; an index outside it gives `off_value` everywhere."""
    hot = indices.detach().long().unsqueeze(-1) == torch.arange(int(depth), device=indices.device)
    target = torch_dtype(dtype)
    on, off = (torch.full((), value, device=indices.device).to(target) for value in (on_value, off_value))
    return with_zero_gradient(torch.where(hot, on, off), indices)


def fill_element_0index(lhs: torch.Tensor, mhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """A copy with one element of each row replaced; it cannot be differentiated."""
    return lhs.detach().scatter(1, rhs.detach().long().reshape(-1, 1), mhs.detach().reshape(-1, 1))


def gather_nd(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The elements at positions; `indices[k]` holds the positions on axis k."""
    at = _positions("gather_nd", indices, tuple(data.shape))
    return data[at]


def scatter_nd(data: torch.Tensor, indices: torch.Tensor, shape: Any) -> torch.Tensor:
    """Zeros of a shape, with data written at positions."""
    at = _positions("scatter_nd", indices, tuple(shape))
    flat = torch.stack(at).reshape(len(at), -1)
    if torch.unique(flat, dim=1).shape[1] != flat.shape[1]:
        raise refusal("nd.scatter_nd with a position twice, where MXNet's result is arbitrary", "add them up first")
    return torch.zeros(tuple(shape), dtype=data.dtype, device=data.device).index_put(at, data)


def _positions(name: str, indices: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    at = indices.detach().long()
    if at.shape[0] > len(shape):
        raise MXNetError(f"nd.{name}: {at.shape[0]} rows of indices for an array of dimension {len(shape)}")
    for positions, size in zip(at, shape, strict=False):
        if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < size:
            raise refusal(f"nd.{name} with indices outside of the array", f"use indices from 0 to {size - 1}")
    return tuple(at)


def ravel_multi_index(data: torch.Tensor, shape: Any) -> torch.Tensor:
    """Positions in an array of a shape, as positions in the flattened array."""
    flat = torch.zeros_like(data[0])
    for positions, size in zip(data, shape, strict=True):
        flat = flat * size + positions
    return flat.detach()


def unravel_index(data: torch.Tensor, shape: Any) -> torch.Tensor:
    """The opposite of `ravel_multi_index`."""
    parts = torch.unravel_index(data.detach().long(), tuple(shape))
    return torch.stack(parts).to(data.dtype)
