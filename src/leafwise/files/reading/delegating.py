"""Measures and compares arrays of files in other processes. Arrays are cut at multiples of a chunk, and the results of
chunks are combined in order, so that the bits of the results do not depend on the cuts."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from leafwise.core.capabilities.delegating import Delegating
from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.comparison import Comparison
from leafwise.core.results.moments import Moments, merged_moments
from leafwise.core.work import executor_tasks
from leafwise.core.work.executor_tasks import Workers, run_each, task_bundles
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import ranges
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored
from leafwise.files.sources.source import LocalSource


class FileDelegating(Delegating):
    def measure(self, workers: Workers, values: list[Stored], histogram: bool, count: Count) -> list[Moments]:
        from leafwise.files.reading.measuring import StoredPart, measure_whole, runs_of

        runs = runs_of(values)
        parts = (
            StoredPart(number, values[number].spec.dtype, storage, start + at, start + end)
            for number, (storage, start, stop) in runs.items()
            for at, end in _task_ranges(stop - start, ITEM_BYTES[values[number].spec.dtype])
        )
        bundles = task_bundles(parts, lambda part: part.stop - part.start)
        by_bundle = workers.run((_MeasuringTask(bundle, histogram) for bundle in bundles), count)
        chunks: dict[int, list[Moments]] = {}
        for measured in by_bundle:
            for number, moments in measured:
                chunks.setdefault(number, []).extend(moments)
        others = [number for number in range(len(values)) if number not in runs]
        measure_one = partial(measure_whole, histogram=histogram)
        wholes = run_each(
            workers, measure_one, [values[number] for number in others], lambda value: value.spec.nbytes, count
        )
        moments_of = {number: merged_moments(moments) for number, moments in chunks.items()}
        moments_of |= zip(others, wholes, strict=True)
        return [moments_of[number] for number in range(len(values))]

    def compare(self, workers: Workers, pairs: list[tuple[Stored, Stored]], count: Count) -> list[Comparison | None]:
        from leafwise.kernels.comparing import PairPart, combined

        runs: dict[int, tuple[_StoredRun, _StoredRun]] = {}
        for number, (first, second) in enumerate(pairs):
            run, partner = first.plain_run(), second.plain_run()
            if run is not None and partner is not None:
                runs[number] = run, partner
        dtypes = [pairs[number][0].spec.dtype for number in runs]
        sizes = [pairs[number][0].spec.size for number in runs]
        sides = list(runs.values())

        def compared(parts: list[Any], always: bool, counted: Count) -> list[Any]:
            sent = [_SentPair.of(sides[part.pair], part, dtypes[part.pair]) for part in parts]
            bundles = list(task_bundles(sent, lambda pair: pair.nbytes))
            tasks = (_ComparingTask(bundle, always) for bundle in bundles)
            results = [result for results in workers.run(tasks, counted) for result in results]
            return [
                [
                    (PairPart(part.pair, part.start + start, part.start + stop), comparison)
                    for start, stop, comparison in result
                ]
                for part, result in zip(parts, results, strict=True)
            ]

        parts = [
            PairPart(pair, at // item, end // item)
            for pair, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))
            for item in [ITEM_BYTES[dtype]]
            for at, end in _task_ranges(size * item, item)
        ]
        chunks = [chunk for part in compared(parts, False, count) for chunk in part]
        comparisons = combined(sizes, chunks, lambda same: compared(same, True, lambda nbytes: None))
        by_number = dict(zip(runs, comparisons, strict=True))
        return [by_number.get(number) for number in range(len(pairs))]


_StoredRun = tuple[Storage, int, int]  # a storage, and where the array begins and ends in it


def _task_ranges(nbytes: int, itemsize: int) -> Iterator[tuple[int, int]]:
    from leafwise.kernels.cpu import CHUNK

    return ranges(nbytes, CHUNK * itemsize, executor_tasks.TASK_BYTES)


class _MeasuringTask(NamedTuple):
    """A task: the moments of each chunk of some parts of arrays, by the number of the array."""

    parts: list[Any]
    histogram: bool

    @property
    def nbytes(self) -> int:
        return sum(part.stop - part.start for part in self.parts)

    def __call__(self) -> list[tuple[int, list[Moments]]]:
        from leafwise.files.reading.measuring import measure_parts

        chunks = measure_parts(self.parts, self.histogram)
        return [(part.array, moments) for part, moments in zip(self.parts, chunks, strict=True)]


class _SentPair(NamedTuple):
    """Two ranges of bytes of the same length, in two storages."""

    storage: Storage
    start: int
    other: Storage
    other_start: int
    nbytes: int
    dtype: str

    @classmethod
    def of(cls, sides: tuple[_StoredRun, _StoredRun], part: Any, dtype: str) -> "_SentPair":
        (storage, first, _), (other, other_first, _) = sides
        at, end = part.start * ITEM_BYTES[dtype], part.stop * ITEM_BYTES[dtype]
        return cls(storage, first + at, other, other_first + at, end - at, dtype)


class _ComparingTask(NamedTuple):
    """A task: for each pair of ranges, the comparisons of its chunks, each with the elements where the chunk begins and
    ends; one None for the whole range if both sides are equal, unless norms are needed `always`."""

    pairs: list[_SentPair]
    always: bool

    @property
    def nbytes(self) -> int:
        return sum(pair.nbytes for pair in self.pairs)

    def __call__(self) -> list[list[tuple[int, int, Comparison | None]]]:
        from leafwise.files.reading.measuring import unread
        from leafwise.kernels.comparing import PairPart, compare_parts

        runs = [
            (
                _run(pair.storage, pair.start, pair.nbytes, pair.dtype),
                _run(pair.other, pair.other_start, pair.nbytes, pair.dtype),
            )
            for pair in self.pairs
        ]
        parts = [PairPart(number, 0, first.size) for number, (first, _) in enumerate(runs)]
        try:
            compared = compare_parts(runs, parts, self.always)
        except UnreadError as error:
            pair = self.pairs[error.number]
            storage, start = (pair.other, pair.other_start) if error.side else (pair.storage, pair.start)
            raise unread(storage, start, start + pair.nbytes) from error
        return [[(part.start, part.stop, comparison) for part, comparison in chunks] for chunks in compared]


def _run(storage: Storage, start: int, nbytes: int, dtype: str) -> Run:
    from leafwise.files.reading.measuring import read_run

    source = storage.source
    if isinstance(source, LocalSource):
        return Run(storage.start + start, nbytes // ITEM_BYTES[dtype], dtype, source, source.descriptor())
    return read_run(storage, start, start + nbytes, dtype)
