"""New arrays, in place of arrays that cannot change, from memory of the host that is filled first."""

from typing import Any

import jax
import numpy as np

from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.memory import madvise
from leafwise.core.memory.sharding import LocalPart
from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import new_array, sharding_to_keep, why_irreplaceable, with_weak_type
from leafwise.homes.jax.specs import is_key_dtype

_ALIGNED = 64  # bytes: JAX on the CPU uses memory as it is if it begins at a multiple of this
_HUGE_PAGES_FROM = 1 << 22  # bytes of memory for which huge pages are worth it


class JaxRebuilding(Rebuilding):
    """For arrays, and for Variables of Flax NNX."""

    def cannot_renew(self, value: Any) -> str:
        return why_irreplaceable(self.home.value(value))

    def from_numpy(self, value: Any, array: Any) -> Any:
        return new_array(value, array)

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return self.from_numpy(value, np.zeros(shape, self.home.spec(value).dtype))

    def have_host_parts(self, values: list[Any]) -> list[bool]:
        arrays = map(self.home.value, values)
        return [not isinstance(array, np.ndarray) and not is_key_dtype(array.dtype) for array in arrays]

    def host_parts(self, values: list[Any]) -> list[list[LocalPart]]:
        arrays = list(map(self.home.value, values))
        for array in arrays:
            if reason := why_irreplaceable(array):
                raise Unsupported("jax", "replace an array", reason)
        boxes: dict[Any, list[_Box]] = {}  # models repeat a few shapes
        all_parts = []
        for array in arrays:
            key = array.shape, getattr(array, "sharding", None)
            if key not in boxes:
                boxes[key] = _boxes(*key)
            all_parts.append([LocalPart(_memory(size, array.dtype), first, size) for first, size in boxes[key]])
        return all_parts

    def from_host_parts(self, values: list[Any], host_parts: list[list[LocalPart]]) -> list[Any]:
        """On the CPU, the parts become the memory of the arrays, so they must not be written to any more."""
        for part in (part for parts in host_parts for part in parts):
            part.value.flags.writeable = False
        arrays = list(map(self.home.value, values))
        new: list[Any] = [None] * len(arrays)
        # JAX places many arrays at once in a fraction of the time, but not those with and without a sharding.
        whole: tuple[list[int], list[int]] = [], []
        for number, (array, parts) in enumerate(zip(arrays, host_parts, strict=True)):
            if len(parts) == 1 and parts[0].shape == tuple(array.shape):
                whole[sharding_to_keep(array) is None].append(number)
            else:
                new[number] = with_weak_type(_joined(array, parts), array)
        for numbers, is_free in zip(whole, (False, True), strict=True):
            shardings = None if is_free else [sharding_to_keep(arrays[number]) for number in numbers]
            placed = jax.device_put([host_parts[number][0].value for number in numbers], shardings)
            for number, array in zip(numbers, placed, strict=True):
                new[number] = with_weak_type(array, arrays[number])
        return new


_Box = tuple[tuple[int, ...], tuple[int, ...]]


def _boxes(shape: tuple[int, ...], sharding: Any) -> list[_Box]:
    """The different parts of an array on the devices of a sharding."""
    indices = [(slice(None),) * len(shape)] if sharding is None else sharding.devices_indices_map(shape).values()
    return list(dict.fromkeys(_box(index, shape) for index in indices))


def _joined(array: Any, parts: list[LocalPart]) -> Any:
    """An array like another one, from the parts on its devices."""
    by_box = {(part.first, part.shape): part.value for part in parts}
    shape = tuple(array.shape)
    return jax.make_array_from_callback(shape, array.sharding, lambda index: by_box[_box(index, shape)])


def _box(index: Any, shape: tuple[int, ...]) -> _Box:
    """Where the part of an array at an index begins, and the shape of the part."""
    ends = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return tuple(start for start, _ in ends), tuple(stop - start for start, stop in ends)


def _memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array with arbitrary values, in memory that JAX can use."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    if nbytes >= _HUGE_PAGES_FROM:
        madvise.use_huge_pages(raw.ctypes.data, raw.nbytes)
    return raw[start : start + nbytes].view(dtype).reshape(shape)
