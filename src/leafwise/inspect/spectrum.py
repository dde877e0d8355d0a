"""The leading singular values of a matrix that may be too large to hold: by a randomised projection."""

from math import prod
from typing import Any

import numpy as np

from leafwise.inspect.looking import Seen

_MORE = 8  # directions than are asked for, which makes the leading ones more exact
_ROUNDS = 2  # of power iteration, which parts the leading ones from the rest
_SEED = 20_240_229


def leading(seen: Seen, some: int) -> float:
    """The sum of the squares of the largest singular values."""
    width = prod(seen.shape[1:])
    directions = np.random.default_rng(_SEED).standard_normal((width, min(some + _MORE, width)))
    for _ in range(_ROUNDS):
        directions, _ = np.linalg.qr(_gram(seen, directions))
    values = np.linalg.svd(_product(seen, directions), compute_uv=False)
    return float(np.square(values[:some]).sum())


def _rows(seen: Seen) -> Any:
    for _, band in seen.bands():
        yield np.asarray(band, np.float64 if band.dtype.itemsize == 8 else np.float32).reshape(len(band), -1)


def _product(seen: Seen, directions: Any) -> Any:
    return np.concatenate([rows @ directions for rows in _rows(seen)])


def _gram(seen: Seen, directions: Any) -> Any:
    """What the matrix makes of directions, and its transpose of that."""
    total = np.zeros_like(directions)
    for rows in _rows(seen):
        total += rows.T @ (rows @ directions)
    return total
