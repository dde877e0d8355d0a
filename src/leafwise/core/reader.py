"""Reading an array in parts, wherever it is, with only one part in memory at a time."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.home import Home

BAND = 1 << 22  # elements in a band

Reader = Callable[[tuple[slice, ...]], Any]


def reader(home: Home, value: Any) -> Reader:
    """A function that reads parts of an array as NumPy arrays."""
    if not home.capability(Measuring).reads_parts(value):
        whole = home.read(value, ())
        return lambda box: whole[box]
    return lambda box: home.read(value, box)


def bands(home: Home, value: Any, shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """An array with at least one axis, as NumPy arrays of several rows each, with the number of the first row."""
    read = reader(home, value)
    step = max(1, BAND // max(prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        yield start, read((slice(start, start + step),))
