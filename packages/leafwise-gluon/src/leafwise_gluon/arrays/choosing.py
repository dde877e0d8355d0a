"""Which kind of array a result is."""

from typing import Any

import torch

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, wrapped
from leafwise_gluon.context import Context
from leafwise_gluon.modes import is_np_array


def wrap_like(example: Any, tensor: torch.Tensor) -> Any:
    """A tensor as the kind of thing that `example` is: an array of its class and context, or a plain tensor."""
    return wrapped(type(example), tensor, example.ctx) if isinstance(example, ArrayValues) else tensor


def wrap_by_mode(tensor: torch.Tensor, ctx: Context | None = None) -> Any:
    """A tensor as an `np.ndarray` in NumPy mode, and as an `nd.NDArray` otherwise."""
    return wrapped(ndarray if is_np_array() else NDArray, tensor, ctx)
