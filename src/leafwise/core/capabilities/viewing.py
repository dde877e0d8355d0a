"""Arrays that are views of other arrays: a transpose, a slice."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.memory.ops import Op


class Viewing(Capability):
    """Making views, and knowing which leaves are views because of a tie."""

    action = "make views"

    def seen_through(self, value: Any, op: Op) -> Any:
        """The array as it is under a name with this op."""
        raise self.missing("make views")

    def view_names(self, cls: type) -> frozenset[str]:
        """The leaves of a node of this type that are views of a leaf elsewhere; see `view_source`."""
        return frozenset()

    def view_source(self, owner: Any, name: str) -> tuple[Any, Op] | None:
        """The array of which the leaf `name` is a view, and the op of the view; None if it is not a view."""
        return None
