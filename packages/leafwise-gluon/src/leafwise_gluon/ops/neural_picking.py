"""Elements chosen by index: embedding, one_hot, pick, topk, gather_nd and the operations that write by index."""

from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.neural_checks import check_shape


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


def index_add(a: torch.Tensor, ind: torch.Tensor, val: Any) -> torch.Tensor:
    """A copy of `a` with values added at the positions that `ind` has in its columns."""
    place = _coordinates("index_add", ind, a)
    return a.index_put(place, _values("index_add", val, a, place), accumulate=True)


def index_update(a: torch.Tensor, ind: torch.Tensor, val: Any) -> torch.Tensor:
    """A copy of `a` with values written at the positions that `ind` has in its columns."""
    place = _coordinates("index_update", ind, a)
    columns = torch.stack(place).reshape(len(place), -1)
    if torch.unique(columns, dim=1).shape[1] != columns.shape[1]:
        raise refusal("npx.index_update with a position twice, where MXNet's result is arbitrary", "use npx.index_add")
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
