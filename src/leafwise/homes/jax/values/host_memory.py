"""The values of arrays on the host, shard by shard.

An array that is sharded over several devices is never assembled by JAX, which would keep the copy as long as the array
lives: what is needed is copied from the shards that have it. Of equal shards, only one is read.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from leafwise.core.memory.sharding import LocalPart, flat_boxes


def host_shards(value: Any) -> list[LocalPart]:
    """The shards of an array, each once. On the CPU, they are the memory of the array itself; as long as they are in
    use, JAX does not overwrite it, even if the array is donated."""
    if len(value.sharding.device_set) == 1:
        return [LocalPart(_on_host(value), (0,) * value.ndim, tuple(value.shape))]
    return [
        LocalPart(_on_host(shard.data), tuple(part.start or 0 for part in shard.index), tuple(shard.data.shape))
        for shard in value.addressable_shards
        if shard.replica_id == 0
    ]


def is_on_cpu(value: Any) -> bool:
    return all(device.platform == "cpu" for device in value.sharding.device_set)


def _on_host(value: Any) -> Any:
    """The values of an array on one device."""
    if not is_on_cpu(value):
        # Another object over the same memory: JAX would keep the copy on the host with the array itself.
        value = jax.make_array_from_single_device_arrays(value.shape, value.sharding, [value])
    array = np.asarray(value)
    array.flags.writeable = False
    return array


def read_shards(shards: Sequence[LocalPart], shape: tuple[int, ...], dtype: Any, index: Any = ()) -> Any:
    """The part of an array at an index, as a NumPy array."""
    if len(shards) == 1 and shards[0].shape == shape:
        return shards[0].value[index]
    parts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(part, int | slice) for part in parts):
        return read_shards(shards, shape, dtype)[index]
    low: list[int] = []
    high: list[int] = []
    rest: list[int | slice] = []
    for part, size in zip((*parts, *(slice(None) for _ in shape[len(parts) :])), shape, strict=True):
        if isinstance(part, int):
            at = range(size)[part]
            low.append(at)
            high.append(at + 1)
            rest.append(0)
        else:
            taken = range(size)[part]
            low.append(min(taken[0], taken[-1]) if taken else 0)
            high.append(max(taken[0], taken[-1]) + 1 if taken else 0)
            rest.append(slice(None, None, taken.step))
    array = np.empty([stop - start for start, stop in zip(low, high, strict=True)], dtype)
    _copy_box(shards, low, array)
    return array[tuple(rest)]


def copy_range(shards: Sequence[LocalPart], shape: tuple[int, ...], start: int, out: Any) -> None:
    """Copies elements of an array from number `start` on, in C order, into a flat NumPy array of its dtype."""
    for box in flat_boxes(shape, start, start + out.size):
        _copy_box(shards, box.first, out[box.local : box.local + prod(box.shape)].reshape(box.shape))


def _copy_box(shards: Sequence[LocalPart], low: Sequence[int], out: Any) -> None:
    """Copies the box of an array that begins at `low` and has the shape of `out`."""
    for shard in shards:
        overlap = shard.overlap(low, out.shape)
        if overlap is not None:
            _bits(out)[overlap[1]] = _bits(shard.value)[overlap[0]]


def _bits(array: Any) -> Any:
    """The elements as unsigned integers, which NumPy copies faster than dtypes that it does not know itself."""
    return array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array
