"""NumPy arrays as leaves of containers."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.home import Capabilities, Home, Memory, Spec
from leafwise.core.memory.runs import Run
from leafwise.core.results.moments import Moments
from leafwise.core.work.progress import Count
from leafwise.errors import Unsupported, WriteError
from leafwise.kernels import cpu
from leafwise.kernels.casting import cast_numbers
from leafwise.kernels.dtypes import unknown_dtype

_PIECE_BYTES = 8 << 20  # bytes copied at a time


class NumpyRebuilding(Rebuilding):
    renews_beside_values = True

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return np.empty_like(value, shape=shape)


class NumpySaving(Saving):
    def pieces(self, value: Any) -> Iterator[Any]:
        if isinstance(value, np.ma.MaskedArray):
            raise Unsupported(self.home.name, "save a masked array", "save its data and its mask instead")
        value = np.asarray(value)
        if value.flags.c_contiguous and value.dtype.isnative:
            yield value.reshape(-1).view(np.uint8).data if value.size else b""
            return
        native = value.dtype.newbyteorder("=")
        rows = max(1, _PIECE_BYTES // max(value[:1].nbytes, 1)) if value.ndim else 1
        for start in range(0, len(value) if value.ndim else 1, rows):
            part = value[start : start + rows] if value.ndim else value
            yield np.ascontiguousarray(part, native).reshape(-1).view(np.uint8).data

    def snapshot(self, values: list[Any]) -> list[Any]:
        return [value.copy() for value in values]


def _writable_bytes(value: Any) -> memoryview | None:
    is_plain = value.flags.c_contiguous and value.flags.writeable and value.dtype.isnative
    if not is_plain or isinstance(value, np.ma.MaskedArray):
        return None
    return value.reshape(-1).view(np.uint8).data if value.size else memoryview(bytearray())


class NumpyLoading(Loading):
    def cannot_write(self, values: list[Any]) -> list[str]:
        return ["" if value.flags.writeable else "the array is read-only" for value in values]

    def writable_bytes(self, values: list[Any]) -> list[memoryview | None]:
        return list(map(_writable_bytes, values))

    def locations(self, values: list[Any]) -> list[tuple[object, Memory] | None]:
        return [("cpu", HOME.memory(value)) if value.size else None for value in values]


class NumpyAveraging(Averaging):
    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        narrow = [precise and value.dtype.itemsize < 4 and value.dtype.kind in "fV" for value in values]
        return [
            value.astype(np.float32) if is_narrow else value.copy()
            for value, is_narrow in zip(values, narrow, strict=True)
        ]

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        for target, value in zip(targets, values, strict=True):
            target[...] = value
        return targets

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        for target, value in zip(targets, values, strict=True):
            target += weight * (value.astype(target.dtype) - target)
        return targets


class NumpyFilling(Filling):
    def fill(self, value: Any, start: int, rows: Any) -> None:
        np.atleast_1d(value)[start : start + len(rows)] = rows


class NumpyMeasuring(Measuring):
    def cannot_measure(self, value: Any) -> str:
        if isinstance(value, np.ma.MaskedArray):
            return "it is a masked array; pass its data instead"
        return unknown_dtype(value.dtype.name)

    def measure(self, values: list[Any], histogram: bool, count: Count) -> Callable[[], list[Moments]]:
        moments = cpu.measure_arrays(values, histogram, count)
        return lambda: moments


class NumpyComparing(Comparing):
    def cannot_compare(self, value: Any) -> str:
        if isinstance(value, np.ma.MaskedArray):
            return "it is a masked array; pass its data instead"
        is_number = value.dtype.kind in "biufc" or value.dtype.type.__module__ == "ml_dtypes"
        return "" if is_number else f"an array of dtype {value.dtype.name} contains no numbers"

    def contiguous_run(self, value: Any) -> Run | None:
        return cpu.run_of(value) if value.flags.c_contiguous and value.dtype.isnative else None


class NumpyHome(Home):
    name = "numpy"
    capabilities: ClassVar[Capabilities] = {
        Averaging: NumpyAveraging,
        Comparing: NumpyComparing,
        Filling: NumpyFilling,
        Loading: NumpyLoading,
        Measuring: NumpyMeasuring,
        Rebuilding: NumpyRebuilding,
        Saving: NumpySaving,
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if issubclass(cls, np.ndarray) else None

    def spec(self, value: Any) -> Spec:
        return Spec(value.shape, value.dtype.name, "cpu", value.size, value.nbytes)

    def read(self, value: Any, index: Any = ()) -> Any:
        return value if isinstance(index, tuple) and not index else value[index]

    def write(self, value: Any, array: Any) -> None:
        try:
            source = np.asarray(array)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise WriteError(f"cannot write {type(array).__name__}: {reason}") from error
        if not hasattr(array, "dtype"):
            # Python numbers are cast to the dtype of the leaf if only precision is lost.
            with np.errstate(over="ignore"):  # an overflow is reported below
                cast = source.astype(value.dtype) if np.can_cast(source.dtype, value.dtype, "same_kind") else None
            if cast is None or (value.dtype.kind in "iub" and not np.array_equal(cast, source)):
                raise WriteError(f"cannot write {source.dtype} values into {value.dtype} without loss")
            source = cast_numbers(source, value.dtype.name) if value.dtype.kind not in "iub" else cast
        if (source.shape, source.dtype.newbyteorder("=")) != (value.shape, value.dtype.newbyteorder("=")):
            raise WriteError(
                f"cannot write {source.dtype} of shape {source.shape} into {value.dtype} of shape {value.shape}"
            )
        if not value.flags.writeable:
            raise WriteError("the array is read-only")
        value[...] = source

    def storages(self, values: list[Any]) -> list[object | None]:
        # Not for a masked array: its values depend on the mask, not only on the memory.
        return [
            id(_owner(value)) if value.size and not isinstance(value, np.ma.MaskedArray) else None for value in values
        ]

    def memory(self, value: Any) -> Memory:
        address = value.__array_interface__["data"][0]
        # In the other byte order, the same bytes are different numbers.
        dtype = value.dtype.name if value.dtype.isnative else f"{value.dtype.name} swapped"
        return Memory(address, value.shape, value.strides, value.itemsize, dtype)


def _owner(array: Any) -> Any:
    """The object at the end of a chain of views that owns the memory: an array, or a buffer of another type."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


HOME = NumpyHome()
