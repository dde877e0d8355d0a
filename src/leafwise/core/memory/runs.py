"""Contiguous elements, which homes pass to kernels."""

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
