"""Comparing arrays of which at least one is sharded over ranks.

If both sides have the same shape, each rank compares its parts with the same boxes of the other side, which it reads
only there, and the results are collected once. If both are sharded, but in different ways, or if one is the other in
another shape, all ranks read both together, a band at a time.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.measuring import Reader, reader
from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.home import Home, Spec
from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.pairing.row_pairs import NamedArray, NamedArrays
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.core.work.progress import Count
from leafwise.core.work.ranks import is_shared_out
from leafwise.inspect.ranks.spread_arrays import SPREAD, SpreadArray, band_boxes, read_boxes
from leafwise.inspect.ranks.teamwork import array_fact, cannot_match, collect, collect_combined, counted_parts
from leafwise.inspect.value_comparison import (
    Verdict,
    compare_values,
    own_files,
    sampled_boxes,
    unread_error,
    verdict_by_elements,
    verdict_without_values,
)
from leafwise.kernels import streams
from leafwise.kernels.comparing import compare
from leafwise.kernels.dtypes import item_bytes, unknown_dtype

Pair = tuple[NamedArray, NamedArray]
_SAMPLED_AT_ONCE = 256  # pairs
_PART_BYTES = 200  # of the comparison of a part, about


class _PartResult(NamedTuple):
    """How a part of a pair compares, and whether casting one side gives the other."""

    pair: int
    comparison: Comparison
    forth: bool
    back: bool


_pair_of = attrgetter("pair")


class _PartResults(NamedTuple):
    """The comparisons of parts, and the numbers of pairs whose sides have different parts."""

    differ: list[int]  # sorted
    parts: list[_PartResult]  # sorted by pair

    def of(self, share: range) -> bytes:
        """Those of some pairs, as JSON."""
        differ = self.differ[bisect_left(self.differ, share.start) : bisect_left(self.differ, share.stop)]
        first, end = (bisect_left(self.parts, number, key=_pair_of) for number in (share.start, share.stop))
        return json.dumps([differ, self.parts[first:end]]).encode()


def pair_facts(firsts: NamedArrays, seconds: NamedArrays) -> list[tuple[str, str]]:
    """The name of each pair, and what all ranks must have there."""
    return [
        (first.name, f"{_fact(first)} and {second.name} {_fact(second)}")
        for first, second in zip(firsts, seconds, strict=True)
    ]


def side_facts(arrays: NamedArrays) -> list[tuple[str, str]]:
    """The name of each array, and what all ranks must have there."""
    return [(array.name, _fact(array)) for array in arrays]


def _fact(array: NamedArray) -> str:
    return array_fact(array.spec, cannot_match(array.home, array.value, array.spec))


def compare_by_team(team: Team, firsts: NamedArrays, seconds: NamedArrays, count: Count) -> list[Verdict]:
    """A verdict for each pair, the same on every rank."""
    pairs = list(zip(firsts, seconds, strict=True))
    verdicts: dict[int, Verdict] = {}
    whole: list[int] = []
    by_parts: list[int] = []
    together_read: list[int] = []
    for number, (first, second) in enumerate(pairs):
        if (verdict := _verdict_before_reading(first, second)) is not None:
            verdicts[number] = verdict
        elif first.spec.sharding is None and second.spec.sharding is None:
            whole.append(number)
        else:
            (by_parts if _have_the_same_parts(first.spec, second.spec) else together_read).append(number)
    verdicts |= zip(whole, _compare_on_first_rank(team, [pairs[number] for number in whole], count), strict=True)
    compared = _compare_parts(team, [pairs[number] for number in by_parts], count)
    for number, part_verdict in zip(by_parts, compared, strict=True):
        if part_verdict is None:
            together_read.append(number)
        else:
            verdicts[number] = part_verdict
    changed = [number for number in by_parts if number in verdicts and verdicts[number].kinds == {"changed"}]
    together_read += _perhaps_transposed(team, pairs, changed)
    spread = [(_spread(team, pairs[number][0]), _spread(team, pairs[number][1])) for number in together_read]
    verdicts |= zip(together_read, compare_values(spread, count), strict=True)
    return [verdicts[number] for number in range(len(pairs))]


def _verdict_before_reading(first: NamedArray, second: NamedArray) -> Verdict | None:
    reason = cannot_match(*first[1:4]) or cannot_match(*second[1:4])
    verdict = verdict_without_values(first.spec, second.spec, reason)
    is_sharded = first.spec.sharding is not None or second.spec.sharding is not None
    if verdict is None and is_sharded:
        for dtype in (first.spec.dtype, second.spec.dtype):
            if not streams.is_numpy_dtype(dtype):
                return Verdict.of("unknown", reason=f"sharded arrays of dtype {dtype} are not compared")
    return verdict


def _have_the_same_parts(spec: Spec, partner: Spec) -> bool:
    """Whether each rank can compare its parts by itself: the other side is whole, or sharded in the same way."""
    if spec.shape != partner.shape:
        return False
    return None in (spec.sharding, partner.sharding) or spec.sharding == partner.sharding


def _spread(team: Team, array: NamedArray) -> NamedArray:
    here = [(array.home, array.value)]
    return array._replace(home=SPREAD, value=SpreadArray(array.spec, lambda box: read_boxes(team, here, [box])[0]))


# -- whole arrays ----------------------------------------------------------------------------------------------------


def _compare_on_first_rank(team: Team, pairs: list[Pair], count: Count) -> list[Verdict]:
    """The verdicts on pairs of whole arrays, of which every rank has a copy."""
    if not pairs:
        return []

    def work() -> bytes:
        if team.rank:
            return b""
        verdicts = compare_values(pairs, count)
        return json.dumps([(sorted(kinds), comparison, reason) for kinds, comparison, reason in verdicts]).encode()

    return [
        Verdict(frozenset(kinds), None if comparison is None else _comparison(comparison), reason)
        for kinds, comparison, reason in json.loads(collect(team, work)[0])
    ]


def _comparison(fields: Sequence[Any]) -> Comparison:
    comparison = Comparison(*fields)
    return comparison._replace(scaled=tuple((number, power) for number, power in comparison.scaled))


# -- parts -----------------------------------------------------------------------------------------------------------


def _compare_parts(team: Team, pairs: list[Pair], count: Count) -> list[Verdict | None]:
    """The verdict on each pair from the parts of all ranks, but not whether one side is the other transposed. None for
    a pair whose sides have different parts, as on meshes of the same shape with the ranks in another order."""
    if not pairs:
        return []
    every = range(len(pairs))
    if is_shared_out(team, _PART_BYTES * len(pairs)):
        results = collect_combined(
            team,
            len(pairs),
            lambda: _own_results(team, pairs, count).of,
            lambda share, results: _joined(results).of(share),
        )
    else:
        results = collect(team, lambda: _own_results(team, pairs, count).of(every))
    joined = _joined(results)
    by_pair = {part.pair: part for part in joined.parts}
    missing = _PartResult(0, Comparison(0, 0), True, True)  # of an empty array, of which no rank has a part
    return [
        None if number in joined.differ else _verdict(pairs[number], by_pair.get(number, missing)) for number in every
    ]


def _joined(results: list[bytes]) -> "_PartResults":
    """The comparisons of the parts of several ranks, in the order of the ranks, as one for each pair."""
    differ: set[int] = set()
    by_pair: dict[int, list[_PartResult]] = {}
    for data in results:
        unequal, parts = json.loads(data)
        differ.update(unequal)
        for pair, comparison, forth, back in parts:
            by_pair.setdefault(pair, []).append(_PartResult(pair, _comparison(comparison), forth, back))
    return _PartResults(
        sorted(differ),
        [
            _PartResult(
                pair,
                merged_comparisons(part.comparison for part in parts if part.comparison.size),
                all(part.forth for part in parts),
                all(part.back for part in parts),
            )
            for pair, parts in sorted(by_pair.items())
        ],
    )


def _verdict(pair: Pair, part: _PartResult) -> Verdict:
    spec, partner = pair[0].spec, pair[1].spec
    comparison = part.comparison
    if not comparison.changed:
        comparison = Comparison(comparison.size, 0)  # like that of whole arrays
    assert comparison.size == spec.size, "the parts of all ranks are the whole array"
    return verdict_by_elements(spec, partner, comparison, part.forth or part.back)


def _own_results(team: Team, pairs: list[Pair], count: Count) -> "_PartResults":
    """The comparisons of the parts of this rank, and the numbers of pairs whose sides have different parts."""
    differ: list[int] = []
    results: list[_PartResult] = []
    runs: list[tuple[int, Run, Run]] = []
    with ExitStack() as files:
        own_file = own_files(files)
        for number, (first, second) in enumerate(pairs):
            sharded, other = (first, second) if first.spec.sharding is not None else (second, first)
            parts = counted_parts(sharded.home, sharded.value, team)
            boxes = _BoxesOfSide(sharded, own_file), _BoxesOfSide(other, own_file)
            if other.spec.sharding is not None and not boxes[1].has_parts(boxes[0].parts):
                differ.append(number)
                continue
            sides = boxes if sharded is first else boxes[::-1]
            for part in parts:
                pair_of_runs = [side.run(part) for side in sides]
                if None not in pair_of_runs and first.spec.dtype == second.spec.dtype:
                    runs.append((number, *pair_of_runs))  # type: ignore[arg-type]
                else:
                    compared = streams.compare_parts(sides[0].bands(part), sides[1].bands(part), count)
                    results.append(_PartResult(number, compared.comparison, compared.forth, compared.back))
        try:
            comparisons = compare([(run, partner) for _, run, partner in runs], count, norms=True)
        except UnreadError as error:
            raise unread_error(pairs[runs[error.number][0]][error.side]) from error
    results += [
        _PartResult(number, comparison, True, True) for (number, *_), comparison in zip(runs, comparisons, strict=True)
    ]
    return _PartResults(differ, sorted(results, key=_pair_of))


class _BoxesOfSide:
    """One side of a pair, of which boxes are read: a sharded array, whose boxes are its parts, or a whole one."""

    def __init__(self, array: NamedArray, own_file: Callable[[Run], Run]) -> None:
        self._array, self._own_file = array, own_file
        self._home: Home = array.home
        self.parts: list[LocalPart] | None = None
        if array.spec.sharding is not None:
            self.parts = array.home.capability(Distributing).parts(array.value)
        self._read: Reader | None = None

    def has_parts(self, parts: list[LocalPart] | None) -> bool:
        """Whether this side is sharded into the same boxes."""
        return parts is not None and self.parts is not None and _places(parts) == _places(self.parts)

    def _part(self, box: LocalPart) -> LocalPart:
        assert self.parts is not None
        return next(part for part in self.parts if (part.first, part.shape) == (box.first, box.shape))

    def run(self, box: LocalPart) -> Run | None:
        """The elements of a box as a run; None if they are not contiguous, or not in the memory of the CPU or a local
        file."""
        comparing = self._home.capability(Comparing)
        if self.parts is not None:
            return comparing.contiguous_run(self._part(box).value)
        run = comparing.contiguous_run(self._array.value)
        shape = self._array.spec.shape or ()
        if run is None or unknown_dtype(run.dtype) or box.shape[1:] != shape[1:]:
            return None
        start = box.first[0] * prod(shape[1:]) if shape else 0
        return self._own_file(run._replace(address=run.address + start * item_bytes(run.dtype), size=prod(box.shape)))

    def bands(self, box: LocalPart) -> Iterator[Any]:
        """The elements of a box in C order, as NumPy arrays."""
        if self.parts is not None:
            read, first = reader(self._home, self._part(box).value), (0,) * len(box.first)
        else:
            self._read = self._read or reader(self._home, self._array.value)
            read, first = self._read, box.first
        for band in band_boxes(box.shape):
            full = [*band, *(slice(0, size) for size in box.shape[len(band) :])]
            yield read(tuple(slice(at + part.start, at + part.stop) for at, part in zip(first, full, strict=True)))


def _places(parts: list[LocalPart]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(part.first, part.shape) for part in parts]


def _perhaps_transposed(team: Team, pairs: list[Pair], numbers: list[int]) -> list[int]:
    """The pairs of square matrices that may be each other's transpose, judged by a few elements."""
    square = [number for number in numbers if sampled_boxes(pairs[number][0].spec.shape)]
    similar = []
    for start in range(0, len(square), _SAMPLED_AT_ONCE):
        bundle = square[start : start + _SAMPLED_AT_ONCE]
        arrays: list[tuple[Home, Any]] = []
        boxes: list[tuple[slice, ...]] = []
        for number in bundle:
            first, second = pairs[number]
            for box in sampled_boxes(first.spec.shape):
                arrays += [(first.home, first.value), (second.home, second.value)]
                boxes += [box, box[::-1]]
        values = read_boxes(team, arrays, boxes)
        each = len(values) // len(bundle)
        for place, number in enumerate(bundle):
            samples = values[place * each : (place + 1) * each]
            if all(streams.agree(x, y) for x, y in zip(samples[::2], samples[1::2], strict=True)):
                similar.append(number)
    return similar
