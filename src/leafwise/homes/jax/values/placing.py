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

    def host_parts(self, value: Any) -> list[LocalPart]:
        array = self.home.value(value)
        if reason := why_irreplaceable(array):
            raise Unsupported("jax", "replace an array", reason)
        shape, sharding = tuple(array.shape), getattr(array, "sharding", None)
        indices = [(slice(None),) * len(shape)] if sharding is None else sharding.devices_indices_map(shape).values()
        boxes = dict.fromkeys(_box(index, shape) for index in indices)
        return [LocalPart(_memory(size, array.dtype), first, size) for first, size in boxes]

    def from_host_parts(self, value: Any, host_parts: list[LocalPart]) -> Any:
        """On the CPU, the parts become the memory of the array, so they must not be written to any more."""
        array = self.home.value(value)
        for host_part in host_parts:
            host_part.value.flags.writeable = False
        if len(host_parts) == 1 and host_parts[0].shape == tuple(array.shape):
            return with_weak_type(jax.device_put(host_parts[0].value, sharding_to_keep(array)), array)
        by_box = {(host_part.first, host_part.shape): host_part.value for host_part in host_parts}
        shape = tuple(array.shape)
        new = jax.make_array_from_callback(shape, array.sharding, lambda index: by_box[_box(index, shape)])
        return with_weak_type(new, array)


def _box(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
