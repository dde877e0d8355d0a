"""What the verbs of iterate tell a home, and what it gives them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Draw(NamedTuple):
    """Random numbers: `shift + scale * x` for points x between -1 and 1, or if `normal`, in the place of x the number
    at which the normal distribution function is ½ + ½ `narrow` x."""

    normal: bool
    narrow: float
    scale: float
    shift: float


# Where an array or a node stands: the dict that has it, the key there, and itself.
Slot = tuple[Any, Any, Any]


class Stretch(NamedTuple):
    """Some words of the generator with this key, from number `first` on, in rows of this shape; of each row, what is
    `inside`. `words()` makes them, as a NumPy array of numbers of 32 bits with their signs."""

    key: tuple[int, int]
    first: int
    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    words: Callable[[], Any]


class PackedPart(Protocol):
    """Arrays that are views of a vector, and their gradients views of another. `order` says which array stands at
    which place, `starts` and `sizes` where that is."""

    order: list[int]
    starts: list[int]
    sizes: list[int]

    @property
    def dtype(self) -> Any: ...
    def values(self, moved: Callable[[int], Exception], full: bool = False) -> Any:
        """The values; raises what `moved` makes of the number of an array that lies elsewhere by now. With `full`, all
        are looked at, however many there are."""

    def grads(self, moved: Callable[[int], Exception], full: bool = False) -> Any:
        """The gradients, likewise."""

    def is_intact(self) -> bool:
        """Whether every array and every gradient lies where it should."""

    def holds(self, gradients: list[Any]) -> bool:
        """Whether these are all the gradients, and lie in the vector."""

    def norms(self) -> list[float]:
        """The norm of the gradient of each array."""

    def scale(self, factors: Sequence[float]) -> None:
        """Multiplies the gradient of each array; by one factor, where there is only one."""

    def undo(self) -> None:
        """Gives every array memory of its own again."""
