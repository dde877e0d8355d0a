"""Checksums: leafwise's own, which are xxh3 of fixed chunks, and the CRC-32 of zip entries. Threads may check the parts
of an array in any order."""

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol

from leafwise.errors import FileError

CHUNK = 1 << 20  # bytes of an array that share one checksum
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
    return checksummer()(data)


def checksummer() -> Callable[[Any], str]:
    """A version of `checksum` that is faster when called many times."""
    digest = _library().xxh3_64_intdigest
    return lambda data: f"{digest(data):016x}"


def running_checksum() -> Any:
    """A checksum of bytes that are added with `update`; `hexdigest` is what `checksum` returns for all of them."""
    return _library().xxh3_64()


def flipped_byte(data: bytearray, wanted: str) -> Iterator[int]:
    """The positions of bytes in which flipping one bit gives the data the expected checksum.

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
            matches = digest(data) == right
            data[byte] ^= bit
            if matches:
                yield byte


class ChunkHasher:
    """Computes the checksum of each chunk of arrays, whose bytes are added in order, in pieces of any size."""

    def __init__(self) -> None:
        self.checksums: list[str] = []
        self._checksum = checksummer()
        self._open: Any = None
        self._filled = 0

    def add(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        if self._open is None and len(view) % CHUNK == 0:
            self.checksums += [self._checksum(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK)]
            return
        while view:
            if self._open is None:
                self._open, self._filled = running_checksum(), 0
            part = view[: CHUNK - self._filled]
            self._open.update(part)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == CHUNK:
                self.end()

    def end(self) -> None:
        """Ends an array: the next bytes begin a new array and a new chunk."""
        if self._open is not None:
            self.checksums.append(f"{self._open.intdigest():016x}")
            self._open = None


class ChecksumPass(Protocol):
    """One pass over the bytes of an array, added by several threads in any order."""

    def add(self, start: int, data: Any) -> None:
        """Adds the bytes at `start`. That and their number are multiples of `piece`, except at the end of the array."""

    def add_checksums(self, start: int, checksums: list[int]) -> bool:
        """Adds pieces from `start` on by their XXH3, which was computed elsewhere. Returns whether the checksums of the
        file are of this kind; if not, nothing was added. An empty list adds nothing, and only asks."""

    def damaged(self) -> list[int]:
        """The offset of each damaged part. All bytes must have been added."""

    def state(self) -> Any:
        """What is known about the bytes that were added, for `include`."""

    def include(self, start: int, state: Any) -> None:
        """Adds bytes that a pass over a part has seen, which begins at `start`; see `Checksums.part`."""


class Checksums(Protocol):
    """The checksums that a file has for one array."""

    piece: int  # how many bytes are checked at a time

    def new_pass(self) -> ChecksumPass:
        """Begins a pass over the array."""

    def part(self, start: int, stop: int) -> "Checksums":
        """Small checksums for a part of the array, for another process. `start` is a multiple of `piece`. A pass over
        the part begins at 0."""


class ChunkChecksums:
    """The checksums of one array, one for each chunk: a range of the checksums in the header."""

    __slots__ = ("_digits", "first", "piece")

    def __init__(self, digits: str, first: int, chunk: int) -> None:
        self._digits, self.first, self.piece = digits, first, chunk

    def __getitem__(self, number: int) -> str:
        at = (self.first + number) * DIGITS
        return self._digits[at : at + DIGITS]

    def new_pass(self) -> "_ChunkPass":
        return _ChunkPass(self)

    def part(self, start: int, stop: int) -> "ChunkChecksums":
        first = (self.first + start // self.piece) * DIGITS
        return ChunkChecksums(self._digits[first : first + count(stop - start, self.piece) * DIGITS], 0, self.piece)


class _ChunkPass:
    def __init__(self, sums: ChunkChecksums) -> None:
        self._sums = sums
        self._checksum = checksummer()
        self._damaged: list[int] = []

    def add(self, start: int, data: Any) -> None:
        self._compare(start, self._checksums(memoryview(data), self._sums.piece))

    def add_checksums(self, start: int, checksums: list[int]) -> bool:
        self._compare(start, [f"{number:016x}" for number in checksums])
        return True

    def _compare(self, start: int, checksums: list[str]) -> None:
        size = self._sums.piece
        for number, checksum in enumerate(checksums):
            if checksum != self._sums[start // size + number]:
                self._damaged.append(start + number * size)

    def _checksums(self, view: memoryview, size: int) -> list[str]:
        # xxhash is faster than the C code, but takes Python's lock twice for each piece, for which other threads wait.
        if len(view) > size:
            from leafwise.kernels.reading import checksums_of

            if (numbers := checksums_of(view, size)) is not None:
                return [f"{number:016x}" for number in numbers]
        return [self._checksum(view[at : at + size]) for at in range(0, len(view), size)]

    def damaged(self) -> list[int]:
        return sorted(self._damaged)

    def state(self) -> list[int]:
        return self._damaged

    def include(self, start: int, state: list[int]) -> None:
        self._damaged += [start + offset for offset in state]


class Crc32:
    """The CRC-32 of a zip entry that ends with an array. `before` is the bytes of the entry before the array."""

    __slots__ = ("before", "wanted")
    piece = CHUNK

    def __init__(self, wanted: int, before: bytes = b"") -> None:
        self.wanted, self.before = wanted, before

    def new_pass(self) -> "_CrcPass":
        return _CrcPass(self)

    def part(self, start: int, stop: int) -> "Crc32":
        return self  # a part has none of its own: the sums of pieces are combined


class _CrcPass:
    def __init__(self, expected: Crc32) -> None:
        self._expected = expected
        self._pieces: dict[int, tuple[int, int]] = {}  # start of a piece → its CRC-32 and its length

    def add(self, start: int, data: Any) -> None:
        view = memoryview(data)
        for at in range(0, len(view), self._expected.piece):
            part = view[at : at + self._expected.piece]
            self._pieces[start + at] = zlib.crc32(part), len(part)

    def add_checksums(self, start: int, checksums: list[int]) -> bool:
        return False

    def damaged(self) -> list[int]:
        crc = zlib.crc32(self._expected.before)
        for start in sorted(self._pieces):
            piece_crc, length = self._pieces[start]
            crc = crc32_of_both(crc, piece_crc, length)
        return [] if crc == self._expected.wanted else [0]

    def state(self) -> dict[int, tuple[int, int]]:
        return self._pieces

    def include(self, start: int, state: dict[int, tuple[int, int]]) -> None:
        self._pieces.update({start + at: piece for at, piece in state.items()})


def crc32_of_both(first: int, second: int, length: int) -> int:
    """The CRC-32 of two concatenated byte strings, from the CRC-32 of each and the length of the second.

    >>> crc32_of_both(zlib.crc32(b"leaf"), zlib.crc32(b"wise"), 4) == zlib.crc32(b"leafwise")
    True
    """
    return _product(_power(length), first) ^ second


# A CRC-32 is a polynomial over the field of two elements, modulo a fixed polynomial; bit 31 is the coefficient of x⁰.
_MODULUS = 0xEDB88320


def _product(a: int, b: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = b >> 1 ^ _MODULUS if b & 1 else b >> 1
    return result


@lru_cache(maxsize=64)
def _power(length: int) -> int:
    """The factor by which a CRC-32 is multiplied when `length` bytes follow: x to the power of their number of bits."""
    result, square = 1 << 31, 1 << 23
    while length:
        if length & 1:
            result = _product(square, result)
        square = _product(square, square)
        length >>= 1
    return result


def count(nbytes: int, chunk: int) -> int:
    """The number of checksums of an array.

    >>> count(0, 4), count(4, 4), count(5, 4)
    (0, 1, 2)
    """
    return -(-nbytes // chunk)
