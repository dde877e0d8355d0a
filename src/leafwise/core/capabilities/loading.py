"""Writing values into the arrays of a live model. See `lw.load`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.home import Home, Memory


class Loading(Capability):
    has_defaults = True

    def cannot_write(self, value: Any) -> str:
        """Why values cannot be written into an array that has memory; empty if they can."""
        return f"{self.home.name} cannot write in place" if type(self.home).write is Home.write else ""

    def writable_bytes(self, value: Any) -> memoryview | None:
        """The memory of an array as writable bytes in C order; None if they are in another order, or on a device."""
        return None

    def location(self, value: Any) -> tuple[object, Memory] | None:
        """Where an array is in memory, comparable between homes: an address space, and the memory in it, with its
        offset from the start of that space. If the bits in memory are not those of the values, as for a conjugated
        view, the dtype is followed by marks for that. None if it is not known, or if there are no values."""
        return None

    def mark_written(self, values: list[Any]) -> None:
        """Notifies the framework that the memory of these arrays was written to."""

    def after_load(self, objects: list[Any]) -> None:
        """Called when the nodes have their values: runs the hooks that nodes have for this. The list may contain nodes
        of other homes."""
