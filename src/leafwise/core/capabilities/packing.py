"""Leaves as views of one vector. See `lw.flat`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from leafwise.core.capabilities import Capability

# Where an array or a node stands: the dict that has it, the key there, and itself.
DictSlot = tuple[Any, Any, Any]


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


class Packing(Capability):
    action = "flatten"
    why = "its arrays cannot become views"

    def cannot_pack(self, value: Any) -> str:
        """Why an array cannot become a view of a vector; empty where it can."""
        return ""

    def slot(self, owner: Any, name: str) -> DictSlot | None:
        """Where a node has a leaf or a child of this name; None where there is no dict that would say."""
        return None

    def pack(self, values: list[Any], slots: list[list[DictSlot]]) -> list[tuple[list[int], PackedPart]]:
        """Makes arrays views of a few vectors, each with the numbers of the arrays that are in it. `slots` lead to each
        array, from the root down."""
        raise NotImplementedError

    def repoint(self, value: Any, view: Any) -> None:
        """Lets an array lie where another lies."""
        raise NotImplementedError
