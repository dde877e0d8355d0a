"""Values that share a cell of a picture: the largest in magnitude of them, so that no outlier is lost; and how cells
are put together."""

from typing import Any

import numpy as np


class Bins:
    """A matrix in cells of several rows and columns, of which each keeps what is largest in magnitude.

    With `front`, many matrices of one shape, which these axes count.
    """

    def __init__(self, rows: int, columns: int, down: int, across: int, front: tuple[int, ...] = ()) -> None:
        self.down, self.across = down, across
        shape = *front, -(-rows // down), -(-columns // across)
        self._most, self._least = np.full(shape, -np.inf), np.full(shape, np.inf)

    def add(self, row: int, column: int, part: Any, front: tuple[slice, ...] = ()) -> None:
        down, up = _starts(row, part.shape[-2], self.down)
        across, right = _starts(column, part.shape[-1], self.across)
        touched = *front, slice(up, up + len(down)), slice(right, right + len(across))
        for extremes, choose in ((self._most, np.maximum), (self._least, np.minimum)):
            reduced = part
            if self.across > 1:
                reduced = choose.reduceat(reduced, across, axis=-1)
            if self.down > 1:
                reduced = choose.reduceat(reduced, down, axis=-2)
            choose(extremes[touched], reduced, out=extremes[touched])

    def cells(self) -> Any:
        """What is not a number goes first, then what is infinite; of two with one magnitude, the positive."""
        return np.where(self._most >= -self._least, self._most, self._least)

    def notes(self) -> tuple[str, ...]:
        """What the caption says of the bins; nothing where each cell is one value."""
        if self.down * self.across == 1:
            return ()
        return (largest_of(self.down, self.across),)


def largest_of(down: int, across: int) -> str:
    return f"each cell the largest in magnitude of {down:,}×{across:,}"


def _starts(first: int, count: int, step: int) -> tuple[Any, int]:
    """Where bins begin in a part that begins at `first`, and the number of the bin that it begins in."""
    number = first // step
    begins = np.arange(number, (first + count - 1) // step + 1) * step - first
    return np.maximum(begins, 0), number


def binned(cells: Any, down: int, across: int) -> Any:
    """Cells put together, so many rows and columns of them in one."""
    rows, columns = cells.shape
    bins = Bins(rows, columns, down, across)
    bins.add(0, 0, cells)
    return bins.cells()


def bin_sizes(rows: int, columns: int, most_down: int, most_across: int, keep: int) -> tuple[int, int]:
    """How many rows and columns share a cell: as few as can be, and as many of one as of the other unless that would
    leave less than `keep` cells."""
    needed = -(-rows // most_down), -(-columns // most_across)
    both = max(needed)
    down, across = (max(own, min(both, count // keep)) for own, count in zip(needed, (rows, columns), strict=True))
    return down, across


def side(count: int, gaps: tuple[int, ...], zoom: int, gap: int) -> int:
    """How many pixels a side has."""
    return count * zoom + gap * sum((count - 1) // every for every in gaps)


def gaps(levels: int, zoom: int) -> tuple[int, int]:
    """How many pixels the narrowest gap has, down and across. Rows have but one kind, as wide as the widest of columns;
    with three kinds of these (filters in 3-D) all are narrower, so that the picture is not mostly gaps."""
    if levels < 3:
        gap = max(1, round(zoom / 3))
        return gap * levels, gap
    return max(1, round(zoom * 2 / 5)), max(1, round(zoom / 5))


def wrapped(blocks: Any, across: int) -> Any:
    """Blocks of one size in rows of so many; what is missing at the end is zero."""
    count, rows, columns = blocks.shape
    down = -(-count // across)
    padded = np.zeros((down * across, rows, columns))
    padded[:count] = blocks
    return padded.reshape(down, across, rows, columns).transpose(0, 2, 1, 3).reshape(down * rows, across * columns)


def norm_of(part: Any, axes: int | tuple[int, ...]) -> Any:
    """Euclidean norms along axes; the largest value is taken out first, so that no square is too large or too small."""
    most = np.abs(part).max(axes, keepdims=True)
    scale = np.where((most > 0) & np.isfinite(most), most, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # where something is not finite, so is the norm
        return np.sqrt(np.square(part / scale).sum(axes)) * scale.squeeze(axes)


def joint_norm(first: Any, second: Any) -> Any:
    """The norm of a vector from the norms of its two parts: infinite where a part is, unless one is not a number."""
    return np.where(np.isnan(first) | np.isnan(second), np.nan, np.hypot(first, second))
