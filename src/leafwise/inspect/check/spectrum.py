"""The leading singular values of a matrix that may be too large to hold: by a randomised projection."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from leafwise.inspect.check.leaf_evidence import Seen

_MORE = 8  # directions than are asked for, which makes the leading ones more exact
_ROUNDS = 2  # of power iteration, which parts the leading ones from the rest
_SEED = 20_240_229


def leading(seen: Seen, some: int, scale: float) -> float:
    """The share of the sum of squares that the largest singular values have. Values are divided by `scale` first."""
    width = prod(seen.shape[1:])
    directions = np.random.default_rng(_SEED).standard_normal((width, min(some + _MORE, width)), np.float32)
    for _ in range(_ROUNDS):
        directions, _ = np.linalg.qr(_gram(seen, directions, scale))
    values = np.linalg.svd(np.concatenate([rows @ directions for rows in _rows(seen, scale)]), compute_uv=False)
    whole = sum(float(np.square(rows, dtype=np.float64).sum()) for rows in _rows(seen, scale))
    return float(np.square(values[:some], dtype=np.float64).sum()) / whole if whole else 0.0


def off_orthogonal(seen: Seen, gain: float) -> float:
    """How far a matrix times its transpose is from the identity, times the square of a gain: along one direction, as a
    share of it. Of rows and columns, those are meant that are fewer."""
    random = np.random.default_rng(_SEED)
    high, wide = seen.shape[0], prod(seen.shape[1:])
    direction = random.standard_normal((wide if wide <= high else high, 1), np.float32)
    if wide <= high:
        found = _gram(seen, direction, 1.0)
    else:
        middle, at = np.zeros((wide, 1), np.float32), 0
        for rows in _rows(seen, 1.0):
            middle += rows.T @ direction[at : at + len(rows)]
            at += len(rows)
        found = np.concatenate([rows @ middle for rows in _rows(seen, 1.0)])
    expected = direction * gain**2
    return float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1))


def _rows(seen: Seen, scale: float) -> Iterator[Any]:
    for _, band in seen.bands():
        yield (np.asarray(band, np.float64) / scale).astype(np.float32).reshape(len(band), -1)


def _gram(seen: Seen, directions: Any, scale: float) -> Any:
    """What the matrix makes of directions, and its transpose of that."""
    total = np.zeros_like(directions)
    for rows in _rows(seen, scale):
        total += rows.T @ (rows @ directions)
    return total
