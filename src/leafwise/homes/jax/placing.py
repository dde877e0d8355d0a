"""New arrays, in place of arrays that cannot change, from memory of the host that is filled first."""

from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from leafwise.core import madvise
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.sharding import LocalPart
from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import as_weak_as, is_key_dtype, new_array, sharding_to_keep, why_irreplaceable

_ALIGNED = 64  # bytes: JAX on the CPU uses memory as it is if it begins at a multiple of this
_LARGE = 1 << 22  # bytes of memory for which huge pages are worth it


def rooms_for(value: Any) -> list[LocalPart]:
    """Memory of the host for the values of an array that takes the place of `value`: for each part that devices have,
    once."""
    if reason := why_irreplaceable(value):
        raise Unsupported("jax", "replace an array", reason)
    boxes = _boxes(value)
    return [LocalPart(_memory(shape, value.dtype), first, shape) for first, shape in dict.fromkeys(boxes.values())]


def array_from_rooms(value: Any, rooms: list[LocalPart]) -> Any:
    """The new array. On the CPU, the rooms become its memory, so they must not be written to any more."""
    for room in rooms:
        room.value.flags.writeable = False
    if len(rooms) == 1 and rooms[0].shape == tuple(value.shape):
        return as_weak_as(value, jax.device_put(rooms[0].value, sharding_to_keep(value)))
    sharding, by_box = value.sharding, {(room.first, room.shape): room.value for room in rooms}
    arrays = [
        jax.device_put(by_box[box], SingleDeviceSharding(device, memory_kind=sharding.memory_kind))
        for device, box in _boxes(value).items()
    ]
    return as_weak_as(value, jax.make_array_from_single_device_arrays(tuple(value.shape), sharding, arrays))


def _boxes(value: Any) -> dict[Any, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By device, where its part of an array begins, and the shape of the part."""
    shape, sharding = tuple(value.shape), getattr(value, "sharding", None)
    if sharding is None:
        return {None: ((0,) * len(shape), shape)}
    boxes = {}
    for device, index in sharding.devices_indices_map(shape).items():
        ends = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        boxes[device] = tuple(start for start, _ in ends), tuple(stop - start for start, stop in ends)
    return boxes


def _memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array with arbitrary values, in memory that JAX can use."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    if nbytes >= _LARGE:
        madvise.use_huge_pages(raw.ctypes.data, raw.nbytes)
    return raw[start : start + nbytes].view(dtype).reshape(shape)


class JaxRebuilding(Rebuilding):
    def cannot_renew(self, value: Any) -> str:
        return why_irreplaceable(value)

    def from_numpy(self, value: Any, array: Any) -> Any:
        return new_array(value, array)

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return new_array(value, np.zeros(shape, self.home.spec(value).dtype))

    def has_rooms(self, value: Any) -> bool:
        return not is_key_dtype(value.dtype)

    def rooms(self, value: Any) -> list[LocalPart]:
        return rooms_for(value)

    def from_rooms(self, value: Any, rooms: list[LocalPart]) -> Any:
        return array_from_rooms(value, rooms)
