"""What leafwise would get wrong in silence, so that it refuses by name."""

from typing import Any

from leafwise.core.capabilities import Capability


class Vetting(Capability):
    """Each method gives reasons by the number in the list, which may hold objects of other homes: what it is, and what
    to do instead."""

    has_defaults = True

    def may_be_foreign(self, values: list[Any]) -> bool:
        """Whether `not_understood` is worth asking of any of these arrays."""
        return False

    def not_understood(self, values: list[Any]) -> dict[int, str]:
        """Arrays whose bytes here are not their values, as of a library that shards or quantises them."""
        return {}

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        """Nodes that hold what the walk does not list."""
        return {}

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        """Nodes whose own state dict says other things than the walk lists."""
        return {}
