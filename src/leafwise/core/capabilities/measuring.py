"""Statistics of arrays, see `lw.stats`; and reading an array in parts, with only one part in memory at a time."""

from collections.abc import Callable, Iterator
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.work.progress import Count
from leafwise.errors import Unsupported

if TYPE_CHECKING:
    from leafwise.core.home import Home, Spec
    from leafwise.core.results.moments import Moments

BAND = 1 << 22  # elements in a band

Reader = Callable[[tuple[slice, ...]], Any]


class PendingMeasurement(NamedTuple):
    """Arrays that are being measured again: the function that waits for the result, and their specs."""

    wait: "Callable[[], list[Moments]]"
    specs: "list[Spec]"


class Measuring(Capability):
    has_defaults = True

    def cannot_measure(self, value: Any) -> str:
        """Why an array cannot be measured; empty if it can."""
        return self.home.cannot_read(value)

    def measure_again(self, values: list[Any], histogram: bool) -> PendingMeasurement | None:
        """Like `measure`, without asking `cannot_measure` first, if these arrays were measured before, are still where
        they were, and have the same shapes and dtypes. None if not, or if that cannot be found out quickly."""
        return None

    def measure(self, values: list[Any], histogram: bool, count: Count) -> "Callable[[], list[Moments]]":
        """Starts measuring arrays, in one pass, and returns a function that waits for the result. `count` is called
        with the number of bytes that were measured since the last call."""
        arrays = [self.array_of(value) for value in values]
        handled = import_module("leafwise.core.registry").find(type(arrays[0])) if arrays else None
        if handled is None:
            raise Unsupported(self.home.name, "be measured")
        measuring: Measuring = handled[0].capability(Measuring)
        return measuring.measure(arrays, histogram, count)

    def reads_parts(self, value: Any) -> bool:
        """Whether `home.read` reads a part without the rest. If not, a caller that needs many parts reads all of it."""
        return False


def reader(home: "Home", value: Any) -> Reader:
    """A function that reads parts of an array as NumPy arrays."""
    if not home.capability(Measuring).reads_parts(value):
        whole = home.read(value, ())
        return lambda box: whole[box]
    return lambda box: home.read(value, box)


def bands(home: "Home", value: Any, shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """An array with at least one axis, as NumPy arrays of several rows each, with the number of the first row."""
    read = reader(home, value)
    step = max(1, BAND // max(prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        yield start, read((slice(start, start + step),))
