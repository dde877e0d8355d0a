"""Arrays as flat ranges of bytes in C order, which threads can read in any order."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from leafwise.core.memory.runs import boxes
from leafwise.files.arrays.stored import ITEM_BYTES, Stored


class Ranged(Stored):
    """An array that fills flat ranges in its own way."""

    __slots__ = ()

    def fill_range(self, start: int, view: memoryview) -> None:
        raise NotImplementedError


def fill_range(array: Stored, start: int, view: memoryview) -> None:
    """Fills memory with the bytes of an array from `start` on, in C order. Start and length are multiples of the
    element size. Bytes that can be copied unchanged are read directly into the memory."""
    if isinstance(array, Ranged):
        array.fill_range(start, view)
        return
    run = array.plain_run()
    if run is not None:
        storage, first, _ = run
        storage.read_into(first + start, view)
        return
    item = ITEM_BYTES[array.spec.dtype]
    assert start % item == len(view) % item == 0, "a range must consist of whole elements"
    filled = 0
    for index in boxes(array.spec.shape or (), start // item, (start + len(view)) // item):
        part = array.read(index)
        over(view[filled : filled + part.nbytes], part.dtype).reshape(part.shape)[...] = part
        filled += part.nbytes
    assert filled == len(view), f"the boxes of a range have {filled:,} bytes instead of {len(view):,}"


class _Scratch(threading.local):
    """Memory that a thread uses again and again: pages of new memory would have to be cleared each time."""

    def __init__(self) -> None:
        self.free: list[memoryview] = []


_scratch = _Scratch()


@contextmanager
def scratch(sizes: Sequence[int]) -> Iterator[list[memoryview]]:
    """Memory of these sizes, in bytes, for use inside the block. A thread keeps it for its next call."""
    taken = [_scratch.free.pop() if _scratch.free else memoryview(b"") for _ in sizes]
    for number, size in enumerate(sizes):
        if len(taken[number]) < size:
            taken[number] = memoryview(bytearray(size))
    try:
        yield [buffer[:size] for buffer, size in zip(taken, sizes, strict=True)]
    finally:
        _scratch.free += reversed(taken)


def over(view: memoryview, dtype: Any) -> Any:
    """A flat NumPy array over memory."""
    import numpy as np

    return np.frombuffer(view, dtype)
