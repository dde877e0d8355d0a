"""Reading boxes of arrays that are sharded over ranks: each rank sends what it has of a box, and gets all of it.

Only the boxes are in memory, never a whole array. Every rank must read the same boxes in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from leafwise.core.capabilities.measuring import BAND, Measuring
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sharding import Team
from leafwise.core.home import Capabilities, Home, Spec
from leafwise.inspect.ranks.teamwork import collect, counted_parts
from leafwise.kernels.dtypes import numpy_dtype

Box = tuple[slice, ...]
_ALIGNED = 16  # bytes, at multiples of which boxes begin in memory


def whole_box(box: Sequence[slice], shape: tuple[int, ...]) -> Box:
    """A box with a start and a stop along every axis, all of them inside the array."""
    full = [*box, *[slice(None)] * (len(shape) - len(box))]
    ends = (part.indices(size) for part, size in zip(full, shape, strict=True))
    return tuple(slice(start, max(start, stop)) for start, stop, _ in ends)


def read_boxes(team: Team, arrays: Sequence[tuple[Home, Any]], boxes: Sequence[Box]) -> list[Any]:
    """A box of each array, as NumPy arrays, on every rank. Of whole arrays, all ranks get the values of the first.

    Each rank fills in what it has of the boxes, and the others have zeros there: a rank receives about twice the boxes,
    however many ranks have a part of them."""
    specs = [home.spec(value) for home, value in arrays]
    wholes = [whole_box(box, spec.shape or ()) for box, spec in zip(boxes, specs, strict=True)]
    shapes = [[part.stop - part.start for part in box] for box in wholes]
    dtypes = [numpy_dtype(spec.dtype) for spec in specs]
    sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
    *starts, end = accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)

    def placed(data: bytearray) -> list[Any]:
        """The boxes, whose values are in one piece of memory."""
        return [
            np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
            for start, shape, dtype in zip(starts, shapes, dtypes, strict=True)
        ]

    own = bytearray(end)

    def work() -> bytes:
        for (home, value), box, result in zip(arrays, wholes, placed(own), strict=True):
            _fill(team, home, value, box, result)
        return b""

    collect(team, work)
    return placed(bytearray(team.overlay(bytes(own))))


def _fill(team: Team, home: Home, value: Any, box: Box, result: Any) -> None:
    """Writes what this rank has of a box."""
    for part in counted_parts(home, value, team):
        ranges = [
            (max(first, wanted.start), min(first + size, wanted.stop))
            for first, size, wanted in zip(part.first, part.shape, box, strict=True)
        ]
        if any(start >= stop for start, stop in ranges):
            continue
        inside = tuple(
            slice(start - first, stop - first) for (start, stop), first in zip(ranges, part.first, strict=True)
        )
        there = tuple(slice(start - of.start, stop - of.start) for (start, stop), of in zip(ranges, box, strict=True))
        result[there] = home.read(part.value, inside)


class SpreadArray:
    """An array of which every rank has a part. `read` reads a box of it, together with the other ranks."""

    def __init__(self, spec: Spec, read: Callable[[Box], Any]) -> None:
        self.spec, self.read = spec, read


class _SpreadMeasuring(Measuring):
    def reads_parts(self, value: SpreadArray) -> bool:
        return True


class _SpreadSaving(Saving):
    def pieces(self, value: SpreadArray) -> Iterator[Any]:
        for box in band_boxes(value.spec.shape or ()):
            yield np.ascontiguousarray(value.read(box)).reshape(-1).view(np.uint8).data


def band_boxes(shape: tuple[int, ...]) -> Iterator[Box]:
    """Boxes of consecutive rows that contain all values of an array in C order; of a number, the number."""
    if not shape:
        yield ()
        return
    step = max(1, BAND // max(prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])),)


class SpreadHome(Home):
    """The home of spread arrays, so that whatever reads and compares arrays can read and compare them."""

    name = "ranks"
    capabilities: ClassVar[Capabilities] = {Measuring: _SpreadMeasuring, Saving: _SpreadSaving}

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if cls is SpreadArray else None

    def spec(self, value: SpreadArray) -> Spec:
        return value.spec

    def read(self, value: SpreadArray, index: Any = ()) -> Any:
        return value.read(index if isinstance(index, tuple) else (index,))


SPREAD = SpreadHome()
