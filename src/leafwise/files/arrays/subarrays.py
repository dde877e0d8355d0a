"""Parts of stored arrays, for processes that need only a part of each array."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from math import prod

from leafwise.core.memory.ops import extent
from leafwise.files.arrays.pieces import Piece, Pieces
from leafwise.files.arrays.slices import Index, expanded, sliced
from leafwise.files.arrays.stored import ITEM_BYTES, Signed, Storage, Stored, Strided, spec_of
from leafwise.files.checksums import Crc32
from leafwise.files.limits import Limits

Box = tuple[slice, ...]  # a slice with a start and a stop for each axis


def subarray(array: Stored, box: Box) -> Stored:
    """The part of a stored array in a box, as an array of its own. Reading it reads as little else as possible."""
    shape = array.spec.shape or ()
    size = tuple(part.stop - part.start for part in box)
    if size == shape:
        return array
    spec = spec_of(size, array.spec.dtype)
    if isinstance(array, Pieces):
        return Pieces(spec, list(_cut(array.pieces, box)), Limits.none())
    if isinstance(array, Strided) and not array.checks_itself:
        offset, _, strides = sliced(array.memory(), box)
        if isinstance(array, Signed):
            return Signed(spec, array.storage, offset, strides, array.signs)
        return Strided(spec, array.storage, offset, strides, array.big_endian)
    return Subarray(array, box)


def before_turn(box: Box, order: tuple[int, ...] | None) -> Box:
    """The box of an array whose axes are then taken in another order to give this box.

    >>> before_turn((slice(0, 2), slice(5, 6)), (1, 0))
    (slice(5, 6, None), slice(0, 2, None))
    """
    return box if order is None else tuple(box[order.index(axis)] for axis in range(len(box)))


def _cut(pieces: Iterable[Piece], box: Box) -> Iterator[Piece]:
    """What a box contains of the pieces of an array."""
    for position, size, open_piece in pieces:
        ends = [
            (max(part.start, first), min(part.stop, first + count))
            for part, first, count in zip(box, position, size, strict=True)
        ]
        if all(start < stop for start, stop in ends):
            inside = tuple(slice(start - at, stop - at) for (start, stop), at in zip(ends, position, strict=True))
            new_position = tuple(start - part.start for (start, _), part in zip(ends, box, strict=True))
            new_size = tuple(stop - start for start, stop in ends)
            yield new_position, new_size, cache(partial(_subarray_of, open_piece, inside))


def _subarray_of(open_piece: Callable[[], Stored], box: Box) -> Stored:
    return subarray(open_piece(), box)


class Subarray(Stored):
    """A part of an array that must be decoded, assembled or unpacked."""

    __slots__ = ("box", "checks_itself", "checks_parts", "is_live", "of", "reads_parts")

    def __init__(self, of: Stored, box: Box) -> None:
        super().__init__(spec_of(tuple(part.stop - part.start for part in box), of.spec.dtype))
        self.of, self.box = of, box
        self.reads_parts, self.is_live = of.reads_parts, of.is_live
        self.checks_itself, self.checks_parts = of.checks_itself, of.checks_parts

    def check(self) -> None:
        if self.checks_parts:
            super().check()
        else:
            self.of.check()

    def storages(self) -> list[Storage]:
        return self.of.storages()

    def read(self, index: Index = ()) -> object:
        parts = expanded(index, self.spec.shape or ())
        if any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
            return self.of.read(self.box)[parts]
        return self.of.read(tuple(_inside(part, outer) for part, outer in zip(parts, self.box, strict=True)))


def _inside(part: slice | int, outer: slice) -> slice | int:
    if isinstance(part, int):
        return outer.start + part  # type: ignore[no-any-return]
    taken = range(*part.indices(outer.stop - outer.start))
    return slice(outer.start + taken.start, outer.start + max(taken.start, taken.stop), taken.step)


# -- checksums ---------------------------------------------------------------------------------------------


def touched(array: Stored) -> Iterator[tuple[Storage, int, int]]:
    """The bytes whose checksums must be compared for an array: ranges of its storages that begin and end where a
    checksum does."""
    if isinstance(array, Pieces):
        for _, _, open_piece in array.pieces:
            yield from touched(open_piece())
        return
    for storage in array.storages():
        sums = storage.checksums
        if sums is None:
            continue
        start, stop = 0, storage.nbytes
        if isinstance(array, Strided) and not isinstance(sums, Crc32):
            if not prod(array.spec.shape or ()):
                continue
            low, high = extent(array.memory())
            start, stop = low // sums.piece * sums.piece, min(-(-high // sums.piece) * sums.piece, storage.nbytes)
        yield storage, start, stop


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same ranges in order, without overlaps.

    >>> joined([(4, 6), (0, 2), (1, 4), (8, 9)])
    [(0, 6), (8, 9)]
    """
    ordered = sorted(ranges)
    merged: list[tuple[int, int]] = []
    for start, stop in ordered:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged


def is_checked_whole(array: Stored) -> bool:
    """Whether the checksum of an array covers all of it, so that a part cannot be checked alone."""
    if isinstance(array, Pieces):
        return False  # it consists of parts
    if array.checks_itself:
        return not array.checks_parts
    return any(isinstance(storage.checksums, Crc32) for storage in array.storages())


def is_dense(array: Strided) -> bool:
    """Whether reading everything from the first to the last byte of an array reads little else."""
    low, high = extent(array.memory())
    return high - low <= 2 * prod(array.spec.shape or ()) * ITEM_BYTES[array.spec.dtype]
