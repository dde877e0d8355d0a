"""Writes files that are in memory (tmpfs) through a mapping.

The system lets only one thread at a time write to a file. Through a mapping, all of them can. Memory that a file does
not have yet is requested before it is written to: if there is none, that request fails, whereas writing to the mapping
would end the process.
"""

import mmap
from typing import Any

from leafwise.core.memory import madvise


class FileMemory:
    """The memory of a file, which must have `length` bytes already, and which nobody else makes shorter."""

    def __init__(self, file: int, length: int) -> None:
        import numpy as np

        self._map = mmap.mmap(file, length)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._address = self._bytes.ctypes.data

    def fill(self, data: Any, start: int) -> bool:
        """Writes bytes at an offset. Returns False, and writes nothing, if the system does not provide the memory."""
        import numpy as np

        source = np.frombuffer(data, np.uint8)
        stop = start + source.size
        if stop > self._bytes.size or not madvise.provide(self._address + start, source.size):
            return False
        self._bytes[start:stop] = source
        return True

    def close(self) -> None:
        del self._bytes
        self._map.close()
