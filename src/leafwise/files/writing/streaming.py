"""Streams stored arrays into a checkpoint: several threads read, compute, hash and write parts of them, in any order.

The place of every byte in the new file is known before it is written, so the result does not depend on the number of
threads or on their order. Memory is bounded by the parts that the threads work on.

Checksums of the sources are compared in the same pass if an array is read as it is stored, from beginning to end;
otherwise before anything is written. Damaged values must not be written with new, valid checksums.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from math import lcm
from typing import Any, NamedTuple

from leafwise.core.path import escape
from leafwise.core.work import executor_tasks, threads
from leafwise.core.work.executor_tasks import Workers, task_bundles
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import in_order, ranges
from leafwise.errors import FileError, WriteError
from leafwise.files.arrays.computed import Elementwise
from leafwise.files.arrays.ranges import Ranged, fill_range, scratch
from leafwise.files.arrays.stored import ITEM_BYTES, Inflated, Storage, Stored
from leafwise.files.casts import SATURATE
from leafwise.files.checksums import CHUNK, ChecksumPass, Checksums, ChunkHasher, checksummer, count
from leafwise.files.reading import checked_reads
from leafwise.files.sources.source import InflatedSource
from leafwise.files.writing.output import Output
from leafwise.files.writing.writer import LocalOutput, SharedOutput, WrittenParts

_TASK_BYTES = 4 << 20  # bytes that a thread writes before it takes the next task
_LARGEST_READ_BYTES = 8 << 20  # read at a time: arrays that are gathered from many places need fewer reads then
_GATHERING = threading.BoundedSemaphore(2)  # threads that gather at a time, because each needs several times as much
# A part of a transposed array is scattered over all of it, which is read once for each part. So parts are large.
_SCATTERED = 24 << 20
_SCATTERED_LOCK = threading.Lock()


class Streaming:
    """Streams arrays into the files of one checkpoint. All arrays are given at the beginning, by their names in the
    checkpoint, so that each of their storages is verified only once."""

    def __init__(self, arrays: Iterable[tuple[str, Stored]], workers: Workers | None) -> None:
        self._arrays, self._workers = dict(arrays), workers
        self._ways = {name: _way(array) for name, array in self._arrays.items()}
        self._locks: dict[int, threading.Lock] = {}  # by the identity of a compressed source
        apart = [
            (name, leaf)
            for name, way in self._ways.items()
            for leaf in _leaves(way.array)
            if not isinstance(leaf, _Watched | Inflated)  # these are verified while they are read
        ]
        checked_reads.verify_arrays(apart, workers=workers)

    def write(self, output: Output, places: list[tuple[str, int]], progress: Count) -> list[list[str]]:
        """Writes arrays into gaps of a file: `places` are their names, and the offset of the first byte of each.
        Returns the checksums of the chunks of each."""
        if self._workers is not None:
            return self._write_by(self._workers, output, places, progress)
        sums = [[""] * count(self._arrays[name].spec.nbytes, CHUNK) for name, _ in places]
        tasks = [
            _Task(name, self._ways[name], self._locks_of(name), sums_of_array, offset, start, stop)
            for (name, offset), sums_of_array in zip(places, sums, strict=True)
            for start, stop in self._ways[name].cuts()
        ]
        written = WrittenParts(output, progress)

        def work(number: int, task: _Task) -> None:
            task.run(output)
            written.add(number, task.stop - task.start, task.offset + task.stop)

        in_order(work, tasks, threads.THREADS)
        return sums

    def _write_by(
        self, workers: Workers, output: Output, places: list[tuple[str, int]], progress: Count
    ) -> list[list[str]]:
        """`write`, where workers read the sources and write the file."""
        assert isinstance(output, LocalOutput)  # workers could not open any other
        sums: list[list[str]] = [[] for _ in places]
        parts, sums_of_parts = [], []
        for (name, offset), sums_of_array in zip(places, sums, strict=True):
            for start, stop in self._ways[name].cuts(executor_tasks.TASK_BYTES):
                parts.append(_SentPart.of(name, self._arrays[name], self._ways[name], offset, start, stop))
                sums_of_parts.append(sums_of_array)
        bundles = list(task_bundles(parts, lambda part: part.stop - part.start))
        by_bundle = workers.run((_WritingTask(output.staged, bundle) for bundle in bundles), progress)
        results = [result for results in by_bundle for result in results]
        for part, sums_of_array, (digits, states) in zip(parts, sums_of_parts, results, strict=True):
            sums_of_array += digits
            leaves = list(_leaves(self._ways[part.name].array))
            for seen, state in zip(part.watched, states, strict=True):
                leaf = leaves[seen.leaf]
                assert isinstance(leaf, _Watched)
                leaf.checksum_pass.include(seen.start, state)
        return sums

    def _locks_of(self, name: str) -> list[threading.Lock]:
        """The locks for one array at a time. A compressed source is unpacked from beginning to end: if two threads took
        turns, each of their reads would begin again."""
        if self._ways[name].unit:
            return []
        sources = {id(storage.source): storage.source for storage in self._arrays[name].storages()}
        compressed = sorted(key for key, source in sources.items() if isinstance(source, InflatedSource))
        return [self._locks.setdefault(key, threading.Lock()) for key in compressed]

    def check_sources(self) -> None:
        """Raises if the values that were read are damaged, or if a source was changed meanwhile. To be called before
        the new files replace others."""
        checked_reads.raise_damage(
            [
                (name, leaf.storage, leaf.checksum_pass)
                for name, way in self._ways.items()
                for leaf in _leaves(way.array)
                if isinstance(leaf, _Watched)
            ]
        )
        checked_reads.unchanged(storage.source for array in self._arrays.values() for storage in array.storages())


class _Way(NamedTuple):
    """How an array is streamed: in units of a number of bytes, in any order; or, if `unit` is 0, from beginning to end
    by one thread. `gathered` arrays are not read as they are stored, and a part of a `scattered` one comes from
    all over its storage."""

    array: Stored
    unit: int
    gathered: bool
    scattered: bool = False

    def cuts(self, largest: int = _TASK_BYTES) -> Iterator[tuple[int, int]]:
        """The ranges that threads work on, as start and stop."""
        nbytes = self.array.spec.nbytes
        return ranges(nbytes, self.unit or max(nbytes, 1), largest)


class _Watched(Ranged):
    """An array that is a whole storage, compared with its checksums while it is read; or only a part of it, which
    begins at `first`."""

    __slots__ = ("checksum_pass", "checksums", "first", "inner", "piece", "storage")

    def __init__(self, inner: Stored, checksums: Checksums, first: int = 0) -> None:
        super().__init__(inner.spec)
        run = inner.plain_run()
        assert run is not None
        self.inner, self.storage, self.checksums, self.first = inner, run[0], checksums, first
        self.piece = checksums.piece
        self.checksum_pass: ChecksumPass = checksums.new_pass()

    def fill_range(self, start: int, view: memoryview) -> None:
        fill_range(self.inner, start, view)
        for at in range(0, len(view), self.piece):
            self.checksum_pass.add(start - self.first + at, view[at : at + self.piece])

    def storages(self) -> list[Storage]:
        return [self.storage]


def _way(array: Stored) -> _Way:
    leaves = list(_leaves(array))
    if not all(leaf.reads_parts and leaf.checks_itself == leaf.checks_parts for leaf in leaves):
        return _Way(array, 0, True)
    item = ITEM_BYTES[array.spec.dtype]
    widest = max(item, *(ITEM_BYTES[leaf.spec.dtype] for leaf in leaves))
    elements = CHUNK // item
    watched: dict[int, _Watched] = {}
    for leaf in leaves:
        run, own = leaf.plain_run(), ITEM_BYTES[leaf.spec.dtype]
        if run is None or (run[1], run[2]) != (0, run[0].nbytes) or run[0].checksums is None:
            continue
        # Each unit must consist of whole pieces with one checksum each.
        aligned = lcm(elements * own, run[0].checksums.piece) // own
        if run[0].checksums.piece % own == 0 and aligned * widest <= _LARGEST_READ_BYTES:
            elements = aligned
            watched[id(leaf)] = _Watched(leaf, run[0].checksums)
    gathered = any(leaf.plain_run() is None for leaf in leaves)
    scattered = any(leaf.is_scattered for leaf in leaves)
    if gathered:
        elements *= max(1, (_SCATTERED if scattered else _LARGEST_READ_BYTES) // (elements * widest))
    return _Way(_with_leaves(array, watched), elements * item, gathered, scattered)


def _leaves(array: Stored) -> Iterator[Stored]:
    """The stored arrays from which an array is computed, or the array itself."""
    if isinstance(array, Elementwise):
        for value in array.inputs:
            yield from _leaves(value)
    else:
        yield array


def _with_leaves(array: Stored, leaves: dict[int, _Watched]) -> Stored:
    """The array, computed from other leaves, which are given by the identity of those that they replace."""
    if isinstance(array, Elementwise):
        return array.over([_with_leaves(value, leaves) for value in array.inputs])
    return leaves.get(id(array), array)


class _Task(NamedTuple):
    """A range of an array, whose first byte is at `offset` in the new file, and where the checksums go."""

    name: str
    way: _Way
    locks: list[threading.Lock]
    sums: list[str]
    offset: int
    start: int
    stop: int

    def run(self, output: Output | SharedOutput) -> None:
        try:
            if not self.way.gathered:
                self._stream_units(output)
                return
            with ExitStack() as held:
                for lock in self.locks:  # in the order of all tasks, so that no two wait for each other
                    held.enter_context(lock)
                if self.way.scattered:
                    held.enter_context(_SCATTERED_LOCK)
                held.enter_context(_GATHERING)
                (self._stream_units if self.way.unit else self._stream_in_order)(output)
        except WriteError as error:
            repair = "" if "; " in str(error) else f"; {SATURATE}"
            raise WriteError(f"cannot write {escape(self.name)}: {error}{repair}") from error

    def _stream_units(self, output: Output | SharedOutput) -> None:
        checksum = checksummer()
        with scratch([min(self.way.unit, self.stop - self.start)]) as [buffer]:
            for start in range(self.start, self.stop, self.way.unit):
                view = buffer[: min(self.way.unit, self.stop - start)]
                fill_range(self.way.array, start, view)
                for at in range(0, len(view), CHUNK):
                    self.sums[(start + at) // CHUNK] = checksum(view[at : at + CHUNK])
                output.fill(view, self.offset + start)

    def _stream_in_order(self, output: Output | SharedOutput) -> None:
        hasher, written = ChunkHasher(), 0
        for chunk in self.way.array.chunks():
            view = memoryview(chunk).cast("B")
            if written + len(view) <= self.stop:
                hasher.add(view)
                output.fill(view, self.offset + written)
            written += len(view)
        hasher.end()
        if written != self.stop:
            raise FileError(
                f"cannot write {escape(self.name)}: it should have {self.stop:,} bytes but has {written:,}; "
                "nothing was written"
            )
        self.sums[:] = hasher.checksums


# -- by workers ------------------------------------------------------------------------------------------------------


class _SentChecksums(NamedTuple):
    """The checksums of the part of a leaf that a range of an array is computed from: the number of the leaf, and where
    the part begins in it."""

    leaf: int
    start: int
    checksums: Checksums


class _SentPart(NamedTuple):
    """A range of an array that a worker writes; `offset` is where the array begins in the new file. In its way, nothing
    is watched: the worker does this, with the checksums in `watched`."""

    name: str
    way: _Way
    watched: list[_SentChecksums]
    offset: int
    start: int
    stop: int

    @classmethod
    def of(cls, name: str, array: Stored, way: _Way, offset: int, start: int, stop: int) -> "_SentPart":
        item = ITEM_BYTES[array.spec.dtype]
        watched = []
        for number, leaf in enumerate(_leaves(way.array)):
            if isinstance(leaf, _Watched):
                own = ITEM_BYTES[leaf.spec.dtype]
                first, last = start // item * own, stop // item * own
                watched.append(_SentChecksums(number, first, leaf.checksums.part(first, last)))
        return cls(name, way._replace(array=array), watched, offset, start, stop)

    def write(self, output: SharedOutput) -> tuple[list[str], list[Any]]:
        """Writes the range. Returns the checksums of its chunks, and what is known about the checksums of the
        sources."""
        leaves = list(_leaves(self.way.array))
        seen = [_Watched(leaves[number], checksums, start) for number, start, checksums in self.watched]
        way = self.way._replace(array=_with_leaves(self.way.array, {id(leaf.inner): leaf for leaf in seen}))
        sums = [""] * count(self.stop, CHUNK)
        _Task(self.name, way, [], sums, self.offset, self.start, self.stop).run(output)
        return sums[self.start // CHUNK :], [leaf.checksum_pass.state() for leaf in seen]


class _WritingTask(NamedTuple):
    """A task: writes parts of arrays into a file that another process has begun."""

    staged: str
    parts: list[_SentPart]

    @property
    def nbytes(self) -> int:
        return sum(part.stop - part.start for part in self.parts)

    def __call__(self) -> list[tuple[list[str], list[Any]]]:
        with SharedOutput(self.staged) as output:
            return [part.write(output) for part in self.parts]
