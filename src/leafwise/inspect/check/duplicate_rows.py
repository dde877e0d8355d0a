"""Rows and columns of a matrix: which are zero, and which are duplicates or near-duplicates.

A line is a row or a column. A few numbers of each line suffice to distinguish almost all lines. The whole matrix is
read, one band at a time, only if some lines agree in these numbers, so a matrix without duplicates costs very little.
"""

import math
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.dtypes import WORDS
from leafwise.core.reader import Reader
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf

SHORT = 8  # lines with fewer numbers may be equal by chance
NEAR = 1e-3  # lines are nearly equal if their distance is below this share of their norm

Bands = Iterator[tuple[int, Any]]

_SAMPLED = 16  # numbers read from each line at first
_CELL = 300 * NEAR  # width of the grid cells used to find near lines, as a share of the norm of a line
_COORDINATES = 8
_LEAST = 2.0**-120  # smaller norms are treated as this one
# Of several grids: lines that a cell boundary separates in one share a cell in another.
_SHIFTS = np.array([0.0, 0.31, 0.67], np.float32)
_SEED = 20_240_229
_ONTO = np.random.default_rng(_SEED).standard_normal((_SAMPLED, _COORDINATES))
_ODD = np.random.default_rng(_SEED).integers(1, 1 << 29, _COORDINATES + 1, np.int32) * 2 + 1
_AT_ONCE = 1 << 16  # lines per batch
_MOST_PAIRS = 10_000  # pairs compared by their projections
MOST_MEASURED = 20  # pairs read in full


class Duplicates(NamedTuple):
    """Groups of lines that are equal bit by bit; and pairs of nearly equal lines, each with their distance relative to
    the norm."""

    same: list[list[int]]
    near: list[tuple[int, int, float]]


def zero_lines(leaf: LeafEvidence, axis: int, of: ValuesOf = "value") -> Any:
    """For each index along an axis, whether all values there are zero."""
    has_nonzero = np.zeros(leaf.shape[axis], bool)
    for start, band in leaf.bands(of):
        nonzero = band != 0
        along_line = tuple(number for number in range(band.ndim) if number != axis)
        if axis == 0:
            has_nonzero[start : start + len(band)] = nonzero.any(along_line)
        else:
            has_nonzero |= nonzero.any(along_line)
    return ~has_nonzero


def same_rows(bands: Bands, baseline: Bands) -> list[int]:
    """The rows in which two arrays of the same shape and dtype are equal bit by bit."""
    same: list[int] = []
    for (start, band), (_, before) in zip(bands, baseline, strict=True):
        bits, bits_before = (_lines(np.ascontiguousarray(array), 0).view(np.uint8) for array in (band, before))
        same += (start + np.flatnonzero((bits == bits_before).all(1))).tolist()
    return same


def duplicate_rows(leaf: LeafEvidence, axis: int) -> Duplicates:
    """Which lines along an axis, 0 or 1, are equal or nearly equal."""
    shape = leaf.shape
    length = prod(shape) // shape[axis]
    few = -(-_SAMPLED // max(prod(shape[2:]), 1))
    index = (slice(None), slice(0, few)) if axis == 0 else (slice(0, few), slice(None))
    read, scale = leaf.reader(), _scale(leaf)
    sample = np.moveaxis(read(index), axis, 0)
    suspects = _suspects(len(sample), lambda lines: _lines(_doubles(sample[lines], scale), 0)[:, :_SAMPLED])
    if not suspects.size:
        return Duplicates([], [])
    fingerprints, projected, lengths = _full_lines(leaf, axis, suspects, length, scale)
    same = _same(suspects, fingerprints, lengths)
    if length < SHORT:
        # Some short lines may be equal by chance, but hardly all of them.
        return Duplicates(same if sum(map(len, same)) == shape[axis] and len(same) == 1 else [], [])
    copies = [np.searchsorted(suspects, line) for group in same for line in group[1:]]
    distinct = np.setdiff1d(np.arange(len(suspects)), copies)
    near = _near_pairs(suspects[distinct], projected[distinct], lengths[distinct])[:MOST_MEASURED]
    measured = [(first, second, _distance(read, axis, scale, first, second)) for first, second in near]
    return Duplicates(same, [pair for pair in measured if pair[2] < NEAR])


def _scale(leaf: LeafEvidence) -> float:
    """A power of two that brings the largest number near one, so that no square overflows."""
    largest = leaf.stats.absmax if leaf.stats is not None and leaf.stats.finite else 0
    return 2.0 ** -max(min(math.frexp(largest)[1], 1000), -1000) if largest else 1.0


def _doubles(array: Any, scale: float) -> Any:
    """Numbers in double precision, scaled; those that are not finite become zero."""
    with np.errstate(invalid="ignore"):  # NaN in float8
        numbers = np.asarray(array, np.float64) * scale
    return np.where(np.isfinite(numbers), numbers, 0)


def _lines(array: Any, axis: int) -> Any:
    """An array as a matrix whose rows are the lines along an axis."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _suspects(count: int, numbers_of: Callable[[Any], Any]) -> Any:
    """The lines that have another line near them, judged by a few of their numbers, and perhaps a few others. There may
    be millions of lines, so little is kept of each, and their numbers are read in batches."""
    if count < 2:
        return np.array([], int)
    words = np.empty((len(_SHIFTS), count), np.int32)
    for start in range(0, count, _AT_ONCE):
        words[:, start : start + _AT_ONCE] = _cells(numbers_of(slice(start, start + _AT_ONCE)))
    suspects = []
    for cells in words:
        ordered = np.sort(cells)
        if not (ordered[1:] == ordered[:-1]).any():  # the usual case, and much faster than finding out where
            continue
        order = np.argsort(cells)
        ordered = cells[order]
        places = np.flatnonzero(ordered[1:] == ordered[:-1])
        for start in range(0, len(places), _AT_ONCE):
            batch = places[start : start + _AT_ONCE]
            lines, neighbors = order[batch], order[batch + 1]
            # Lines with very different numbers may share a cell by chance.
            numbers = numbers_of(lines)
            near = np.square(numbers - numbers_of(neighbors)).sum(1) <= np.square(_CELL) * np.square(numbers).sum(1)
            suspects += [lines[near], neighbors[near]]
    return np.unique(np.concatenate(suspects)) if suspects else np.array([], int)


def _cells(numbers: Any) -> Any:
    """For each line and each of several grids, the cell that contains the line, as an integer."""
    # Each line is scaled by its own power of two, so that small lines do not all share one cell. The coordinates mix
    # the whole sample, since most of its numbers may be zero.
    size = np.maximum(np.linalg.norm(numbers, axis=1), _LEAST)
    measure = np.frexp(size * np.exp2(_SHIFTS)[:, None])[1]
    mixed = (numbers @ _ONTO[: numbers.shape[1]]).astype(np.float32)
    cells = mixed * np.ldexp(np.float32(2 / _CELL), -measure)[:, :, None]
    cells += _SHIFTS[:, None, None]
    return np.floor(cells, out=cells).astype(np.int32) @ _ODD[1:] + measure * _ODD[0]


def _full_lines(leaf: LeafEvidence, axis: int, suspects: Any, length: int, scale: float) -> tuple[Any, Any, Any]:
    """For each suspect: a fingerprint of its bits, a projection that preserves distances, and its norm."""
    random = np.random.default_rng(_SEED)
    fingerprints = np.zeros(len(suspects), np.uint64)
    projected = np.zeros((len(suspects), _SAMPLED))
    squares = np.zeros(len(suspects))
    if axis == 0:
        onto = random.standard_normal((length, _SAMPLED))
        weights = _weights(random, length)
    for start, band in leaf.bands():
        if axis == 0:
            first, last = np.searchsorted(suspects, (start, start + len(band)))
            if first == last:
                continue
            lines, where = _lines(band, 0)[suspects[first:last] - start], slice(first, last)
        else:
            # A band contains a part of every column, so the results are summed over bands.
            lines, where = _lines(band, 1)[suspects], slice(None)
            onto = random.standard_normal((lines.shape[1], _SAMPLED))
            weights = _weights(random, lines.shape[1])
        fingerprints[where] += _fingerprints(lines, weights)
        numbers = _doubles(lines, scale)
        projected[where] += numbers @ onto
        squares[where] += np.square(numbers).sum(1)
    return fingerprints, projected / np.sqrt(_SAMPLED), np.sqrt(squares)


def _weights(random: Any, count: int) -> Any:
    return random.integers(1, 1 << 63, count, np.uint64) * np.uint64(2) + np.uint64(1)


def _fingerprints(lines: Any, weights: Any) -> Any:
    bits = np.ascontiguousarray(lines).view(WORDS[lines.itemsize])
    with np.errstate(over="ignore"):
        return (bits.astype(np.uint64) * weights).sum(1)


def _same(suspects: Any, fingerprints: Any, lengths: Any) -> list[list[int]]:
    """Groups of equal lines, except lines of zeros, which another rule reports."""
    groups: dict[int, list[int]] = {}
    for line, fingerprint, size in zip(suspects.tolist(), fingerprints.tolist(), lengths.tolist(), strict=True):
        if size:
            groups.setdefault(fingerprint, []).append(line)
    return [group for group in groups.values() if len(group) > 1]


def _near_pairs(suspects: Any, projected: Any, lengths: Any) -> list[tuple[int, int]]:
    """Pairs of lines whose projections are near each other."""
    close = _suspects(len(projected), projected.__getitem__)
    pairs = []
    for first, second in _neighbors(projected[close]):
        a, b = close[first], close[second]
        size = max(lengths[a], lengths[b])
        distance = float(np.linalg.norm(projected[a] - projected[b]) / size) if size else 0.0
        if 0 < distance < 2 * NEAR:
            pairs.append((int(suspects[a]), int(suspects[b])))
    return pairs


def _distance(read: Reader, axis: int, scale: float, first: int, second: int) -> float:
    """The distance of two lines, computed from all their numbers, relative to the larger norm."""
    boxes = [(*[slice(None)] * axis, slice(line, line + 1)) for line in (first, second)]
    a, b = (_doubles(read(box), scale) for box in boxes)
    return float(np.linalg.norm(a - b) / (max(np.linalg.norm(a), np.linalg.norm(b)) or 1))


def _neighbors(projected: Any) -> Iterator[tuple[int, int]]:
    """Pairs that may be near: lines sorted by their first coordinate, each with the next ones within reach."""
    order = np.argsort(projected[:, 0])
    reach = 4 * NEAR * np.linalg.norm(projected, axis=1)
    count = 0
    for place, first in enumerate(order):
        for second in order[place + 1 :]:
            if projected[second, 0] - projected[first, 0] > reach[first] or count >= _MOST_PAIRS:
                break
            count += 1
            yield int(first), int(second)
