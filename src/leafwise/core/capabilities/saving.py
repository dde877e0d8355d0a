"""Arrays as bytes, on their way into a file. See `lw.save`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from leafwise.core.capabilities import Capability


class Saving(Capability):
    has_defaults = True

    def pieces(self, value: Any) -> Iterator[Any]:
        """The values in C order as bytes: as they lie, or copied piece by piece; whole elements in each piece."""
        yield self.home.read(value).tobytes()

    def axis_order(self, value: Any) -> tuple[int, ...] | None:
        """The order of axes in which an array lies densely; None where that is C order, or none."""
        return None

    def snapshot(self, values: list[Any]) -> list[Any]:
        """Copies of arrays, which nobody else has; of this home, or of any other."""
        np = import_module("numpy")
        return [np.array(self.home.read(value)) for value in values]

    def check_unchanged(self, values: list[Any]) -> None:
        """Raises if what arrays are read from was written to since it was opened."""

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        """What a checkpoint must know of a node to make it again, or to tell it from another: the name of its type,
        and for a dict whose keys are not all names, the name that each key has in a path, with the key. None where its
        names say it all."""
        return None
