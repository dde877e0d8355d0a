"""Reading ranges of files into buffers, in threads of the C code, which do not wait for Python's lock; and checksums of
many pieces of memory, in one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from leafwise.kernels.library import load, load_with

LEAST = 241  # bytes; the C code does not hash fewer
_TABLES = np.int64


class ReadRange(NamedTuple):
    """Bytes of a file that go to a position in a buffer. The C code has one more field: where its checksums begin."""

    file: int  # a descriptor; -1 for bytes that the range before has read
    offset: int
    position: int
    nbytes: int
    piece: int = 0  # bytes that have one checksum; 0 if none is computed


def can_read() -> bool:
    """Whether the C code was built."""
    return load_with("leafwise_reader_open") is not None


class ThreadedReader:
    """Threads that fill buffers, one with the ranges of each task. Use it in a `with` statement, at whose end no thread
    is left. A buffer is used from `add` on, until `wait` returns it, and again after `give`."""

    def __init__(self, tasks: Sequence[Sequence[ReadRange]], most_buffers: int, threads: int) -> None:
        self._handle: int | None = None
        self._library = load()
        self._buffers: list[Any] = []  # so that their memory stays
        # Flat lists: many small objects would make Python's garbage collector search all objects of the program.
        rows: list[int] = []
        self._starts: list[int] = []  # of each range, where its checksums begin
        self._first_ranges, count = [0], 0  # of each task, and of one more
        for task in tasks:
            for wanted in task:
                rows += (*wanted, count)
                self._starts.append(count)
                count += -(-wanted.nbytes // wanted.piece) if wanted.piece else 0
            self._first_ranges.append(len(self._starts))
        self._firsts = np.array(self._first_ranges, _TABLES)
        self._ranges = np.array(rows, _TABLES)
        self._checksums = np.zeros(count, np.uint64)
        self._filled = np.zeros(3, _TABLES)
        self._where = self._filled.ctypes.data
        self._options = (most_buffers, threads, self._library.leafwise_instruction_sets())

    def __enter__(self) -> "ThreadedReader":
        # Until a buffer is added, threads write to no memory: an interrupt before the handle is stored does no harm.
        tables = [table.ctypes.data for table in (self._firsts, self._ranges, self._checksums)]
        self._handle = self._library.leafwise_reader_open(len(self._firsts) - 1, *tables, *self._options)
        if self._handle is None:
            raise MemoryError("there is no memory for threads that read")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # after a second interrupt, which may have prevented the first call

    def close(self) -> None:
        """Ends all threads."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.leafwise_reader_close(handle)

    def add(self, view: memoryview) -> int:
        """Adds a buffer to be filled; returns its number."""
        array = np.frombuffer(view, np.uint8)
        self._buffers.append(array)
        return int(self._library.leafwise_reader_add(self._handle, array.ctypes.data))

    def give(self, buffer: int) -> None:
        """Gives back a buffer, to be filled again."""
        self._library.leafwise_reader_give(self._handle, buffer)

    def wait(self, microseconds: int) -> tuple[int, int, bool] | None:
        """The number of the next task that is done, the number of its buffer, and whether all its bytes were read. None
        if there is none for so long."""
        if not self._library.leafwise_reader_wait(self._handle, microseconds, self._where):
            return None
        task, buffer, is_read = self._filled.tolist()
        return task, buffer, bool(is_read)

    def checksums(self, task: int, number: int, nbytes: int, piece: int) -> list[int]:
        """The checksums of a range of a task that was read, without that of a last piece that is too short. Negative
        numbers count from the last range of the task."""
        count, rest = divmod(nbytes, piece)
        first = self._starts[self._first_ranges[task + (number < 0)] + number]
        checksums: list[int] = self._checksums[first : first + count + (rest >= LEAST)].tolist()
        return checksums


def checksums_of(data: Any, piece: int) -> list[int] | None:
    """The XXH3 of each piece of some bytes; the last piece may be shorter. None if the C code cannot compute them."""
    library = load_with("leafwise_hash")
    count, rest = divmod(len(data), piece)
    if library is None or piece < LEAST or 0 < rest < LEAST:
        return None
    results = np.empty(count + bool(rest), np.uint64)
    address = np.frombuffer(data, np.uint8).ctypes.data
    instruction_sets = library.leafwise_instruction_sets()
    library.leafwise_hash(address, len(data), piece, instruction_sets, results.ctypes.data)
    return list(map(int, results))
