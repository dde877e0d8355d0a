"""Norms of vectors and matrices, over plain tensors."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops import reductions
from leafwise_gluon.ops.products import floating

_MATRIX_NORMS = ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf"))


def norm_of(tensor: torch.Tensor, order: Any, axis: Any, keepdims: bool) -> torch.Tensor:
    """The norm of the elements, of a matrix, or of vectors or matrices along axes."""
    if not tensor.dtype.is_floating_point:
        raise refusal("np.linalg.norm of integers, which MXNet truncates", "use .astype('float32') first")
    tensor = floating("norm", tensor)
    if axis is None and (order is None or tensor.ndim == 1):
        if order is not None and order in (float("inf"), float("-inf")):
            raise MXNetError(f"np.linalg.norm of a vector with order {order} needs an axis; use axis=0")
        flat = vector_norm_of(tensor.reshape(-1), 2 if order is None else order, 0, False)
        return flat.reshape([1] * tensor.ndim) if keepdims else flat
    axes = tuple(range(tensor.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if len(axes) == 1:
        return vector_norm_of(tensor, 2 if order is None else order, axes[0], keepdims)
    if len(axes) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    return matrix_norm_of(tensor, "fro" if order is None else order, axes, keepdims)


def vector_norm_of(tensor: torch.Tensor, order: Any, axis: Any, keepdims: bool) -> torch.Tensor:
    if not isinstance(order, int | float):
        raise ValueError(f"np.linalg.norm: {order!r} is not an order of a vector norm")
    try:
        norm: torch.Tensor = torch.linalg.vector_norm(tensor, order, axis, keepdim=keepdims)
        return norm
    except (RuntimeError, IndexError) as error:
        raise MXNetError(f"np.linalg.norm: {error}") from error


def matrix_norm_of(tensor: torch.Tensor, order: Any, axes: Any, keepdims: bool) -> torch.Tensor:
    if order not in _MATRIX_NORMS:
        raise ValueError(f"np.linalg.norm: {order!r} is not an order of a matrix norm")
    if order not in ("fro", "nuc", 2, -2):
        # The largest or smallest sum of absolute values of a column (order 1) or row (infinity).
        first, second = (axis % tensor.ndim for axis in axes)
        if abs(order) != 1:
            first, second = second, first
        sums = reductions.sum(tensor.abs(), first, None, True)
        computed = reductions.extremum("max" if order > 0 else "min", sums, (first, second), True)
        return computed if keepdims else computed.squeeze((first, second))
    try:
        norm: torch.Tensor = torch.linalg.matrix_norm(tensor, order, tuple(axes), keepdim=keepdims)
        return norm
    except (RuntimeError, IndexError) as error:
        raise MXNetError(f"np.linalg.norm: {error}") from error
