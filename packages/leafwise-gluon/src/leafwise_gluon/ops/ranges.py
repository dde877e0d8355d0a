"""Numbers at equal distances, with the rounding of MXNet."""

import math

import torch

_EXACT = (torch.float32, torch.float64)


def arithmetic_range(first: float, last: float, step: float, dtype: torch.dtype) -> torch.Tensor:
    """`first`, `first + step` and so on, up to but without `last`.

    MXNet computes in the dtype of the result. It drops the fractions of `first` and `step` if that is neither float32
    nor float64, but counts the numbers with them.
    """
    count = max(0, math.ceil((last - first) / step))
    positions = torch.arange(count)
    if dtype not in _EXACT:
        return (int(first) + positions * int(step)).to(dtype)
    distances = positions.to(dtype) * torch.tensor(step, dtype=dtype)
    return torch.tensor(first, dtype=dtype) + distances
