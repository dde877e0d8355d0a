"""Elements chosen by index: embedding, one_hot, pick, topk, gather_nd and the operations that write by index."""

from typing import Any

import torch

from leafwise.gluon.arrays.dtypes import dtype_name, torch_dtype
from leafwise.gluon.base import MXNetError
from leafwise.gluon.ops.neural_checks import axis_of, check_shape, constant_of, one_of


def embedding(
    data: torch.Tensor,
    weight: torch.Tensor,
    input_dim: int | None = None,
    output_dim: int | None = None,
    dtype: Any = "float32",
    sparse_grad: bool = False,
) -> torch.Tensor:
    """The rows of `weight` at the indices in `data`; indices out of range are moved to the nearest row."""
    if input_dim is not None and output_dim is not None:
        check_shape("Embedding", "a weight", weight.shape, (input_dim, output_dim))
    return torch.nn.functional.embedding(_indices(data).clamp(0, weight.shape[0] - 1), weight)


def _indices(data: torch.Tensor) -> torch.Tensor:
    return data.detach().to(torch.int64)


def one_hot(
    indices: torch.Tensor,
    depth: int | None = None,
    on_value: float = 1.0,
    off_value: float = 0.0,
    dtype: Any = "float32",
) -> torch.Tensor:
    """A new last axis with `on_value` at the index; an index out of range gives a row of `off_value`."""
    if depth is None:
        raise MXNetError("one_hot: Required parameter depth of int is not presented; give it")
    positions = torch.arange(depth, device=indices.device)
    chosen = _indices(indices).unsqueeze(-1) == positions
    result = torch.full(chosen.shape, off_value, dtype=torch_dtype(dtype), device=indices.device)
    return result.masked_fill(chosen, on_value)


def pick(
    data: torch.Tensor, index: torch.Tensor, axis: int | None = -1, keepdims: bool = False, mode: str = "clip"
) -> torch.Tensor:
    """One element along an axis for each index. Indices out of range are moved to the end, or wrapped around."""
    one_of("pick", "mode", mode, ("clip", "wrap"))
    if axis is None:
        data, axis = data.reshape(-1), 0
    axis = axis_of("pick", axis, data.ndim)
    size = data.shape[axis]
    numbers = _indices(index)
    numbers = numbers.clamp(0, size - 1) if mode == "clip" else numbers.remainder(size)
    kept = tuple(1 if number == axis else length for number, length in enumerate(data.shape))
    dropped = tuple(length for number, length in enumerate(data.shape) if number != axis)
    if tuple(numbers.shape) not in (kept, dropped) and numbers.numel() != data.numel() // size:
        raise MXNetError(f"pick: an index of shape {tuple(index.shape)} does not fit data of shape {tuple(data.shape)}")
    picked = torch.gather(data, axis, numbers.reshape(kept))
    return picked if keepdims else picked.squeeze(axis)


def topk(
    data: torch.Tensor,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: str = "indices",
    is_ascend: bool = False,
    dtype: Any = "float32",
) -> Any:
    """The k largest, or with `is_ascend` smallest, elements along an axis: their indices, values, both, or a mask."""
    one_of("topk", "ret_typ", ret_typ, ("indices", "value", "both", "mask"))
    shape = data.shape
    if axis is None:
        data, axis = data.reshape(-1), 0
    axis = axis_of("topk", axis, data.ndim)
    if k > data.shape[axis]:
        raise MXNetError(f"topk: k must be in [1, {data.shape[axis]}], got k = {k}")
    order = torch.argsort(data.detach(), dim=axis, descending=not is_ascend, stable=True)
    chosen = order.narrow(axis, 0, k if k > 0 else data.shape[axis])
    if ret_typ == "mask":
        return constant_of(torch.zeros_like(data).scatter(axis, chosen, 1).reshape(shape), data)
    indices = constant_of(chosen.to(torch_dtype(dtype)), data)
    if ret_typ == "indices":
        return indices
    values = torch.gather(data, axis, chosen)
    return values if ret_typ == "value" else (values, indices)


def gather_nd(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The elements at positions whose coordinates are the columns of `indices`."""
    return data[_coordinates("gather_nd", indices, data)].clone()


def scatter_nd(data: torch.Tensor, indices: torch.Tensor, shape: Any = None) -> torch.Tensor:
    """Zeros of a shape with `data` at the positions that `indices` has in its columns."""
    if shape is None:
        raise MXNetError("scatter_nd: Required parameter shape of Shape(tuple) is not presented; give it")
    target = torch.zeros(tuple(shape), dtype=data.dtype, device=data.device)
    return target.index_put(_coordinates("scatter_nd", indices, target), data)


def index_add(a: torch.Tensor, ind: torch.Tensor, val: Any) -> torch.Tensor:
    """A copy of `a` with values added at the positions that `ind` has in its columns."""
    place = _coordinates("index_add", ind, a)
    return a.index_put(place, _values("index_add", val, a, place), accumulate=True)


def index_update(a: torch.Tensor, ind: torch.Tensor, val: Any) -> torch.Tensor:
    """A copy of `a` with values written at the positions that `ind` has in its columns."""
    place = _coordinates("index_update", ind, a)
    return a.index_put(place, _values("index_update", val, a, place))


def _coordinates(name: str, indices: torch.Tensor, data: torch.Tensor) -> tuple[torch.Tensor, ...]:
    numbers = _indices(indices)
    if numbers.shape[0] > data.ndim:
        raise MXNetError(f"{name}: {numbers.shape[0]} coordinates are too many for an array of {data.ndim} dimensions")
    for axis, row in enumerate(numbers):
        if row.numel() and not -data.shape[axis] <= int(row.min()) <= int(row.max()) < data.shape[axis]:
            raise MXNetError(f"{name}: an index is out of bounds for axis {axis} with size {data.shape[axis]}")
    return tuple(numbers)


def _values(name: str, val: Any, data: torch.Tensor, place: tuple[torch.Tensor, ...]) -> torch.Tensor:
    values = val if isinstance(val, torch.Tensor) else torch.as_tensor(val, dtype=data.dtype, device=data.device)
    if values.dtype != data.dtype:
        dtypes = f"{dtype_name(values.dtype)} into {dtype_name(data.dtype)}"
        raise MXNetError(f"{name}: cannot write {dtypes}; use .astype()")
    return values
