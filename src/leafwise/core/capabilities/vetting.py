"""Arrays and nodes that leafwise refuses, because it would silently read or save wrong values."""

from typing import Any, Literal

from leafwise.core.capabilities import Capability

# Whether a function runs code or reaches beyond the process, is not known, or only makes values.
Danger = Literal["dangerous", "unknown", "harmless"]


class Vetting(Capability):
    """The lists may contain objects of other homes. The methods return reasons by number: what the object is, and what
    to do instead."""

    has_defaults = True

    def may_be_foreign(self, values: list[Any]) -> bool:
        """Whether `not_understood` may have a reason for any of these arrays; a fast check."""
        return False

    def not_understood(self, values: list[Any]) -> dict[int, str]:
        """Arrays whose bytes in this process are not their values, because a library shards or quantizes them."""
        return {}

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        """Nodes with values that the walk does not list."""
        return {}

    def called_elsewhere(self, obj: Any) -> dict[str, Danger]:
        """The names of the classes and functions that other programs would call when they load this file, with what
        they do."""
        return {}

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        """Nodes whose own state dict differs from what the walk lists."""
        return {}
