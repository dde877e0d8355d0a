"""The numbers of tensors on a GPU in double precision, in parts. Floats of one byte are looked up, because PyTorch does
not compute with all of them."""

from collections.abc import Iterator
from functools import cache
from math import prod

import torch

from leafwise.homes.torch.tensors import dtype_name
from leafwise.kernels.dtypes import byte_values, is_byte_float

AT_ONCE = 1 << 23  # elements that are copied or converted at once, to save memory


def row_bands(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A tensor with at least one axis, as parts of several rows each, with the number of the first row."""
    step = max(1, AT_ONCE // max(prod(value.shape[1:]), 1))
    for start in range(0, len(value), step):
        yield start, value.detach()[start : start + step]


def as_doubles(value: torch.Tensor) -> torch.Tensor:
    return _looked_up(value).to(torch.float64)


def is_finite(value: torch.Tensor) -> torch.Tensor:
    return _looked_up(value).isfinite()


def _looked_up(value: torch.Tensor) -> torch.Tensor:
    name = dtype_name(value.dtype)
    if not is_byte_float(name):
        return value
    return _byte_values(name, value.device)[value.view(torch.uint8).to(torch.int64)]


@cache
def _byte_values(dtype: str, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(byte_values(dtype)).to(device)
