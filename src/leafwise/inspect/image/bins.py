"""Binning the values of a picture: each cell keeps its value of the largest magnitude, so that no outlier is lost."""

from typing import Any

import numpy as np


class Bins:
    """A matrix binned into cells of several rows and columns; each cell keeps the value of the largest magnitude.

    `leading` are the axes before the last two, for many matrices of the same shape.
    """

    def __init__(self, rows: int, columns: int, down: int, across: int, leading: tuple[int, ...] = ()) -> None:
        self.down, self.across = down, across
        shape = *leading, -(-rows // down), -(-columns // across)
        self._most, self._least = np.full(shape, -np.inf), np.full(shape, np.inf)

    def add(self, row: int, column: int, part: Any, leading: tuple[slice, ...] = ()) -> None:
        down, up = _starts(row, part.shape[-2], self.down)
        across, right = _starts(column, part.shape[-1], self.across)
        touched = *leading, slice(up, up + len(down)), slice(right, right + len(across))
        for extremes, choose in ((self._most, np.maximum), (self._least, np.minimum)):
            reduced = part
            if self.across > 1:
                reduced = choose.reduceat(reduced, across, axis=-1)
            if self.down > 1:
                reduced = choose.reduceat(reduced, down, axis=-2)
            choose(extremes[touched], reduced, out=extremes[touched])

    def cells(self) -> Any:
        """The binned cells. NaN takes precedence, then infinity; of two values with the same magnitude, the
        positive."""
        return np.where(self._most >= -self._least, self._most, self._least)

    def notes(self) -> tuple[str, ...]:
        """What the caption says about the bins; empty if each cell is one value."""
        return () if self.down * self.across == 1 else (largest_of(self.down, self.across),)


def largest_of(down: int, across: int) -> str:
    return f"each cell shows the largest magnitude of {down:,}×{across:,}"


def _starts(first: int, count: int, step: int) -> tuple[Any, int]:
    """Where bins start in a part that starts at `first`, and the number of its first bin."""
    number = first // step
    begins = np.arange(number, (first + count - 1) // step + 1) * step - first
    return np.maximum(begins, 0), number


def binned(cells: Any, down: int, across: int) -> Any:
    """Cells binned further: `down` rows and `across` columns become one cell."""
    rows, columns = cells.shape
    bins = Bins(rows, columns, down, across)
    bins.add(0, 0, cells)
    return bins.cells()


def bin_sizes(rows: int, columns: int, most_down: int, most_across: int, keep: int) -> tuple[int, int]:
    """How many rows and columns share a cell: as few as possible, and the same number of both unless fewer than `keep`
    cells would be left along one side."""
    needed = -(-rows // most_down), -(-columns // most_across)
    both = max(needed)
    down, across = (max(own, min(both, count // keep)) for own, count in zip(needed, (rows, columns), strict=True))
    return down, across


def wrapped(blocks: Any, across: int) -> Any:
    """Blocks of one size laid out in rows of `across` blocks; the end of the last row is filled with zeros."""
    count, rows, columns = blocks.shape
    down = -(-count // across)
    padded = np.zeros((down * across, rows, columns))
    padded[:count] = blocks
    return padded.reshape(down, across, rows, columns).transpose(0, 2, 1, 3).reshape(down * rows, across * columns)


def norm_of(part: Any, axes: int | tuple[int, ...]) -> Any:
    """Euclidean norms along axes; values are divided by the largest first, so that squares neither over- nor
    underflow."""
    most = np.abs(part).max(axes, keepdims=True)
    scale = np.where((most > 0) & np.isfinite(most), most, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite make the norm not finite
        return np.sqrt(np.square(part / scale).sum(axes)) * scale.squeeze(axes)


def joint_norm(first: Any, second: Any) -> Any:
    """The norm of a vector from the norms of its two parts: NaN if a part is NaN, else infinite if a part is."""
    return np.where(np.isnan(first) | np.isnan(second), np.nan, np.hypot(first, second))
