"""Replacing arrays and nodes by new ones. See `core.rebuild`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.memory.sharding import LocalPart
from leafwise.errors import Unsupported

CANNOT_REPLACE = "its Rebuilding capability does not implement `replace`"


class Rebuilding(Capability):
    """For homes whose arrays or nodes cannot change, or whose arrays may not have memory yet."""

    has_defaults = True
    renews_beside_values = False  # whether arrays that can change get new ones in a tree with arrays that cannot

    def from_numpy(self, value: Any, array: Any) -> Any:
        """A NumPy array as an array of this home, to replace `value`."""
        raise Unsupported(self.home.name, "convert NumPy arrays into its own")

    def cannot_renew(self, value: Any) -> str:
        """Why no new array can take the place of this one; empty if one can."""
        return ""

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        """An array with memory, to replace one that has none yet."""
        raise Unsupported(self.home.name, "allocate new arrays")

    def have_host_parts(self, values: list[Any]) -> list[bool]:
        """Whether a file is read into `host_parts` for the new values of each array."""
        return [False] * len(values)

    def host_parts(self, values: list[Any]) -> list[list[LocalPart]]:
        """For each array, new memory of the host for the values of the array that will replace it: NumPy arrays in C
        order. If the array is on several devices, these are the parts of each, and equal parts only once."""
        raise self.missing("read values into new memory")

    def from_host_parts(self, values: list[Any], host_parts: list[list[LocalPart]]) -> list[Any]:
        """The arrays with the values of the parts, which now belong to them: new ones, or the same if they can change.
        There may also be one part for a whole array."""
        raise self.missing("read values into new memory")

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        """The owner with other leaves, children or plain values under these names: itself, or a new object if it cannot
        change. The default accepts only the values that the owner has already; a home whose nodes list plain values,
        or get new arrays, must implement it."""
        visited = self.home.visitor(type(owner), lambda value: None)(owner)
        leaves, children, _ = visited or ((), (), None)
        held = dict(children)
        for _, named in leaves:
            held.update(named)
        for name, value in changes.items():
            if name not in held or held[name] is not value:
                raise Unsupported(self.home.name, f"put a new value at {name!r}", CANNOT_REPLACE)
        return owner

    def replaced_copy(self, owner: Any, changes: dict[str, Any]) -> Any:
        """Like `replace`, for a node that has arrays which cannot change: the owner itself stays as it is. The default
        is for nodes that are references, as modules are, which `replace` changes."""
        return self.replace(owner, changes)

    def cannot_replace(self, owner: Any) -> str:
        """Why the plain values of a node cannot be replaced; empty if they can."""
        if type(self).replace is Rebuilding.replace:
            return f"{self.home.name} cannot change plain values: {CANNOT_REPLACE}"
        return ""

    def updated(self, value: Any, array: Any) -> Any:
        """The array with these values, cast to its dtype: the same array, or a new one if it cannot change."""
        if not self.home.in_place:
            return self.from_numpy(value, array)
        self.home.write(value, array.astype(self.home.read(value).dtype))
        return value

    def recompute(self, places: list[tuple[tuple[Any, ...], list[str]]]) -> list[dict[str, Any]]:
        """For each place, the values of leaves that are not part of any checkpoint, by name, if they can be computed. A
        place is a node, with its parents up to the root, and the names of its leaves. Changes nothing."""
        return [{} for _ in places]

    def why_only_whole(self, obj: Any) -> str:
        """Why what is inside of a node cannot be changed or returned without the node; empty if it can."""
        return ""

    def is_container(self, obj: Any) -> bool:
        """Whether a node is only a container of its content, as a dict is."""
        return False

    def shows_copies(self, obj: Any) -> bool:
        """Whether the walk sees only copies of the values of a node, so that changes must be passed back to it."""
        return False
