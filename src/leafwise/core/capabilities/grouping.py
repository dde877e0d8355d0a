"""What models and optimizers say themselves about groups of parameters. See `lw.groups`."""

from collections.abc import Callable
from typing import Any

from leafwise.core.capabilities import Capability


class Grouping(Capability):
    has_defaults = True

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options that an optimizer takes for a group, or where none is given, that any does; None where nobody
        knows."""
        return None

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        """For a type whose nodes say themselves how deep their leaves lie, a function that asks one of them. It takes
        the node and the names of leaves as seen from there, and gives the level of each, counted from 0; None for what
        comes after all levels."""
        return None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        """For a type whose nodes say themselves which of their leaves are not to be decayed, a function that asks one
        of them. It takes the node and the names of leaves as seen from there."""
        return None
