"""Leaves as views of one vector. See `lw.flat`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from leafwise.core.capabilities import Capability

# Where an array or a node is stored: the dict, the key in it, and the array or node.
DictSlot = tuple[Any, Any, Any]


class PackedPart(Protocol):
    """Arrays that are views of a vector, with gradients that are views of another. `order` is the order of the arrays
    in the vectors; `starts` and `sizes` are in that order."""

    order: list[int]
    starts: list[int]
    sizes: list[int]

    @property
    def dtype(self) -> Any: ...
    def values(self, moved: Callable[[int], Exception], full: bool = False) -> Any:
        """The vector of values. If an array is no longer in it, raises `moved(number)`. With `full`, all arrays are
        checked, however many there are."""

    def grads(self, moved: Callable[[int], Exception], full: bool = False) -> Any:
        """The vector of gradients, checked in the same way."""

    def is_intact(self) -> bool:
        """Whether every array and every gradient is still in its vector."""

    def holds(self, gradients: list[Any]) -> bool:
        """Whether these are the gradients of all arrays, and are in the vector."""

    def clip_together(self, max_norm: float) -> list[float] | None:
        """Like `Clipping.clip_together`, for the vector of gradients."""

    def norms(self) -> list[float]:
        """The norm of the gradient of each array."""

    def scale(self, factors: Sequence[float]) -> None:
        """Multiplies the gradient of each array by its factor; a single factor is used for all."""

    def undo(self) -> None:
        """Gives every array its own memory again."""


class Packing(Capability):
    action = "flatten"
    why = "its arrays cannot become views"

    def cannot_pack(self, value: Any) -> str:
        """Why an array cannot become a view of a vector; empty if it can."""
        return ""

    def slot(self, owner: Any, name: str) -> DictSlot | None:
        """Where a node stores a leaf or a child of this name; None if it is not in a dict."""
        return None

    def pack(self, values: list[Any], slots: list[list[DictSlot]]) -> list[tuple[list[int], PackedPart]]:
        """Makes arrays views of a few vectors, and returns each vector with the numbers of the arrays in it. `slots`
        are, for each array, the places that lead to it from the root down."""
        raise self.missing("flatten")

    def repoint(self, value: Any, view: Any) -> None:
        """Makes an array use the memory of a view."""
        raise self.missing("flatten")
