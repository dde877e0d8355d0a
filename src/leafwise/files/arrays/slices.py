"""Indices, shapes and strides of arrays in files: which part an index selects, and where it is."""

from math import prod
from typing import Any

from leafwise.core.home import Memory
from leafwise.errors import QueryError
from leafwise.files.sources.source import Source

MAX_AXES = 64  # the most axes that an array may have in PyTorch and NumPy

Index = Any  # the index in brackets: a slice, a number, an ellipsis, or a tuple of these


def expanded(index: Index, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index with one part for each axis, and no negative numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    if sum(part is Ellipsis for part in parts) > 1:
        raise QueryError("an index may contain only one ellipsis")
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[at + 1 :])
    if len(parts) > len(shape):
        raise QueryError(f"too many indices: {len(parts)} for an array with {len(shape)} axes")
    parts = (*parts, *[slice(None)] * (len(shape) - len(parts)))
    return tuple(_checked(part, size, axis) for axis, (part, size) in enumerate(zip(parts, shape, strict=True)))


def _checked(part: Any, size: int, axis: int) -> slice | int:
    if isinstance(part, slice):
        if part.step == 0 or not all(
            bound is None or hasattr(bound, "__index__") for bound in (part.start, part.stop, part.step)
        ):
            raise QueryError(f"cannot index axis {axis} with {part}")
        return part
    if isinstance(part, bool) or not hasattr(part, "__index__"):
        raise QueryError(f"arrays in files are indexed by numbers and slices, not by {part!r}")
    number: int = part.__index__()
    if not -size <= number < size:
        raise QueryError(f"index {number} is out of range for axis {axis}, which has size {size}")
    return number % size


def box_of(index: Index, shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], tuple[slice | int, ...]] | None:
    """The part that an index selects, as start and stop along each axis, and the index that removes the axes for which
    it has a number. None if it has steps.

    >>> box_of((2, slice(1, None)), (3, 4))
    ([(2, 3), (1, 4)], (0, slice(None, None, None)))
    """
    box = []
    parts = expanded(index, shape)
    for part, size in zip(parts, shape, strict=True):
        start, stop, step = (part, part + 1, 1) if isinstance(part, int) else part.indices(size)
        if step != 1:
            return None
        box.append((start, max(start, stop)))
    return box, tuple(0 if isinstance(part, int) else slice(None) for part in parts)


def sliced(memory: Memory, index: Index) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, shape and strides of the part of an array that an index selects."""
    offset, shape, strides = memory.offset, [], []
    for part, size, stride in zip(expanded(index, memory.shape), memory.shape, memory.strides, strict=True):
        if isinstance(part, int):
            offset += part * stride
            continue
        taken = range(*part.indices(size))
        offset += (taken.start if len(taken) else 0) * stride
        shape.append(len(taken))
        strides.append(stride * taken.step)
    return offset, tuple(shape), tuple(strides)


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(size, 1)
    return tuple(reversed(strides))


def is_c_order(memory: Memory) -> bool:
    expected = c_strides(memory.shape, memory.itemsize)
    return 0 in memory.shape or all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(memory.shape, memory.strides, expected, strict=True)
    )


def counts(numbers: Any, source: Source, offset: int, label: str) -> tuple[int, ...]:
    """A shape from a file, checked. Errors refer to it as `label`."""
    if not is_shape(numbers):
        raise source.error(offset, f"{label} is not a list of non-negative whole numbers, or is larger than any file")
    return tuple(numbers)


def is_shape(numbers: Any) -> bool:
    """Whether these numbers could be the shape of an array."""
    return (
        isinstance(numbers, tuple | list)
        and len(numbers) <= MAX_AXES
        and all(type(number) is int and 0 <= number < 1 << 58 for number in numbers)
        and prod(max(number, 1) for number in numbers) < 1 << 58
    )
