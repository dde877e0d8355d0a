"""Comparing the values of two arrays. See `lw.diff`."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.dtypes import WORDS
from leafwise.core.memory.runs import Run
from leafwise.core.results.comparison import Comparison
from leafwise.core.work.progress import Count


class OtherArray(NamedTuple):
    """An array of another home, which is compared with an array on a device: as a run, or by its bytes in C order."""

    shape: tuple[int, ...]
    dtype: str
    size: int
    run: Run | None
    pieces: Callable[[], Iterable[Any]]


class DeviceResult(NamedTuple):
    """How two arrays compare: the figures, if the first is not the second transposed; whether casting one gives the
    other, if their dtypes differ; and whether the first matrix is the second transposed. That is None if it is not
    known, so that it must be tested in another way."""

    comparison: Comparison | None
    is_cast: bool = False
    is_transposed: bool | None = False


class Comparing(Capability):
    has_defaults = True

    def compares_on(self, device: str) -> bool:
        """Whether `compare_on_device` compares arrays on a device, given by its name in their specs."""
        return False

    def compare_on_device(
        self, firsts: list[Any], seconds: list[Any], count: Count
    ) -> Callable[[], list[DeviceResult | None]]:
        """Starts comparing the pairs of arrays of the same size in two lists, each with at least one array of this home
        on a device; the other one may be an `OtherArray`, which is read before this returns. The function that is
        returned waits for the results. A result is None for a pair that must be compared in another way. `count` is
        called with the number of bytes of the first arrays that were compared since the last call. Raises `UnreadError`
        if a run in a file could not be read to its end."""
        raise self.missing("compare values on a device")

    def cannot_compare(self, value: Any) -> str:
        """Why the values of an array cannot be compared with others; empty if they can."""
        return self.home.cannot_read(value)

    def cannot_compare_each(self, values: list[Any]) -> list[str]:
        """`cannot_compare` of each array; a home may override it to be faster."""
        return [self.cannot_compare(value) for value in values]

    def contiguous_run(self, value: Any) -> Run | None:
        """The elements of an array, if they are contiguous and in C order, in memory or in a local file. Otherwise
        None; they must then be read by `Saving.pieces`."""
        return None

    def same_bits(self, first: Any, second: Any) -> bool:
        """Whether two arrays have the same values, bit by bit; raises if there are no values to compare."""
        a, b = self.array_of(first), self.array_of(second)
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())

    def fingerprint(self, value: Any) -> tuple[int, bool] | None:
        """A number that is equal for arrays of one dtype that have the same values in any order, and whether all
        values are equal. It is the sum of the bits of the elements, as unsigned integers modulo 2⁶⁴; a complex
        element counts as two. None if there are no values."""
        if self.home.cannot_read(value) or not self.home.spec(value).size:
            return None
        words = words_of(self.array_of(value))
        return int(words.sum(dtype="uint64")), bool((words == words[0]).all())


def words_of(array: Any) -> Any:
    """The bits of the elements of a NumPy array as unsigned integers: a row for each element."""
    flat = import_module("numpy").ascontiguousarray(array).reshape(-1)
    parts = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
    return parts.view(WORDS.get(parts.itemsize, "uint8")).reshape(flat.size, -1)
