"""Elements that lie one after another: what homes give to kernels."""

from typing import Any, NamedTuple


class Run(NamedTuple):
    """Elements that lie one after another: in memory, which `keeps` owns, or from `address` on in the file of a
    descriptor, which only kernels read."""

    address: int
    size: int
    dtype: str
    keeps: Any = None
    file: int = -1


class UnreadError(Exception):
    """A run of a file could not be read to its end; `number` is which, `side` which one of a pair."""

    def __init__(self, number: int, side: int = 0) -> None:
        super().__init__(number, side)
        self.number, self.side = number, side
