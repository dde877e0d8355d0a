"""Rows and columns of a matrix: which are zero, and which are alike.

A few numbers of each line tell almost all apart. Only where some agree in those is the whole matrix read, a band at a
time; so a healthy one costs next to nothing.
"""

import math
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.dtypes import WORDS
from leafwise.inspect.reading import Read
from leafwise.inspect.seen import Of, Seen

SHORT = 8  # a line of fewer numbers may be like another by chance
NEAR = 1e-3  # lines are nearly the same if their distance is below so much of their length

Bands = Iterator[tuple[int, Any]]

_SAMPLED = 16  # numbers of each line
_CELL = 300 * NEAR  # how wide the cells are by which near ones are found, as a share of the length of a line
_COORDINATES = 8
_LEAST = 2.0**-120  # a line of smaller numbers is taken for one of these
_SHIFTS = np.array([0.0, 0.31, 0.67], np.float32)  # what lies on two sides of a wall in one grid does not in another
_SEED = 20_240_229
_ONTO = np.random.default_rng(_SEED).standard_normal((_SAMPLED, _COORDINATES))
_ODD = np.random.default_rng(_SEED).integers(1, 1 << 29, _COORDINATES + 1, np.int32) * 2 + 1
_AT_ONCE = 1 << 16  # lines whose numbers are looked at together
_MOST_PAIRS = 10_000  # that are compared by their projections
MOST_MEASURED = 20  # of them, that are read in full


class Alike(NamedTuple):
    """Lines that are the same bit by bit, in groups; and pairs that are nearly, with the distance over the length."""

    same: list[list[int]]
    near: list[tuple[int, int, float]]


def zero_lines(seen: Seen, axis: int, of: Of = "value") -> Any:
    """For each place along an axis, whether all is zero there."""
    some = np.zeros(seen.shape[axis], bool)
    for start, band in seen.bands(of):
        there = band != 0
        others = tuple(one for one in range(band.ndim) if one != axis)
        if axis == 0:
            some[start : start + len(band)] = there.any(others)
        else:
            some |= there.any(others)
    return ~some


def same_rows(ones: Bands, others: Bands) -> list[int]:
    """The rows of two arrays of one shape and dtype that are the same, bit by bit."""
    found: list[int] = []
    for (start, a), (_, b) in zip(ones, others, strict=True):
        bits = [_lines(np.ascontiguousarray(one), 0).view(np.uint8) for one in (a, b)]
        found += (start + np.flatnonzero((bits[0] == bits[1]).all(1))).tolist()
    return found


def alike(seen: Seen, axis: int) -> Alike:
    """Which lines along an axis, 0 or 1, are the same, or nearly."""
    shape = seen.shape
    length = prod(shape) // shape[axis]
    few = -(-_SAMPLED // max(prod(shape[2:]), 1))
    index = (slice(None), slice(0, few)) if axis == 0 else (slice(0, few), slice(None))
    read, scale = seen.reader(), _scale(seen)
    sample = np.moveaxis(read(index), axis, 0)
    suspects = _suspects(len(sample), lambda lines: _lines(_doubles(sample[lines], scale), 0)[:, :_SAMPLED])
    if not suspects.size:
        return Alike([], [])
    prints, projected, lengths = _whole(seen, axis, suspects, length, scale)
    same = _same(suspects, prints, lengths)
    if length < SHORT:
        # Short ones may be the same by chance; but hardly all of them.
        return Alike(same if sum(map(len, same)) == shape[axis] and len(same) == 1 else [], [])
    alone = np.setdiff1d(np.arange(len(suspects)), [np.searchsorted(suspects, one) for its in same for one in its[1:]])
    near = _near(suspects[alone], projected[alone], lengths[alone])[:MOST_MEASURED]
    return Alike(same, [one for one in (_measured(read, axis, scale, *pair) for pair in near) if one[2] < NEAR])


def _scale(seen: Seen) -> float:
    """A power of two that brings the largest number near one, so that no square is beyond all floats."""
    largest = seen.row.absmax if seen.row is not None and seen.row.finite else 0
    return 2.0 ** -max(min(math.frexp(largest)[1], 1000), -1000) if largest else 1.0


def _doubles(array: Any, scale: float) -> Any:
    """Numbers in double precision, scaled; zeros for what is not finite."""
    with np.errstate(invalid="ignore"):  # for a float8 that is NaN
        found = np.asarray(array, np.float64) * scale
    return np.where(np.isfinite(found), found, 0)


def _lines(array: Any, axis: int) -> Any:
    """An array as a matrix whose rows are the lines along an axis."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _suspects(count: int, numbers_of: Callable[[Any], Any]) -> Any:
    """The lines that have another one near them, by a few of their numbers; and perhaps some that have none. There may
    be millions, so that little is kept of each, and their numbers are asked for some at a time."""
    if count < 2:
        return np.array([], int)
    words = np.empty((len(_SHIFTS), count), np.int32)
    for start in range(0, count, _AT_ONCE):
        words[:, start : start + _AT_ONCE] = _cells(numbers_of(slice(start, start + _AT_ONCE)))
    found = []
    for cells in words:
        ordered = np.sort(cells)
        if not (ordered[1:] == ordered[:-1]).any():  # as mostly, and much faster than to find out where
            continue
        order = np.argsort(cells)
        ordered = cells[order]
        places = np.flatnonzero(ordered[1:] == ordered[:-1])
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            one, other = order[some], order[some + 1]
            # In one cell by chance are those that are apart in their other numbers.
            here, there = numbers_of(one), numbers_of(other)
            meet = np.square(here - there).sum(1) <= np.square(_CELL) * np.square(here).sum(1)
            found += [one[meet], other[meet]]
    return np.unique(np.concatenate(found)) if found else np.array([], int)


def _cells(numbers: Any) -> Any:
    """For each line, the cell that it lies in, as a word, in each of several grids."""
    # Each line in its own measure, a power of two, so that small lines are not all in one cell; and by numbers that
    # depend on all of the sample, of which most may be zero.
    size = np.maximum(np.linalg.norm(numbers, axis=1), _LEAST)
    measure = np.frexp(size * np.exp2(_SHIFTS)[:, None])[1]
    mixed = (numbers @ _ONTO[: numbers.shape[1]]).astype(np.float32)
    cells = mixed * np.ldexp(np.float32(2 / _CELL), -measure)[:, :, None]
    cells += _SHIFTS[:, None, None]
    return np.floor(cells, out=cells).astype(np.int32) @ _ODD[1:] + measure * _ODD[0]


def _whole(seen: Seen, axis: int, suspects: Any, length: int, scale: float) -> tuple[Any, Any, Any]:
    """Of each suspect a word for its bits, a projection to a few numbers that keeps distances, and its length."""
    random = np.random.default_rng(_SEED)
    words = np.zeros(len(suspects), np.uint64)
    projected = np.zeros((len(suspects), _SAMPLED))
    squares = np.zeros(len(suspects))
    if axis == 0:
        onto = random.standard_normal((length, _SAMPLED))
        weights = _weights(random, length)
    for start, band in seen.bands():
        if axis == 0:
            first, last = np.searchsorted(suspects, (start, start + len(band)))
            if first == last:
                continue
            lines, where = _lines(band, 0)[suspects[first:last] - start], slice(first, last)
        else:
            # A band has a part of every column; what follows from it is added up.
            lines, where = _lines(band, 1)[suspects], slice(None)
            onto = random.standard_normal((lines.shape[1], _SAMPLED))
            weights = _weights(random, lines.shape[1])
        words[where] += _fingerprints(lines, weights)
        numbers = _doubles(lines, scale)
        projected[where] += numbers @ onto
        squares[where] += np.square(numbers).sum(1)
    return words, projected / np.sqrt(_SAMPLED), np.sqrt(squares)


def _weights(random: Any, count: int) -> Any:
    return random.integers(1, 1 << 63, count, np.uint64) * np.uint64(2) + np.uint64(1)


def _fingerprints(lines: Any, weights: Any) -> Any:
    bits = np.ascontiguousarray(lines).view(WORDS[lines.itemsize])
    with np.errstate(over="ignore"):
        return (bits.astype(np.uint64) * weights).sum(1)


def _same(suspects: Any, words: Any, lengths: Any) -> list[list[int]]:
    """Groups of lines that are the same; zeros are told elsewhere."""
    groups: dict[int, list[int]] = {}
    for line, word, size in zip(suspects.tolist(), words.tolist(), lengths.tolist(), strict=True):
        if size:
            groups.setdefault(word, []).append(line)
    return [its for its in groups.values() if len(its) > 1]


def _near(suspects: Any, projected: Any, lengths: Any) -> list[tuple[int, int]]:
    """Pairs that are near, as far as their projections tell."""
    close = _suspects(len(projected), projected.__getitem__)
    found = []
    for one, other in _neighbours(projected[close]):
        a, b = close[one], close[other]
        size = max(lengths[a], lengths[b])
        away = float(np.linalg.norm(projected[a] - projected[b]) / size) if size else 0.0
        if 0 < away < 2 * NEAR:
            found.append((int(suspects[a]), int(suspects[b])))
    return found


def _measured(read: Read, axis: int, scale: float, one: int, other: int) -> tuple[int, int, float]:
    """Two lines with their distance over their length, by all of their numbers."""
    boxes = [(*[slice(None)] * axis, slice(line, line + 1)) for line in (one, other)]
    a, b = (_doubles(read(box), scale) for box in boxes)
    return one, other, float(np.linalg.norm(a - b) / (max(np.linalg.norm(a), np.linalg.norm(b)) or 1))


def _neighbours(projected: Any) -> Iterator[tuple[int, int]]:
    """Pairs that may be near: each with what follows it in the order of one coordinate, as long as that is near."""
    order = np.argsort(projected[:, 0])
    reach = 4 * NEAR * np.linalg.norm(projected, axis=1)
    told = 0
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            if projected[other, 0] - projected[one, 0] > reach[one] or told >= _MOST_PAIRS:
                break
            told += 1
            yield int(one), int(other)
