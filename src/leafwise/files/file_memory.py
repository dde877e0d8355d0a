"""Writes files that are in memory (tmpfs) through a mapping.

The system lets only one thread at a time write to a file. Through a mapping, all of them can. Memory that a file does
not have yet is requested before it is written to: if there is none, that request fails, whereas writing to the mapping
would end the process.
"""

import mmap
from functools import cache
from typing import Any

_SLICE = 1 << 19  # bytes; the system clears new memory, which is then still in the processor's cache
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


class FileMemory:
    """The memory of a file, which must have `length` bytes already, and which nobody else makes shorter."""

    def __init__(self, file: int, length: int) -> None:
        import numpy as np

        self._map = mmap.mmap(file, length)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._address = self._bytes.ctypes.data

    def fill(self, data: Any, start: int) -> bool:
        """Writes bytes at an offset. Returns False if the system does not provide the memory for all of them."""
        import numpy as np

        source = np.frombuffer(data, np.uint8)
        if start + source.size > self._bytes.size:
            return False
        for at in range(0, source.size, _SLICE):
            piece = source[at : at + _SLICE]
            if not self._provided(start + at, start + at + piece.size):
                return False
            self._bytes[start + at : start + at + piece.size] = piece
        return True

    def _provided(self, start: int, stop: int) -> bool:
        """Asks for the memory of a range of the file."""
        first = start - start % mmap.PAGESIZE
        return not _madvise()(self._address + first, stop - first, _POPULATE_WRITE)

    def close(self) -> None:
        del self._bytes
        self._map.close()


@cache
def _madvise() -> Any:
    import ctypes  # only here, because every command of leafwise imports this file

    # The method of the same name of `mmap.mmap` would stop all other threads meanwhile.
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
