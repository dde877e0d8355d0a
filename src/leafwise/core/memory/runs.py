"""Contiguous elements of an array: a run, which homes pass to kernels, and a range in C order as boxes."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple


class Run(NamedTuple):
    """Contiguous elements: in memory, which `keeps` keeps alive, or in a file, given by its descriptor, from `address`
    on. Only kernels read the file."""

    address: int
    size: int
    dtype: str
    keeps: Any = None
    file: int = -1


class UnreadError(Exception):
    """A run in a file could not be read to its end: `number` is the run, `side` the side of a pair."""

    def __init__(self, number: int, side: int = 0) -> None:
        super().__init__(number, side)
        self.number, self.side = number, side


Box = tuple[int | slice, ...]


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The indices of the parts that make up a range of elements in C order: as few as possible, in order.

    >>> list(boxes((3, 4), 2, 11))
    [(0, slice(2, 4, None)), (slice(1, 2, None),), (2, slice(0, 3, None))]
    >>> list(boxes((), 0, 1)), list(boxes((3, 4), 4, 4))
    ([()], [])
    """
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    row, in_row = divmod(start, inner)
    if in_row:
        end = min(stop, (row + 1) * inner)
        yield from _of_row(shape, row, in_row, end - row * inner)
        row, start = row + 1, end
    last, rest = divmod(stop, inner)
    if row < last:
        yield (slice(row, last),)
    if rest and start < stop:
        yield from _of_row(shape, last, 0, rest)


def _of_row(shape: Sequence[int], row: int, start: int, stop: int) -> Iterator[Box]:
    return ((row, *index) for index in boxes(shape[1:], start, stop))
