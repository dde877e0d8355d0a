"""New arrays and nodes in the place of those that are there. See `core.rebuild`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.errors import Unsupported


class Rebuilding(Capability):
    """What a home needs whose arrays or nodes cannot change, or may be without memory yet."""

    has_defaults = True

    def from_numpy(self, value: Any, array: Any) -> Any:
        """A NumPy array as one of this home's own, to take the place of `value`."""
        raise Unsupported(self.home.name, "take values from outside")

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        """An array with memory, in place of one that has none yet."""
        raise Unsupported(self.home.name, "be given memory")

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        """The owner with other leaves, children or plain values under these names: itself, or where it cannot change,
        another."""
        return owner

    def recompute(self, places: list[tuple[tuple[Any, ...], list[str]]]) -> list[dict[str, Any]]:
        """Values of leaves that no checkpoint holds, by name, as far as they can be computed. A place is a node, with
        its parents up to the root, and the names of its leaves. Nothing is changed."""
        return [{} for _ in places]

    def is_container(self, obj: Any) -> bool:
        """Whether a node is nothing but what it holds, as a dict is."""
        return False

    def shows_copies(self, obj: Any) -> bool:
        """Whether what a node shows below it are copies, that must be handed back to it when they are changed."""
        return False
