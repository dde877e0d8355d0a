"""What models and optimizers themselves say about parameter groups. See `lw.groups`."""

from collections.abc import Callable
from typing import Any

from leafwise.core.capabilities import Capability


class Grouping(Capability):
    has_defaults = True

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options of a group that an optimizer accepts; for None, the options that any optimizer accepts. None if
        they are not known."""
        return None

    def stepped(self, value: Any) -> Any:
        """The array that an optimizer must be given to step this one. Raises `RuleError` if there is none."""
        return value

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        """If nodes of this type say how deep their leaves are, a function that asks a node. Its arguments are the node
        and the names of leaves relative to it; it returns the level of each leaf, counted from 0, or None for a leaf
        after all levels."""
        return None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        """If nodes of this type say which of their leaves are not decayed, a function that asks a node. Its arguments
        are the node and the names of leaves relative to it."""
        return None
