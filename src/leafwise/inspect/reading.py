"""Values of an array, a part at a time: memory holds no more than that, wherever they are."""

from collections.abc import Iterator
from math import prod
from typing import Any

from leafwise.core.home import Home
from leafwise.core.reading import reader

_BAND = 1 << 22  # elements of a band


def bands(home: Home, value: Any, shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """An array with axes as NumPy arrays of some rows each, with the number of the first."""
    read = reader(home, value)
    step = max(1, _BAND // max(prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        yield start, read((slice(start, start + step),))
