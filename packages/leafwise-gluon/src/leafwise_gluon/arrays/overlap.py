"""Whether arrays share memory.

MXNet computes in place while it still reads: if an array is changed by a shifted or smaller part of itself, elements
are read after they were overwritten, and the result depends on the order in which they are computed.
"""

from typing import Any

import torch

from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import refusal


def check_overlap(operation: str, array: ArrayValues, other: Any) -> None:
    """Raises if an array is changed in place by one that shares memory with it, but does not have the same elements."""
    if not isinstance(other, ArrayValues) or not shares_memory(array.tensor, other.tensor):
        return
    if array.tensor.data_ptr() != other.tensor.data_ptr() or array.shape != other.shape:
        raise refusal(f"{operation} with an overlapping part of the same array", "use a copy of the part")


def shares_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory from the first to the last element of two tensors overlaps."""
    if tensor.device != other.device or not (tensor.numel() and other.numel()):
        return False
    return tensor.data_ptr() < _end(other) and other.data_ptr() < _end(tensor)


def _end(tensor: torch.Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()
