"""Reading arrays where they are: their bytes, for a file, straight from the memory of each device's shards; and their
elements, for comparing them, if they are on the CPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import jax
import numpy as np

from leafwise.core.capabilities.comparing import Comparing, words_of
from leafwise.core.capabilities.saving import Extraction, Part, Saving
from leafwise.core.memory.runs import Run
from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import read_array, why_unreadable
from leafwise.homes.jax.specs import is_key_dtype
from leafwise.homes.jax.values.host_memory import copy_range, host_shards, is_on_cpu
from leafwise.kernels import cpu
from leafwise.kernels.dtypes import unknown_dtype

_PIECE_BYTES = 4 << 20  # bytes that are copied at a time


class HostArray:
    """An array in the memory of the host, in one or several shards."""

    def __init__(self, value: Any) -> None:
        if is_key_dtype(value.dtype):
            value = jax.random.key_data(value)
        self.shape, self.dtype = tuple(value.shape), np.dtype(value.dtype)
        self.shards = host_shards(value)
        self.nbytes = prod(self.shape) * self.dtype.itemsize

    def memory(self) -> memoryview | None:
        """All bytes in C order, if they are in one place."""
        array = self.shards[0].value
        if len(self.shards) > 1 or not array.flags.c_contiguous:
            return None
        return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")

    def copy(self, start: int, out: Any) -> None:
        """Copies bytes from `start` on, which are whole elements, into NumPy bytes."""
        copy_range(self.shards, self.shape, start // self.dtype.itemsize, out.view(self.dtype))


class JaxExtraction:
    """Gives threads the bytes of arrays on the CPU. It holds their memory from the beginning: if they are donated to a
    jitted function meanwhile, as in a training step beside a background save, JAX copies them instead."""

    largest = _PIECE_BYTES

    def __init__(self, values: Sequence[Any], arrays: Sequence[Any]) -> None:
        self._values = values  # so that no other object gets the id of one of them
        self._arrays = {id(value): HostArray(array) for value, array in zip(values, arrays, strict=True)}
        self._buffers: list[Any] = []  # that no thread uses

    @contextmanager
    def copied(self, parts: Sequence[Part]) -> Iterator[memoryview]:
        if len(parts) == 1:
            whole = self._arrays[id(parts[0].value)].memory()
            if whole is not None:
                yield whole[parts[0].start : parts[0].stop]  # it never changes, so it need not be copied
                return
        nbytes = sum(part.stop - part.start for part in parts)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(_PIECE_BYTES, np.uint8)
        if len(buffer) < nbytes:
            buffer = np.empty(nbytes, np.uint8)
        filled = 0
        for value, start, stop in parts:
            self._arrays[id(value)].copy(start, buffer[filled : filled + stop - start])
            filled += stop - start
        yield buffer[:nbytes].data
        self._buffers.append(buffer)

    def finish(self) -> None:
        pass


class JaxSaving(Saving):
    """For arrays, for what contains one, and for the nodes of all homes of JAX."""

    def extractions(self, values: list[Any]) -> list[Extraction | None]:
        """None for arrays that are not `jax.Array`s on the CPU."""
        arrays = list(map(self.home.value, values))
        are_there = [
            isinstance(array, jax.Array) and not why_unreadable(array) and is_on_cpu(array) for array in arrays
        ]
        chosen = [number for number, is_there in enumerate(are_there) if is_there]
        extraction = JaxExtraction([values[number] for number in chosen], [arrays[number] for number in chosen])
        return [extraction if is_there else None for is_there in are_there]

    def pieces(self, value: Any) -> Iterator[Any]:
        if isinstance(self.home.value(value), np.ndarray):
            yield self.array_of(value).tobytes()
            return
        value = self.home.value(value)
        if reason := why_unreadable(value):
            raise Unsupported("jax", "be saved", reason)
        array = HostArray(value)
        whole = array.memory()
        if whole is not None:
            yield whole
            return
        buffer = np.empty(min(_PIECE_BYTES, array.nbytes), np.uint8)  # a multiple of every size of elements
        for start in range(0, array.nbytes, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, array.nbytes - start)]
            array.copy(start, piece)
            yield piece.data

    def snapshot(self, values: list[Any]) -> list[Any]:
        return [_snapshot(self.home.value(value)) for value in values]

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        cls = type(obj)
        name = f"{cls.__module__}.{cls.__qualname__}"
        # A class of one's own is recorded with the framework that it is of, because a file must show that.
        packages = [f"{base.__module__}." for base in cls.__mro__]
        own = [known for known in ("flax.nnx.", "equinox.") if any(package.startswith(known) for package in packages)]
        return (f"{own[0]}Module {name}" if own and not name.startswith(own[0]) else name), None


def _snapshot(array: Any) -> Any:
    """An array that stays as it is while it is saved. On the CPU, `JaxExtraction` holds its memory; a copy on another
    device would be deleted if it is donated."""
    if isinstance(array, np.ndarray):
        return np.array(array)
    if reason := why_unreadable(array):
        raise Unsupported("jax", "be saved", reason)
    return array if is_on_cpu(array) else read_array(array)


class JaxComparing(Comparing):
    def contiguous_run(self, value: Any) -> Run | None:
        """The elements of an array on one device of the CPU."""
        value = self.home.value(value)
        if not isinstance(value, jax.Array) or why_unreadable(value) or is_key_dtype(value.dtype):
            return None
        if unknown_dtype(value.dtype.name) or len(value.sharding.device_set) > 1 or not is_on_cpu(value):
            return None
        array = read_array(value)
        return cpu.run_of(array) if array.flags.c_contiguous else None

    def same_bits(self, first: Any, second: Any) -> bool:
        a, b = self.array_of(first), self.array_of(second)
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(words_of(a), words_of(b)))
