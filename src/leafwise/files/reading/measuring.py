"""Statistics of arrays in files, which are read once, by several threads, a piece at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.moments import NOTHING, Moments, merged_moments, nothing
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled, in_threads, ranges
from leafwise.errors import FileError
from leafwise.files.arrays.stored import ITEM_BYTES, Coded, Storage, Stored, Strided
from leafwise.files.reading.checked_reads import unchanged
from leafwise.files.sources.source import LocalSource
from leafwise.kernels import cpu
from leafwise.kernels.cpu import PIECE, lies_densely
from leafwise.kernels.dtypes import unknown_dtype
from leafwise.kernels.streams import regrouped

# Bytes that are measured at a time: by one thread if Python reads them, and by all threads together if the C code does.
_BUNDLE = 8 << 20
_LARGE_BUNDLE = 128 << 20


class StoredPart(NamedTuple):
    """A piece of an array, given by its number: a contiguous range of bytes in a storage."""

    array: int
    dtype: str
    storage: Storage
    start: int
    stop: int


def cannot_measure(value: Stored) -> str:
    # The values of a quantized array are known only after decoding, and then have a plain dtype.
    return "" if value.spec.dtype not in ITEM_BYTES and isinstance(value, Coded) else unknown_dtype(value.spec.dtype)


def measure(values: list[Stored], histogram: bool, count: Count) -> list[Moments]:
    """The moments of each array, with the same bits as for an array in memory with the same layout."""
    by_start: dict[tuple[int, int], list[Moments]] = {}
    runs = runs_of(values)
    local = {number: run for number, run in runs.items() if isinstance(run[0].source, LocalSource)}
    if cpu.loaded() is None:
        local = {}

    def keep(parts: list[StoredPart], by_part: list[list[Moments]]) -> None:
        by_start.update({(part.array, part.start): chunks for part, chunks in zip(parts, by_part, strict=True)})
        count(sum(part.stop - part.start for part in parts))

    with _own_files([run[0] for run in local.values()]) as opened:
        for bundle in _bundles(values, local, _LARGE_BUNDLE):
            keep(bundle, _measure_in_file(bundle, opened, histogram))
    read_in_python = {number: run for number, run in runs.items() if number not in local}
    in_threads(
        lambda bundle: keep(bundle, _measure_read(bundle, histogram)), list(_bundles(values, read_in_python, _BUNDLE))
    )
    pieces: dict[int, list[Moments]] = {}
    for number, start in sorted(by_start):
        pieces.setdefault(number, []).extend(by_start[number, start])
    moments = [
        merged_moments(pieces[number]) if number in pieces else _counted(value, histogram, count)
        for number, value in enumerate(values)
    ]
    unchanged(storage.source for storage, _, _ in runs.values())
    return moments


def runs_of(values: list[Stored]) -> dict[int, tuple[Storage, int, int]]:
    """The arrays that are measured as they are stored, by number."""
    return {number: run for number, value in enumerate(values) if (run := run_of(value)) and value.spec.size}


def measure_parts(parts: list[StoredPart], histogram: bool) -> list[list[Moments]]:
    """The moments of each chunk of some pieces, which begin at multiples of a chunk."""
    if cpu.loaded() is None or not all(isinstance(part.storage.source, LocalSource) for part in parts):
        return _measure_read(parts, histogram)
    with _own_files([part.storage for part in parts]) as opened:
        return _measure_in_file(parts, opened, histogram)


@contextmanager
def _own_files(storages: list[Storage]) -> Iterator[dict[int, int]]:
    """Descriptors of local files for use inside the block, by the identity of the source. Closing the tree meanwhile
    would free the numbers of the original ones."""
    with ExitStack() as files:
        sources: dict[int, Any] = {id(storage.source): storage.source for storage in storages}
        opened = {key: os.dup(source.descriptor()) for key, source in sources.items()}
        for file in opened.values():
            files.callback(os.close, file)
        yield opened


def _bundles(values: list[Stored], runs: dict[int, tuple[Storage, int, int]], size: int) -> Iterator[list[StoredPart]]:
    """Pieces of arrays, in bundles of at most `size` bytes."""
    parts = (
        StoredPart(number, dtype, storage, start + at, start + end)
        for number, (storage, start, stop) in runs.items()
        for dtype in [values[number].spec.dtype]
        for at, end in ranges(stop - start, ITEM_BYTES[dtype], PIECE * ITEM_BYTES[dtype])
    )
    return bundled(parts, lambda part: part.stop - part.start, size)


def run_of(value: Stored) -> tuple[Storage, int, int] | None:
    """Storage, start and stop of an array whose elements fill a contiguous range of bytes, in any order of the axes."""
    run = value.plain_run()
    if run is None and type(value) is Strided and not value.big_endian:
        memory = value.memory()
        if lies_densely(memory.shape, [stride / memory.itemsize for stride in memory.strides]):
            return value.storage, value.offset, value.offset + value.spec.nbytes
    return run


def _measure_in_file(parts: list[StoredPart], opened: dict[int, int], histogram: bool) -> list[list[Moments]]:
    """Measures pieces that the C code reads itself. Nothing is mapped, so truncating the file meanwhile does no
    harm."""
    runs = []
    for part in parts:
        size = (part.stop - part.start) // ITEM_BYTES[part.dtype]
        file = opened[id(part.storage.source)]
        runs.append(Run(part.storage.start + part.start, size, part.dtype, file=file))
    try:
        return cpu.measure_chunks(runs, histogram)
    except UnreadError as error:
        part = parts[error.number]
        raise unread(part.storage, part.start, part.stop) from error


def unread(storage: Storage, start: int, stop: int) -> FileError:
    """The error for bytes that the C code could not read. Raises a more specific one, if the problem persists."""
    storage.read(start, stop)
    return storage.source.error(storage.start + start, "the array cannot be read from here on; was the file cut off?")


def read_run(storage: Storage, start: int, stop: int, dtype: str) -> Run:
    """Bytes of a storage, read into memory for the C code."""
    data = np.frombuffer(storage.read(start, stop), np.uint8)
    return Run(data.__array_interface__["data"][0], len(data) // ITEM_BYTES[dtype], dtype, data)


def _measure_read(parts: list[StoredPart], histogram: bool) -> list[list[Moments]]:
    runs = [read_run(part.storage, part.start, part.stop, part.dtype) for part in parts]
    return cpu.measure_chunks(runs, histogram, threads=1)


def _counted(value: Stored, histogram: bool, count: Count) -> Moments:
    moments = measure_whole(value, histogram)
    count(value.spec.nbytes)
    return moments


def measure_whole(value: Stored, histogram: bool) -> Moments:
    """The moments of an array whose bytes must be reordered or decoded."""
    pieces = regrouped(value.parts(), PIECE)
    chunks = [chunk for piece in pieces for chunk in cpu.measure_chunks([cpu.run_of(piece)], histogram)[0]]
    return merged_moments(chunks or [nothing(NOTHING if histogram else None)])
