"""Checksums: xxh3 of fixed chunks, so that parts of an array can be checked, and by several threads."""

from collections.abc import Callable, Iterator
from typing import Any

from leafwise.errors import FileError

CHUNK = 1 << 20  # how many bytes of an array have one checksum
DIGITS = 16  # of a checksum, in hexadecimal


def _library() -> Any:
    try:
        import xxhash
    except ImportError as error:
        raise FileError("checksums need xxhash: pip install xxhash") from error
    return xxhash


def checksum(data: Any) -> str:
    """The checksum of some bytes.

    >>> checksum(b"leaf")
    'c680587ff971674a'
    """
    digest: int = _library().xxh3_64_intdigest(data)
    return f"{digest:016x}"


def checksummer() -> Callable[[Any], str]:
    """`checksum`, for whoever takes many."""
    digest = _library().xxh3_64_intdigest
    return lambda data: f"{digest(data):016x}"


def flipped_byte(data: bytearray, wanted: str) -> Iterator[int]:
    """The bytes of which one flipped bit explains why data does not have the checksum that it should.

    >>> list(flipped_byte(bytearray(b"le`f"), checksum(b"leaf")))
    [2]
    """
    digest = _library().xxh3_64_intdigest
    try:
        right = int(wanted, 16)
    except ValueError:
        return
    for byte in range(len(data)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128):
            data[byte] ^= bit
            found = digest(data) == right
            data[byte] ^= bit
            if found:
                yield byte


class Summing:
    """Takes the bytes of one array after another, in whatever pieces they come, and keeps a checksum for each chunk."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self.chunk = chunk
        self.found: list[str] = []
        self._checksum = checksummer()
        self._started = _library().xxh3_64
        self._open: Any = None
        self._filled = 0

    def add(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        if self._open is None and len(view) % self.chunk == 0:
            for start in range(0, len(view), self.chunk):
                self.found.append(self._checksum(view[start : start + self.chunk]))
            return
        while view:
            if self._open is None:
                self._open, self._filled = self._started(), 0
            part = view[: self.chunk - self._filled]
            self._open.update(part)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == self.chunk:
                self.end()

    def end(self) -> None:
        """The array ends here."""
        if self._open is not None:
            self.found.append(f"{self._open.intdigest():016x}")
            self._open = None


class Sums:
    """The checksums of one array: some of those that a header lists."""

    __slots__ = ("_digits", "chunk", "first")

    def __init__(self, digits: str, first: int, chunk: int) -> None:
        self._digits, self.first, self.chunk = digits, first, chunk

    def __getitem__(self, number: int) -> str:
        at = (self.first + number) * DIGITS
        return self._digits[at : at + DIGITS]

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, int, str]]:
        """Each chunk between two offsets, of which the first is the start of one: start, stop and checksum."""
        for first in range(start, stop, self.chunk):
            yield first, min(first + self.chunk, stop), self[first // self.chunk]


def count(nbytes: int, chunk: int) -> int:
    """How many checksums an array has.

    >>> count(0, 4), count(4, 4), count(5, 4)
    (0, 1, 2)
    """
    return -(-nbytes // chunk)
