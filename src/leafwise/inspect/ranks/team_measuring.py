"""Statistics of arrays that are sharded over ranks: each measures its parts, and the results are collected once."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.sharding import Team
from leafwise.core.home import Home
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.results.moments import COUNTS, HIGHEST, LOWEST, NUMBERS, Moments, merged_moments, nothing
from leafwise.core.work.progress import Count
from leafwise.core.work.ranks import is_shared_out
from leafwise.inspect.indices import MOST, nonfinite_places
from leafwise.inspect.ranks.teamwork import collect, collect_combined, counted_parts
from leafwise.kernels.cpu import trimmed

COMBINED_AT_ONCE = 1 << 14  # leaves, which take 36 MB
_LEAVES_AT_ONCE = 64  # leaves whose nonfinite values are collected together, to bound the memory

_BINS = HIGHEST - LOWEST + 1
_EXTREMES = NUMBERS.index("min"), NUMBERS.index("max")
_FLOAT, _SIGNED, _UNSIGNED = range(3)  # what the extremes are: those of integers may have more digits than a float
_WORD = 1 << 64


class TeamMeasurement:
    """The statistics of arrays over a team; begins with the parts of this rank."""

    def __init__(self, team: Team, arrays: Sequence[tuple[Home, Any]], histogram: bool, count: Count) -> None:
        self._team, self._arrays, self._histogram, self._count = team, arrays, histogram, count
        self._parts: list[list[tuple[LocalPart, Moments]]] = []

    def moments(self, agreed: Callable[[], None]) -> list[Moments]:
        """The statistics of each array. `agreed` is called before anything is collected."""
        failure: Exception | None = None
        own: list[Moments | None] = []
        try:
            self._parts = self._measured_parts()
            own = [None if not parts else merged_moments([moments for _, moments in parts]) for parts in self._parts]
        except Exception as error:  # the other ranks must learn of it
            failure = error

        def result() -> list[Moments | None]:
            if failure is not None:
                raise failure
            return own

        agreed()
        size = _packed_size(len(self._arrays), self._histogram)
        if is_shared_out(self._team, size):
            return self._combined(result)
        return _merged(collect(self._team, lambda: _pack(result(), self._histogram), size), self._histogram)

    def _combined(self, result: Callable[[], list[Moments | None]]) -> list[Moments]:
        """The statistics of each array, of which every rank combines a share: the same bits as if all of them combined
        all of them."""
        histogram = self._histogram
        every: list[Moments] = []
        for start in range(0, len(self._arrays), COMBINED_AT_ONCE):
            stop = min(start + COMBINED_AT_ONCE, len(self._arrays))

            def work(start: int = start, stop: int = stop) -> Callable[[range], bytes]:
                packed = _pack(result()[start:stop], histogram)
                return lambda share: packed[_packed_size(share.start, histogram) : _packed_size(share.stop, histogram)]

            def combine(share: range, results: list[bytes]) -> bytes:
                return _pack(_merged(results, histogram), histogram)

            shares = collect_combined(self._team, stop - start, work, combine)
            every += _merged([b"".join(shares)], histogram)
        return every

    def _measured_parts(self) -> list[list[tuple[LocalPart, Moments]]]:
        """For each array, its parts that count on this rank, with their statistics."""
        parts = [counted_parts(home, value, self._team) for home, value in self._arrays]
        by_home: dict[Home, list[tuple[int, LocalPart]]] = {}
        for number, (home, _) in enumerate(self._arrays):
            by_home.setdefault(home, []).extend((number, part) for part in parts[number])
        measured: list[list[tuple[LocalPart, Moments]]] = [[] for _ in parts]
        started = [
            (
                places,
                home.capability(Measuring).measure([part.value for _, part in places], self._histogram, self._count),
            )
            for home, places in by_home.items()
            if places
        ]
        for places, wait in started:
            for (number, part), moments in zip(places, wait(), strict=True):
                measured[number].append((part, moments))
        return measured

    def nonfinite_positions(self, moments: Sequence[Moments]) -> dict[int, Any]:
        """For each array with NaN or infinite values, by its number, their positions in C order; at most the first
        10,000."""
        numbers = [number for number, whole in enumerate(moments) if whole.finite < whole.count]
        positions: dict[int, Any] = {}
        for start in range(0, len(numbers), _LEAVES_AT_ONCE):
            bundle = numbers[start : start + _LEAVES_AT_ONCE]
            collected = collect(self._team, partial(self._own_positions, bundle))
            by_rank = [_unpacked(result) for result in collected]
            for place, number in enumerate(bundle):
                positions[number] = np.sort(np.concatenate([of_rank[place] for of_rank in by_rank]))[:MOST]
        return positions

    def _own_positions(self, numbers: list[int]) -> bytes:
        arrays = [self._positions_here(number) for number in numbers]
        header = json.dumps([len(array) for array in arrays]).encode()
        return len(header).to_bytes(8, "big") + header + b"".join(array.tobytes() for array in arrays)

    def _positions_here(self, number: int) -> Any:
        home, value = self._arrays[number]
        shape = home.spec(value).shape or ()
        positions = [np.array([], np.int64)]
        for part, moments in self._parts[number]:
            total = moments.count - moments.finite
            if not total:
                continue
            if not shape:
                positions.append(np.zeros(1, np.int64))
                continue
            indices = np.array(nonfinite_places(home, part.value, part.shape, total).indices, np.int64)
            inside = indices.reshape(-1, len(shape)) + np.array(part.first, np.int64)
            positions.append(np.ravel_multi_index(tuple(inside.T), shape))
        # Each part has its own first values; together they contain the first ones of all.
        return np.sort(np.concatenate(positions))[:MOST]


def _unpacked(result: bytes) -> list[Any]:
    end = 8 + int.from_bytes(result[:8], "big")
    sizes = json.loads(result[8:end])
    values = np.frombuffer(result[end:], np.int64)
    return np.split(values, np.cumsum(sizes)[:-1]) if sizes else []


# -- the statistics of the parts of each rank, as bytes of a fixed size ------------------------------------------------


def _row(histogram: bool) -> Any:
    fields: list[Any] = [
        ("counts", np.int64, (len(COUNTS),)),
        ("numbers", np.float64, (len(NUMBERS),)),
        ("kind", np.int64),
        ("extremes", np.uint64, (2,)),
    ]
    return np.dtype(fields + [("bins", np.int64, (_BINS,))] * histogram)


def _packed_size(count: int, histogram: bool) -> int:
    """The number of bytes of the statistics of so many leaves."""
    return count * int(_row(histogram).itemsize)


def _pack(moments: Sequence[Moments | None], histogram: bool) -> bytes:
    """The statistics of the part of each leaf that is on this rank; None if there is none."""
    rows = np.zeros(len(moments), _row(histogram))
    present = [number for number, part in enumerate(moments) if part is not None]
    parts = [part for part in moments if part is not None]
    if not parts:
        return rows.tobytes()
    rows["counts"][present] = [[getattr(part, name) for name in COUNTS] for part in parts]
    rows["numbers"][present] = [[getattr(part, name) for name in NUMBERS] for part in parts]
    for number, part in zip(present, parts, strict=True):
        if type(part.min) is int and type(part.max) is int:
            rows["kind"][number] = _SIGNED if part.max < _WORD // 2 else _UNSIGNED
            rows["extremes"][number] = part.min % _WORD, part.max % _WORD
        if histogram and part.histogram is not None and part.histogram.counts:
            first = part.histogram.lowest - LOWEST
            rows["bins"][number, first : first + len(part.histogram.counts)] = part.histogram.counts
    return rows.tobytes()


def _merged(results: Sequence[bytes], histogram: bool) -> list[Moments]:
    """The statistics of each leaf from those of all ranks: with the same bits on every rank, as the order is fixed."""
    rows = np.stack([np.frombuffer(result, _row(histogram)) for result in results])
    parts: list[list[Moments]] = [[] for _ in range(rows.shape[1])]
    for rank_rows in rows:
        has_values = rank_rows["counts"][:, 0] > 0
        counts, numbers = rank_rows["counts"].tolist(), rank_rows["numbers"].tolist()
        kinds, extremes = rank_rows["kind"].tolist(), rank_rows["extremes"].tolist()
        for leaf in np.flatnonzero(has_values).tolist():
            if kinds[leaf] != _FLOAT:
                for place, word in zip(_EXTREMES, extremes[leaf], strict=True):
                    numbers[leaf][place] = word - _WORD * (kinds[leaf] == _SIGNED and word >= _WORD // 2)
            parts[leaf].append(Moments.of(counts[leaf], numbers[leaf], None))
    wholes = [merged_moments(of_leaf) if of_leaf else nothing(None) for of_leaf in parts]
    if histogram:
        for whole, bins in zip(wholes, trimmed(rows["bins"].sum(0)), strict=True):
            whole.histogram = bins
    return wholes
