"""The bytes of a pickle: all of them, or a window of a file, from which long arrays are left out."""

from leafwise.files.arrays.stored import Storage
from leafwise.files.limits import Limits
from leafwise.files.pickles.pickle_objects import TruncatedPickleError
from leafwise.files.sources.source import Source

STOP = 0x2E  # the last opcode
MARGIN = 16  # bytes; every opcode whose length is fixed is shorter
_WINDOW = 1 << 20  # bytes that are read at a time, if the pickle is not in memory
_MAX_LINE = 1 << 20  # bytes of an argument that ends with its line


class PickleBytes:
    """Reads a pickle from beginning to end. `data` are the bytes in memory, `base` is the offset of the first of them,
    and `position` is where the next byte is in them. At `edge`, or later, call `slide` before reading an opcode."""

    def __init__(self, data: "bytes | Source", at: int, limits: Limits) -> None:
        self.source = data if isinstance(data, Source) else None
        self.data = data if isinstance(data, bytes) else b""
        self.base, self.position, self.edge = 0, at, len(self.data) - 1
        self.limits = limits
        limits.spend_bytes(_WINDOW if isinstance(data, Source) else len(data) - at)

    def last_edge(self) -> int:
        """Where `slide` must be called, if nothing else ends before the bytes do."""
        is_last = self.source is None or self.base + len(self.data) >= self.source.size
        return len(self.data) - (1 if is_last else MARGIN)

    @property
    def at(self) -> int:
        """The offset of the next byte."""
        return self.base + self.position

    def slide(self, at: int, need: int = 0) -> int:
        """Moves the window so that it begins at `at`, or later, and has at least `need` bytes, if the pickle is not in
        memory. Returns the new `at`. Raises if the bytes end before."""
        source = self.source
        here = self.base + at
        if source is None or (self.base + len(self.data) >= source.size and at <= len(self.data)):
            if need or at >= len(self.data) or (at == len(self.data) - 1 and self.data[at] != STOP):
                raise TruncatedPickleError
            self.edge = len(self.data) if at == len(self.data) - 1 else len(self.data) - 1
            return at
        if here >= source.size or here + need > source.size:
            raise TruncatedPickleError
        stop = min(here + max(_WINDOW, need + MARGIN), source.size)
        self.limits.spend_bytes(max(need - _WINDOW, 0))
        self.data = bytes(source.read(here, stop))
        self.base, self.position = here, 0
        self.edge = self.last_edge()
        return 0

    def take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0:
            raise TruncatedPickleError
        if end > len(self.data):
            self.position, end = self.slide(self.position, max(length, 1)), length
        self.limits.spend_bytes(length)
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def skip(self, length: int) -> int:
        """Skips bytes without reading them; returns the offset of the first."""
        start = self.at
        if self.source is None or start + length > self.source.size:
            raise TruncatedPickleError
        self.position += length
        return start

    def array_bytes(self, length: int, aligned: bool) -> Storage:
        """Skips the bytes of an array between two opcodes; if aligned, they follow a count and as many bytes."""
        if aligned:
            self.skip(self.unsigned(1))
        start = self.skip(length)
        assert self.source is not None
        return Storage(self.source, start, length)

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0 and self.source is not None and self.base + len(self.data) < self.source.size:
            self.position = self.slide(self.position, min(_MAX_LINE, self.source.size - self.at))
            end = self.data.find(b"\n", self.position)
        if end < 0:
            raise TruncatedPickleError
        return self.take(end + 1 - self.position)[:-1]
