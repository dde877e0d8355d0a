"""Initial values. See `lw.initialize`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.loading import Loading
from leafwise.core.work.progress import Count
from leafwise.errors import Unsupported


class Draw(NamedTuple):
    """Numbers `shift + scale * x`. `uniform`: x is uniform between -1 and 1. `normal`: x is the normal quantile of
    (1 + `narrow` u) / 2, for u uniform between -1 and 1."""

    shape: Literal["uniform", "normal"]
    narrow: float
    scale: float
    shift: float


class WordRange(NamedTuple):
    """Words of the random generator with this key, starting with word number `first`, in rows of this shape; only the
    part `inside` of each row. `words()` computes them, as a NumPy array of signed 32-bit integers."""

    key: tuple[int, int]
    first: int
    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    words: Callable[[], Any]


class DrawJob(NamedTuple):
    """An array to draw, with its axes in the order in which elements are numbered. It is the part of this shape that
    begins at `first` in an array of shape `whole`, whose elements are numbered row by row."""

    value: Any
    key: tuple[int, int]
    whole: tuple[int, ...]
    first: tuple[int, ...]
    shape: tuple[int, ...]
    draw: Draw


class Filling(Capability):
    """Writing initial values into arrays, whole or row by row."""

    has_defaults = True

    @property
    def by_parts(self) -> bool:
        """Whether arrays are filled row by row; if not, `Rebuilding.updated` gets all values of an array."""
        return self.home.in_place

    def is_stock(self, owner: Any) -> bool:
        """Whether a layer is one of the framework's own and starts with the framework's initial values."""
        return False

    def cannot_fill(self, values: list[Any]) -> list[str]:
        """For each array, why initial values cannot be written into it; empty if they can."""
        return self.home.capability(Loading).cannot_write(values)

    def fill(self, value: Any, start: int, rows: Any) -> None:
        """Writes rows of an array, starting with row number `start`, cast to its dtype."""
        np = import_module("numpy")
        whole = np.atleast_1d(np.array(self.array_of(value)))
        whole[start : start + len(rows)] = rows
        self.home.write(value, whole.reshape(self.home.spec(value).shape))

    def draw(self, value: Any, start: int, words: WordRange, draw: Draw) -> bool:
        """Draws numbers from random words, and writes them like `fill`; returns False if that is not possible. A word
        represents the point (word + ½) / 2³¹."""
        return False

    def draw_together(self, jobs: list[DrawJob], count: Count) -> list[bool]:
        """Draws arrays in one step, and returns which of them; the others are drawn one by one. Calls `count` with the
        number of elements drawn."""
        return [False] * len(jobs)

    def draw_size(self, value: Any) -> int:
        """How many elements of an array are best drawn at a time."""
        return 1 << 18

    def as_numpy(self, array: Any) -> Any:
        """An array that a user's function returned, of this home or not, as a NumPy array."""
        return import_module("numpy").asarray(array)

    def when_shaped(self, owner: Any, then: Callable[[Any], None]) -> None:
        """Calls `then(owner)` once the shapes of the leaves of a layer are known."""
        raise Unsupported(self.home.name, "wait for shapes")
