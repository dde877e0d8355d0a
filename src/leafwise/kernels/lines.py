"""Lines of arrays that are near each other: what the search in NumPy and the search on a GPU have in common.

A line is all values of an array at one index along an axis, such as a row or a column. A few numbers of each line
suffice to distinguish almost all lines: their projections onto a few directions are the coordinates of a cell in a
grid, and only lines in the same cell are compared further.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

SAMPLED = 16  # numbers read from each line at first
COORDINATES = 8
NEAR = 1e-3  # lines are nearly equal if their distance is below this share of their norm
CELL = 300 * NEAR  # width of the grid cells used to find near lines, as a share of the norm of a line
LEAST = 2.0**-120  # smaller norms are treated as this one
# Of several grids: lines that a cell boundary separates in one share a cell in another.
SHIFTS = np.array([0.0, 0.31, 0.67], np.float32)
_SEED = 20_240_229
ONTO = np.random.default_rng(_SEED).standard_normal((SAMPLED, COORDINATES))
ODD = np.random.default_rng(_SEED).integers(1, 1 << 29, COORDINATES + 1, np.int32) * 2 + 1
_LINES_AT_ONCE = 1 << 16  # lines per batch


def as_doubles(array: Any, scale: float) -> Any:
    """Numbers in double precision, scaled; those that are not finite become zero."""
    with np.errstate(invalid="ignore"):  # NaN in float8
        numbers = np.asarray(array, np.float64) * scale
    return np.where(np.isfinite(numbers), numbers, 0)


def near_lines(count: int, numbers_of: Callable[[Any], Any]) -> Any:
    """The lines that have another line near them, judged by a few of their numbers, and perhaps a few others. There may
    be millions of lines, so little is kept of each, and their numbers are read in batches."""
    if count < 2:
        return np.array([], int)
    words = np.empty((len(SHIFTS), count), np.int32)
    for start in range(0, count, _LINES_AT_ONCE):
        words[:, start : start + _LINES_AT_ONCE] = _cells(numbers_of(slice(start, start + _LINES_AT_ONCE)))
    near_ones = []
    for cells in words:
        ordered = np.sort(cells)
        if not (ordered[1:] == ordered[:-1]).any():  # the usual case, and much faster than finding out where
            continue
        order = np.argsort(cells)
        ordered = cells[order]
        shared = ordered[1:] == ordered[:-1]
        crowded = np.flatnonzero(shared[1:] & shared[:-1])
        # Of three lines in a cell, the first and the last may be equal and the one between them far from both.
        near_ones += [order[crowded + offset] for offset in range(3)]
        places = np.flatnonzero(shared)
        for start in range(0, len(places), _LINES_AT_ONCE):
            batch = places[start : start + _LINES_AT_ONCE]
            lines, neighbors = order[batch], order[batch + 1]
            # Lines with very different numbers may share a cell by chance.
            numbers = numbers_of(lines)
            near = np.square(numbers - numbers_of(neighbors)).sum(1) <= np.square(CELL) * np.square(numbers).sum(1)
            near_ones += [lines[near], neighbors[near]]
    return np.unique(np.concatenate(near_ones)) if near_ones else np.array([], int)


def _cells(numbers: Any) -> Any:
    """For each line and each of several grids, the cell that contains the line, as an integer."""
    # Each line is scaled by its own power of two, so that small lines do not all share one cell. The coordinates mix
    # the whole sample, since most of its numbers may be zero.
    size = np.maximum(np.linalg.norm(numbers, axis=1), LEAST)
    measure = np.frexp(size * np.exp2(SHIFTS)[:, None])[1]
    mixed = (numbers @ ONTO[: numbers.shape[1]]).astype(np.float32)
    cells = mixed * np.ldexp(np.float32(2 / CELL), -measure)[:, :, None]
    cells += SHIFTS[:, None, None]
    return np.floor(cells, out=cells).astype(np.int32) @ ODD[1:] + measure * ODD[0]


class Directions:
    """Random numbers for whole lines: directions to project them onto, and odd weights for a fingerprint of their bits.
    They are drawn for consecutive parts of a line, and do not depend on how long the parts are."""

    def __init__(self) -> None:
        self._normal, self._whole = np.random.default_rng(_SEED), np.random.default_rng(_SEED + 1)

    def draw(self, count: int) -> tuple[Any, Any]:
        """The directions and weights of the next numbers of a line."""
        weights = self._whole.integers(1, 1 << 63, count, np.uint64) * np.uint64(2) + np.uint64(1)
        return self._normal.standard_normal((count, SAMPLED)), weights
