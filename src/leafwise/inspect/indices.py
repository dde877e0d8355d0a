"""Where in a leaf something was found: the indices of values, or the numbers of lines along an axis."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from leafwise.core.capabilities.measuring import bands
from leafwise.core.capabilities.searching import Searching
from leafwise.core.home import Home
from leafwise.core.registry import home_of

MOST = 10_000  # indices that are kept; there may be billions
_SHOWN_VALUES = 3  # indices of values in a message
_SHOWN_LINES = 6  # numbers of lines, or ranges of them, in a message


class Places(NamedTuple):
    """Where in a leaf something was found.

    If `axis` is None, each of `indices` is the index of a value, with a number for every axis of the leaf. Otherwise
    each is a number along that axis, such as that of a row or a unit. `total` is how many there are, and `indices` has
    at most the first 10,000 of them. `str()` lists the first few.

    >>> print(Places(((0, 1), (2, 0)), None, 2), "|", Places((3, 8, 9, 10, 11), 0, 5))
    [0, 1], [2, 0] | 3, 8-11
    """

    indices: tuple[Any, ...]
    axis: int | None
    total: int

    def __str__(self) -> str:
        if self.axis is not None:
            return _ranges_text(self.indices, self.total)
        shown = ", ".join(str(list(index)) for index in self.indices[:_SHOWN_VALUES])
        return shown + _others(self.total - min(len(self.indices), _SHOWN_VALUES))


def lines_along(axis: int, numbers: Sequence[int]) -> Places:
    """The numbers of lines along an axis."""
    return Places(tuple(numbers[:MOST]), axis, len(numbers))


def _ranges_text(numbers: Sequence[int], total: int) -> str:
    """Numbers in ascending order, with those that follow each other as a range."""
    breaks = [place for place, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [numbers[start:stop] for start, stop in zip([0, *breaks], [*breaks, len(numbers)], strict=True)]
    words: list[str] = []
    listed = 0
    for run in runs:
        if len(words) == _SHOWN_LINES:
            break
        # Two neighbors are two numbers, not a range.
        parts = [f"{run[0]}-{run[-1]}"] if len(run) > 2 else list(map(str, run))
        words.append(", ".join(parts))
        listed += len(run)
    return ", ".join(words) + _others(total - listed)


def _others(count: int) -> str:
    return f" and {count:,} {'other' if count == 1 else 'others'}" if count else ""


def nonfinite_places(home: Home, value: Any, shape: tuple[int, ...], total: int) -> Places:
    """Where the NaN and infinite values of an array are. It should have `total` of them. If it has fewer, the result
    has its own `total`."""

    if not shape:
        return Places(((),), None, total)
    wanted = min(total, MOST)
    searching = home.capability(Searching)
    positions = searching.nonfinite(value, wanted) if searching.is_searched(value) else None
    if positions is None:
        positions = _nonfinite_positions(home, value, shape, wanted)
    return places_at(positions, shape, total if len(positions) == wanted else len(positions))


def places_at(positions: Any, shape: tuple[int, ...], total: int) -> Places:
    """The places of values from their positions in C order, as NumPy integers."""
    import numpy as np

    if not shape:
        return Places(((),), None, total)
    indices = tuple(zip(*(axis.tolist() for axis in np.unravel_index(positions, shape)), strict=True))
    return Places(indices, None, total)


def sent_nonfinite_places(item: tuple[Any, tuple[int, ...], int]) -> Places:
    """`nonfinite_places` of an array, with its shape and the number of values that are not finite, in a worker."""
    value, shape, total = item
    return nonfinite_places(home_of(value), value, shape, total)


def _nonfinite_positions(home: Home, value: Any, shape: tuple[int, ...], wanted: int) -> Any:
    """The positions of the first so many values that are not finite, in C order. The array is read a band at a time, up
    to the last of them."""
    import numpy as np

    positions: list[Any] = [np.array([], int)]
    count, row_size = 0, max(prod(shape[1:]), 1)
    for start, band in bands(home, value, shape):
        with np.errstate(all="ignore"):  # casts of NaN and infinity from narrow floats
            wide = band if band.dtype.kind in "fc" else band.astype(np.float32)
            places = np.flatnonzero(~np.isfinite(wide))[: wanted - count]
        positions.append(places + start * row_size)
        count += len(places)
        if count >= wanted:
            break
    return np.concatenate(positions)
