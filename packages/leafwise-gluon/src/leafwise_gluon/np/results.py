"""What the functions of `mxnet.np` have in common: the tensors of their arguments, and how results are given back."""

from collections.abc import Sequence
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError
from leafwise_gluon.context import as_context


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """The tensor of an array; an error that names the function for anything else."""
    if not isinstance(value, ArrayValues | torch.Tensor):
        raise TypeError(f"np.{name} needs an array, not {type(value).__name__}; use np.array(values)")
    return plain(value)  # type: ignore[no-any-return]


def tensors_of(values: Any, name: str) -> list[torch.Tensor]:
    """The tensors of a sequence of arrays of one dtype."""
    tensors = [tensor_of(value, name) for value in values]
    if not tensors:
        raise ValueError(f"np.{name} needs at least one array")
    if len({tensor.dtype for tensor in tensors}) > 1:
        dtypes = ", ".join(dtype_name(tensor.dtype) for tensor in tensors)
        raise MXNetError(f"np.{name} needs arrays of the same dtype, not {dtypes}; use .astype()")
    return tensors


def result(name: str, tensor: torch.Tensor, example: Any = None, out: Any = None) -> ndarray:
    """A tensor as an array in the context of an example; with `out`, written into that array."""
    if out is None:
        return wrap(tensor, example.ctx if isinstance(example, ArrayValues) else None)
    if not isinstance(out, ndarray):
        raise TypeError(f"np.{name}: out must be an ndarray, not {type(out).__name__}")
    if differentiating() and (tensor.requires_grad or out.tensor.requires_grad):
        raise MXNetError(f"np.{name} with out cannot be recorded; leave out, or use autograd.pause()")
    if out.shape != tuple(tensor.shape) or out.tensor.dtype != tensor.dtype:
        given = f"{tuple(tensor.shape)} {dtype_name(tensor.dtype)}"
        raise MXNetError(
            f"np.{name}: the result is {given}, which does not fit an out of {out.shape} {dtype_name(out.tensor.dtype)}"
        )
    with torch.no_grad():
        out.tensor.copy_(tensor)
    return out


def sizes(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)


def placed(tensor: torch.Tensor, ctx: Any, device: Any) -> ndarray:
    """A new array in the context that was asked for, or in the current one."""
    context = as_context(ctx if ctx is not None else device)
    return wrap(tensor.to(context.torch_device), context)


def first_array(values: Sequence[Any]) -> Any:
    return next((value for value in values if isinstance(value, ArrayValues)), None)
