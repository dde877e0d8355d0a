"""Initial values. See `lw.initialize`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.loading import Loading
from leafwise.errors import Unsupported


class Draw(NamedTuple):
    """Random numbers: `shift + scale * x` for points x between -1 and 1, or if `normal`, in the place of x the number
    at which the normal distribution function is ½ + ½ `narrow` x."""

    normal: bool
    narrow: float
    scale: float
    shift: float


class WordRange(NamedTuple):
    """Some words of the generator with this key, from number `first` on, in rows of this shape; of each row, what is
    `inside`. `words()` makes them, as a NumPy array of numbers of 32 bits with their signs."""

    key: tuple[int, int]
    first: int
    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    words: Callable[[], Any]


class Filling(Capability):
    """Writing initial values into arrays, whole or row by row."""

    has_defaults = True

    def is_stock(self, owner: Any) -> bool:
        """Whether a layer is of the framework's own making, so that it begins with what the framework says."""
        return False

    def cannot_fill(self, value: Any) -> str:
        """Why initial values cannot be written into an array; empty where they can."""
        return self.home.capability(Loading).cannot_write(value)

    def local_parts(self, value: Any) -> list[tuple[Any, tuple[int, ...] | None]]:
        """The parts of an array that are here, each with where it begins; None where it is the whole."""
        return [(value, None)]

    def fill(self, value: Any, start: int, rows: Any) -> None:
        """Writes rows of an array from number `start` on; cast to its dtype."""
        np = import_module("numpy")
        whole = np.atleast_1d(np.array(self.home.read(value)))
        whole[start : start + len(rows)] = rows
        self.home.write(value, whole.reshape(self.home.spec(value).shape))

    def draw(self, value: Any, start: int, stretch: WordRange, draw: Draw) -> bool:
        """Makes numbers of words, and writes them as `fill` does; says whether it could. A word stands for the point
        (word + ½) / 2³¹."""
        return False

    def draw_size(self, value: Any) -> int:
        """How many elements of an array are best drawn at a time."""
        return 1 << 18

    def as_numpy(self, array: Any) -> Any:
        """What somebody made, one of this home's own arrays or not, as a NumPy array."""
        return import_module("numpy").asarray(array)

    def when_shaped(self, owner: Any, then: Callable[[Any], None]) -> None:
        """Calls with a layer once the shapes of its leaves are known."""
        raise Unsupported(self.home.name, "wait for shapes")
