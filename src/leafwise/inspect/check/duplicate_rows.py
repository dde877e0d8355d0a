"""Rows and columns of a matrix that are duplicates or near-duplicates of others.

A line is a row or a column. A few numbers of each line suffice to distinguish almost all lines (`kernels/lines.py`).
Lines that agree in these numbers are suspects. The whole matrix is read, one band at a time, only if there are any, so
a matrix without duplicates costs very little. On a GPU, all matrices are searched at once and in place (`Searching`).
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.capabilities.measuring import Reader
from leafwise.core.capabilities.searching import LineSums, Searching
from leafwise.core.dtypes import WORDS
from leafwise.inspect.check.check_ranks import CheckRanks
from leafwise.inspect.check.leaf_evidence import LeafEvidence, Place, SentLeaf, search_by_workers, searched_together
from leafwise.kernels.lines import NEAR, SAMPLED, Directions, as_doubles, near_lines

SHORT = 8  # lines with fewer numbers may be equal by chance
MOST_MEASURED = 20  # pairs read in full
_MOST_PAIRS = 10_000  # pairs compared by their projections
_SAMPLES_AT_ONCE = 1 << 22  # numbers that ranks send each other at once
_THREADS, _LARGE_BYTES = 2, 1 << 20  # threads are used if the mean size of the matrices is above this many bytes

Bands = Iterator[tuple[int, Any]]
AnyLeaf = LeafEvidence | SentLeaf


class Duplicates(NamedTuple):
    """Groups of lines that are equal bit by bit; and pairs of nearly equal lines, each with their distance relative to
    the norm."""

    same: list[list[int]]
    near: list[tuple[int, int, float]]


_NONE = Duplicates([], [])


def same_rows(bands: Bands, baseline: Bands) -> list[int]:
    """The rows in which two arrays of the same shape and dtype are equal bit by bit."""
    same: list[int] = []
    for (start, band), (_, before) in zip(bands, baseline, strict=True):
        bits, bits_before = (_lines(np.ascontiguousarray(array), 0).view(np.uint8) for array in (band, before))
        same += (start + np.flatnonzero((bits == bits_before).all(1))).tolist()
    return same


def all_duplicate_rows(places: list[Place]) -> list[Duplicates]:
    """For each leaf and axis, 0 or 1, which lines are equal or nearly equal."""
    if places and (ranks := places[0][0].ranks) is not None:
        return _across_ranks(ranks, places)
    duplicates, others = searched_together(places, "value", _in_place)
    left = [places[number] for number in others]
    workers = places[0][0].workers if places else None
    searched = _search_here(left) if workers is None else search_by_workers(workers, duplicate_rows, left)
    duplicates |= zip(others, searched, strict=True)
    return [duplicates[number] for number in range(len(places))]


def _search_here(places: list[Place]) -> list[Duplicates]:
    # Large matrices in files mostly wait for mapped memory, which threads can do in parallel; for small ones Python
    # itself is the bottleneck.
    if sum(leaf.spec.nbytes for leaf, _ in places) <= _LARGE_BYTES * len(places):
        return [duplicate_rows(*place) for place in places]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda place: duplicate_rows(*place), places))


def _across_ranks(ranks: CheckRanks, places: list[Place]) -> list[Duplicates]:
    """The same for leaves that are sharded over ranks: a few numbers of many lines are read at once."""
    duplicates: list[Duplicates] = []
    bundle: list[Place] = []
    size = 0
    for number, (leaf, axis) in enumerate(places, 1):
        bundle.append((leaf, axis))
        size += leaf.shape[axis] * SAMPLED
        if size >= _SAMPLES_AT_ONCE or number == len(places):
            samples = ranks.read([(member.number, _sampled(member.shape, side)) for member, side in bundle])
            duplicates += [duplicate_rows(*place, sample) for place, sample in zip(bundle, samples, strict=True)]
            bundle, size = [], 0
    return duplicates


def _sampled(shape: tuple[int, ...], axis: int) -> tuple[slice, slice]:
    """The box with the first few numbers of each line."""
    few = -(-SAMPLED // max(prod(shape[2:]), 1))
    return (slice(None), slice(0, few)) if axis == 0 else (slice(0, few), slice(None))


def duplicate_rows(leaf: AnyLeaf, axis: int, sample: Any = None) -> Duplicates:
    """Which lines along an axis, 0 or 1, are equal or nearly equal. `sample` has the first numbers of each line, if
    they were read already."""
    read, scale = leaf.reader(), _scale(leaf)
    sample = np.moveaxis(read(_sampled(leaf.shape, axis)) if sample is None else sample, axis, 0)
    suspects = near_lines(len(sample), lambda lines: _lines(as_doubles(sample[lines], scale), 0)[:, :SAMPLED])
    if not _may_be_duplicates(leaf, axis, suspects):
        return _NONE
    return _duplicates(leaf, axis, suspects, _full_lines(leaf, axis, suspects, scale), read)


def _in_place(searching: Searching, places: list[Place]) -> list[Duplicates] | None:
    """The same for many leaves and axes at once, for arrays that are searched where they are."""
    lines = [leaf.lines(axis, scale=_scale(leaf)) for leaf, axis in places]
    suspects = searching.near_lines(lines)
    if suspects is None:
        return None
    numbers = [number for number, lines_near in suspects.items() if _may_be_duplicates(*places[number], lines_near)]
    sums = searching.line_sums([(lines[number], suspects[number]) for number in numbers])
    if sums is None:
        return None
    duplicates = [_NONE] * len(places)
    for number, sums_of_leaf in zip(numbers, sums, strict=True):
        leaf, axis = places[number]
        duplicates[number] = _duplicates(leaf, axis, suspects[number], sums_of_leaf)
    return duplicates


def _may_be_duplicates(leaf: AnyLeaf, axis: int, suspects: Any) -> bool:
    """Whether suspects may be reported. Some short lines may be equal by chance, but hardly all of them."""
    return bool(suspects.size) and (_length(leaf, axis) >= SHORT or len(suspects) == leaf.shape[axis])


def _length(leaf: AnyLeaf, axis: int) -> int:
    """The number of values of a line."""
    return prod(leaf.shape) // leaf.shape[axis]


def _duplicates(leaf: AnyLeaf, axis: int, suspects: Any, sums: LineSums, read: Reader | None = None) -> Duplicates:
    """The duplicates among suspects."""
    same = _same(suspects, sums.fingerprints, sums.norms)
    if _length(leaf, axis) < SHORT:
        return Duplicates(same if sum(map(len, same)) == leaf.shape[axis] and len(same) == 1 else [], [])
    copies = [np.searchsorted(suspects, line) for group in same for line in group[1:]]
    distinct = np.setdiff1d(np.arange(len(suspects)), copies)
    near = _near_pairs(suspects[distinct], sums.projections[distinct], sums.norms[distinct])[:MOST_MEASURED]
    if not near:
        return Duplicates(same, [])
    read, scale = read or leaf.reader(), _scale(leaf)
    measured = [(first, second, _distance(read, axis, scale, first, second)) for first, second in near]
    return Duplicates(same, [pair for pair in measured if pair[2] < NEAR])


def _scale(leaf: AnyLeaf) -> float:
    """A power of two that brings the largest number near one, so that no square overflows."""
    largest = leaf.stats.absmax if leaf.stats is not None and leaf.stats.finite else 0
    return 2.0 ** -max(min(math.frexp(largest)[1], 1000), -1000) if largest else 1.0


def _lines(array: Any, axis: int) -> Any:
    """An array as a matrix whose rows are the lines along an axis."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _full_lines(leaf: AnyLeaf, axis: int, suspects: Any, scale: float) -> LineSums:
    """Sums over all numbers of the suspects."""
    fingerprints = np.zeros(len(suspects), np.uint64)
    projected = np.zeros((len(suspects), SAMPLED))
    squares = np.zeros(len(suspects))
    directions = Directions()
    if axis == 0:
        onto, weights = directions.draw(_length(leaf, axis))
    for start, band in leaf.bands():
        if axis == 0:
            first, last = np.searchsorted(suspects, (start, start + len(band)))
            if first == last:
                continue
            lines, where = _lines(band, 0)[suspects[first:last] - start], slice(first, last)
        else:
            # A band contains a part of every column, so the results are summed over bands.
            lines, where = _lines(band, 1)[suspects], slice(None)
            onto, weights = directions.draw(lines.shape[1])
        fingerprints[where] += _fingerprints(lines, weights)
        numbers = as_doubles(lines, scale)
        projected[where] += numbers @ onto
        squares[where] += np.square(numbers).sum(1)
    return LineSums(fingerprints, projected / np.sqrt(SAMPLED), np.sqrt(squares))


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
    close = near_lines(len(projected), projected.__getitem__)
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
    a, b = (as_doubles(read(box), scale) for box in boxes)
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
