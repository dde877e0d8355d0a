"""Arrays that are sharded over several processes or devices: how they are split, and the parts in this process."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from leafwise.core.memory.runs import boxes
from leafwise.printable import escape


class Sharding(NamedTuple):
    """How an array is split over ranks, which are arranged in a mesh. In JAX, these are devices: `over` says which.

    `mesh` has the size of each dimension of the mesh, and `mesh_names` their names, if they have any. `placements` says
    for each of these dimensions what its ranks have of the array:

    - `shard(0)`: a piece of axis 0
    - `strided shard(0, 2)`: axis 0 is first split into 2, and each rank has a piece of both
    - `flat shard`: a range of the elements in C order, which may begin and end in the middle of a row
    - `replicate`: a copy
    - `partial(sum)`: a term of a sum that was not computed yet

    >>> sharding = Sharding((2, 4), ("dp", "tp"), ("replicate", "shard(0)"))
    >>> print(sharding, sharding.ranks)
    replicate, shard(0) over dp=2, tp=4 8
    >>> print(Sharding((4,), None, ("shard(1)",)))
    shard(1) over 4 ranks
    >>> print(Sharding((1,), None, ("replicate",)))
    replicate over 1 rank
    >>> print(Sharding((8,), None, ("shard(0)",), "devices"))
    shard(0) over 8 devices
    """

    mesh: tuple[int, ...]
    mesh_names: tuple[str, ...] | None
    placements: tuple[str, ...]
    over: Literal["ranks", "devices"] = "ranks"

    @property
    def ranks(self) -> int:
        """The number of ranks, or devices, in the mesh."""
        return prod(self.mesh)

    def __str__(self) -> str:
        if self.mesh_names is None:
            over = "×".join(map(str, self.mesh)) + f" {self.over[:-1] if self.ranks == 1 else self.over}"
        else:
            over = ", ".join(f"{name}={size}" for name, size in zip(self.mesh_names, self.mesh, strict=True))
        return escape(f"{', '.join(self.placements)} over {over}")


class LocalPart(NamedTuple):
    """A part of an array that is in this process.

    `value` is an array over the same memory, `first` is where it starts in the whole array, and `shape` is its shape.
    """

    value: Any
    first: tuple[int, ...]
    shape: tuple[int, ...]

    def inside(self) -> tuple[slice, ...]:
        """The slices of the whole array that select this part."""
        return tuple(slice(first, first + size) for first, size in zip(self.first, self.shape, strict=True))

    def overlap(self, first: Sequence[int], shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """What this part has of a box of the whole array, which begins at `first`: the slices of this part, and those
        of the box. None if it has nothing of it.

        >>> LocalPart(None, (4,), (4,)).overlap((6,), (3,))
        ((slice(2, 4, None),), (slice(0, 2, None),))
        """
        here, there = [], []
        for own, size, start, length in zip(self.first, self.shape, first, shape, strict=True):
            low, high = max(own, start), min(own + size, start + length)
            if low >= high:
                return None
            here.append(slice(low - own, high - own))
            there.append(slice(low - start, high - start))
        return tuple(here), tuple(there)


class Split(NamedTuple):
    """One split of an axis into a number of `chunks`, of which a rank has the one with this number. If `pieces` is more
    than 1, the axis is first split into that many pieces, and the rank has the chunk of each piece.

    All chunks have the same size, except that the last ones may be shorter, or empty.
    """

    chunks: int
    number: int
    pieces: int = 1


class LocalRange(NamedTuple):
    """Consecutive elements along one axis: where they are in the local array, and where in the whole array."""

    local: int
    first: int
    size: int


def local_ranges(size: int, splits: Iterable[Split]) -> list[LocalRange]:
    """What a rank has of an axis of this size after some splits, one after another.

    >>> local_ranges(10, [Split(4, 1)])
    [LocalRange(local=0, first=3, size=3)]
    >>> local_ranges(8, [Split(2, 1, pieces=2)])
    [LocalRange(local=0, first=2, size=2), LocalRange(local=2, first=6, size=2)]
    """
    kept = [range(size)]
    for split in splits:
        pieces = [_chunk(kept, split.pieces, number) for number in range(split.pieces)]
        kept = [elements for piece in pieces for elements in _chunk(piece, split.chunks, split.number)]
    ranges: list[LocalRange] = []
    for elements in kept:
        last = ranges[-1] if ranges else LocalRange(0, 0, 0)
        if ranges and last.first + last.size == elements.start:
            ranges[-1] = last._replace(size=last.size + len(elements))
        else:
            ranges.append(LocalRange(last.local + last.size, elements.start, len(elements)))
    return ranges


def _chunk(ranges: list[range], count: int, number: int) -> list[range]:
    """A chunk of the elements of several ranges; empty ranges are left out."""
    size = -(-sum(map(len, ranges)) // count)
    start, stop = size * number, size * (number + 1)
    chunk = []
    for elements in ranges:
        inside = elements[max(start, 0) : max(stop, 0)]
        if inside:
            chunk.append(inside)
        start, stop = start - len(elements), stop - len(elements)
    return chunk


class FlatBox(NamedTuple):
    """A box of an array whose elements follow each other in C order: how many elements of a range come before it, where
    it starts in the array, and its shape."""

    local: int
    first: tuple[int, ...]
    shape: tuple[int, ...]


def flat_boxes(shape: tuple[int, ...], start: int, stop: int) -> list[FlatBox]:
    """The elements of an array from number `start` to before `stop`, in C order, as boxes. These are at most twice as
    many as the array has axes: rests of rows on both sides of what is whole.

    >>> for box in flat_boxes((4, 3), 1, 11):
    ...     print(*box)
    0 (0, 1) (1, 2)
    2 (1, 0) (2, 3)
    8 (3, 0) (1, 2)
    """
    flat: list[FlatBox] = []
    local = 0
    for index in boxes(shape, start, stop):
        ranges = [part if isinstance(part, slice) else slice(part, part + 1) for part in index]
        ranges += [slice(0, size) for size in shape[len(index) :]]
        sizes = tuple(part.stop - part.start for part in ranges)
        flat.append(FlatBox(local, tuple(part.start for part in ranges), sizes))
        local += prod(sizes)
    return flat
