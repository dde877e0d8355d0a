"""Arrays whose pieces are stored in different places, as in distributed checkpoints."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from leafwise.core.home import Memory, Spec
from leafwise.files.arrays.slices import Index, c_strides, expanded, is_c_order
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, numpy_dtype
from leafwise.files.limits import Limits


class NotTiledError(ValueError):
    """The pieces of an array leave out some of its elements, or contain some twice."""


Piece = tuple[tuple[int, ...], tuple[int, ...], Callable[[], Stored]]  # position, shape, and a function that opens it


class Pieces(Stored):
    """An array in pieces, each with the position of its first element. Raises NotTiledError unless the pieces contain
    every element exactly once: elements that no piece fills would have arbitrary values."""

    __slots__ = ("_axis", "_longest", "_starts", "pieces")

    def __init__(self, spec: Spec, pieces: list[Piece], limits: Limits) -> None:
        super().__init__(spec)
        shape = spec.shape or ()
        if not tiled(shape, [(position, size) for position, size, _ in pieces], limits):
            raise NotTiledError
        # Sorted along the axis with the most cuts, so that the few pieces that a part needs are found quickly.
        cuts = [len({str(position[axis]) for position, _, _ in pieces}) for axis in range(len(shape))]
        self._axis = axis = cuts.index(max(cuts)) if cuts else 0
        self.pieces = [piece for piece in pieces if prod(piece[1])]
        self._starts, self._longest = [0] * len(self.pieces), 1
        if shape:
            self.pieces.sort(key=lambda piece: piece[0][axis])
            self._starts = [piece[0][axis] for piece in self.pieces]
            self._longest = max((piece[1][axis] for piece in self.pieces), default=1)

    def _touching(self, low: int, high: int) -> list[Piece]:
        """The pieces that may contain elements from `low` to `high` along the axis."""
        first = bisect_right(self._starts, low - self._longest)
        return self.pieces[first : bisect_left(self._starts, high)]

    def storages(self) -> list[Storage]:
        return [storage for _, _, open_piece in self.pieces for storage in open_piece().storages()]

    def runs(self) -> list[tuple[Storage, int, int, int]] | None:
        shape, itemsize = self.spec.shape or (), ITEM_BYTES[self.spec.dtype]
        strides, runs = c_strides(shape, itemsize), []
        for position, size, open_piece in self.pieces:
            at = sum(start * stride for start, stride in zip(position, strides, strict=True))
            run = open_piece().plain_run()
            nbytes = prod(size) * itemsize
            if run is None or run[2] - run[1] != nbytes:
                return None
            if not is_c_order(Memory(at, size, strides, itemsize, self.spec.dtype)):
                return None  # the piece is scattered over the array
            runs.append((run[0], run[1], at, nbytes))
        return runs

    def read(self, index: Index = ()) -> Any:
        import numpy as np

        shape = self.spec.shape or ()
        parts = expanded(index, shape)
        ranges = [range(p, p + 1) if isinstance(p, int) else range(n)[p] for p, n in zip(parts, shape, strict=True)]
        lows = [min(r[0], r[-1]) if len(r) else 0 for r in ranges]
        highs = [max(r[0], r[-1]) + 1 if len(r) else 0 for r in ranges]
        box = np.empty([h - lo for lo, h in zip(lows, highs, strict=True)], numpy_dtype(self.spec.dtype))
        filled = 0
        touching = self._touching(lows[self._axis], highs[self._axis]) if shape else self.pieces
        for position, size, open_piece in touching:
            inside = [(max(lo, p), min(h, p + n)) for lo, h, p, n in zip(lows, highs, position, size, strict=True)]
            if all(a < b for a, b in inside):
                in_piece = tuple(slice(a - p, b - p) for (a, b), p in zip(inside, position, strict=True))
                in_box = tuple(slice(a - lo, b - lo) for (a, b), lo in zip(inside, lows, strict=True))
                box[in_box] = open_piece().read(in_piece)
                filled += prod(b - a for a, b in inside)
        if filled != box.size:  # `tiled` has ruled this out
            raise NotTiledError(f"the pieces fill {filled:,} of {box.size:,} elements")
        # The box begins and ends with elements of the index.
        steps = [0 if isinstance(p, int) else slice(None, None, r.step) for p, r in zip(parts, ranges, strict=True)]
        return np.asarray(box[tuple(steps)])


def tiled(shape: tuple[int, ...], boxes: "list[tuple[tuple[int, ...], tuple[int, ...]]]", limits: Limits) -> bool:
    """Whether boxes, each a position and a shape inside `shape`, cover every element exactly once.

    For each element, count the boxes that contain it, and subtract the one that should. Take the differences of these
    numbers along each axis in turn. The differences are zero except at the corners of boxes, where each box adds or
    subtracts one. They are zero at the corners as well if and only if all numbers are zero. So it is enough to add up
    the corners, which takes about n * 2**k steps for n boxes that are cut along k axes.

    >>> from leafwise.files.limits import Limits
    >>> tiled((4,), [((0,), (1,)), ((1,), (3,))], Limits()), tiled((4,), [((0,), (2,)), ((1,), (2,))], Limits())
    (True, False)
    """
    boxes = [box for box in boxes if prod(box[1])]
    if prod(shape):
        boxes.append(((0,) * len(shape), shape))  # the whole array, which is subtracted from the others
    cut = [axis for axis, size in enumerate(shape) if any(box[1][axis] != size for box in boxes)]
    limits.spend_steps(len(boxes) << len(cut))
    # Keyed by text: a hostile file can choose tuples of numbers that have the same hash.
    corners: dict[str, int] = {}
    for number, (position, size) in enumerate(boxes):
        ends = [((position[axis], 1), (position[axis] + size[axis], -1)) for axis in cut]
        weight = -1 if prod(shape) and number == len(boxes) - 1 else 1
        for corner in product(*ends):
            key = str([at for at, _ in corner])
            corners[key] = corners.get(key, 0) + weight * prod(sign for _, sign in corner)
    return not any(corners.values())
