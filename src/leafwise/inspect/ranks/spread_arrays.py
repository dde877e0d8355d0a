"""Reading boxes of arrays that are sharded over ranks: each rank sends what it has of a box, and gets all of it.

Only the boxes are in memory, never a whole array. Every rank must read the same boxes in the same order.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sharding import Team
from leafwise.core.home import Capabilities, Home, Spec
from leafwise.core.reader import BAND
from leafwise.inspect.ranks.teamwork import collect, counted_parts
from leafwise.kernels.dtypes import numpy_dtype

Box = tuple[slice, ...]


def whole_box(box: Sequence[slice], shape: tuple[int, ...]) -> Box:
    """A box with a start and a stop along every axis, all of them inside the array."""
    full = [*box, *[slice(None)] * (len(shape) - len(box))]
    ends = (part.indices(size) for part, size in zip(full, shape, strict=True))
    return tuple(slice(start, max(start, stop)) for start, stop, _ in ends)


def read_boxes(team: Team, arrays: Sequence[tuple[Home, Any]], boxes: Sequence[Box]) -> list[Any]:
    """A box of each array, as NumPy arrays, on every rank. Of whole arrays, all ranks get the values of the first."""
    specs = [home.spec(value) for home, value in arrays]
    wholes = [whole_box(box, spec.shape or ()) for box, spec in zip(boxes, specs, strict=True)]
    results = [
        np.empty([part.stop - part.start for part in box], numpy_dtype(spec.dtype))
        for box, spec in zip(wholes, specs, strict=True)
    ]
    for data in collect(team, lambda: _own_pieces(team, arrays, wholes)):
        end = 8 + int.from_bytes(data[:8], "big")
        for number, starts, shape in json.loads(data[8:end]):
            result = results[number]
            size = prod(shape) * result.dtype.itemsize
            piece = np.frombuffer(data[end : end + size], result.dtype).reshape(shape)
            places = zip(starts, shape, wholes[number], strict=True)
            result[tuple(slice(at - box.start, at - box.start + length) for at, length, box in places)] = piece
            end += size
    return results


def _own_pieces(team: Team, arrays: Sequence[tuple[Home, Any]], boxes: Sequence[Box]) -> bytes:
    """What this rank has of each box: a header with the number of the box, where the piece is, and its shape; then the
    values."""
    header: list[Any] = []
    pieces: list[bytes] = []
    for number, ((home, value), box) in enumerate(zip(arrays, boxes, strict=True)):
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
            header.append((number, [start for start, _ in ranges], [stop - start for start, stop in ranges]))
            pieces.append(np.ascontiguousarray(home.read(part.value, inside)).tobytes())
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "big"), text, *pieces])


class SpreadArray:
    """An array of which every rank has a part. `read` reads a box of it, together with the other ranks."""

    def __init__(self, spec: Spec, read: Callable[[Box], Any]) -> None:
        self.spec, self.read = spec, read


def spread_array(team: Team, home: Home, value: Any) -> SpreadArray:
    """An array that all ranks of a team read together."""
    return SpreadArray(home.spec(value), lambda box: read_boxes(team, [(home, value)], [box])[0])


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
