"""Cuts long work into pieces: the ranges of one array, and bundles of many items."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def ranges(total: int, unit: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover a total of bytes or elements, as start and stop. They are of about `most`, and each starts at a
    multiple of `unit`.

    >>> list(ranges(10, unit=2, most=5))
    [(0, 4), (4, 8), (8, 10)]
    """
    step = max(most // unit, 1) * unit
    return ((start, min(start + step, total)) for start in range(0, total, step))


def bundled(
    items: Iterable[T], size_of: Callable[[T], int], most: int, most_items: int = sys.maxsize
) -> Iterator[list[T]]:
    """Items in bundles whose sizes add up to at most `most`; a larger item is a bundle of its own.

    >>> list(bundled([3, 4, 9, 1, 1], lambda item: item, most=8))
    [[3, 4], [9], [1, 1]]
    """
    bundle: list[T] = []
    held = 0
    for item in items:
        size = size_of(item)
        if bundle and (held + size > most or len(bundle) == most_items):
            yield bundle
            bundle, held = [], 0
        bundle.append(item)
        held += size
    if bundle:
        yield bundle
