"""Kinds of arrays that only the node above their container knows. See `core.roles.sections`."""

from typing import TYPE_CHECKING, Any

from leafwise.core.capabilities import Capability

if TYPE_CHECKING:
    from leafwise.core.home import LeafKind


class Sorting(Capability):
    """For homes whose nodes have containers of arrays, such as a tuple of statistics in one Variable."""

    action = "tell the kinds of arrays in containers"

    def kind_inside(self, owner: Any, name: str) -> "LeafKind | None":
        """The kind of the arrays in the child of this name, a plain container; None if their form and place decide."""
        raise self.missing("tell the kinds of arrays in containers")
