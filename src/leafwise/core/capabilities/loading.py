"""Values that are written over those of a live model. See `lw.load`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.home import Home, Memory


class Loading(Capability):
    has_defaults = True

    def cannot_write(self, value: Any) -> str:
        """Why values cannot be written into an array that has memory; empty where they can."""
        return f"{self.home.name} cannot write in place" if type(self.home).write is Home.write else ""

    def writable_bytes(self, value: Any) -> memoryview | None:
        """The memory of an array as writable bytes in C order; None where it lies otherwise, or elsewhere."""
        return None

    def location(self, value: Any) -> tuple[object, Memory] | None:
        """Where an array lies, so that arrays of any home can be compared: a space, and the place in it, counted in
        bytes from where that space begins. After its dtype stand marks, if the memory holds other bits than those of
        the values, as that of a conjugated view does. None where it is not known, or where there are no values."""
        return None

    def mark_written(self, values: list[Any]) -> None:
        """Tells the framework that the memory of these arrays was written to."""

    def after_load(self, objects: list[Any]) -> None:
        """Has nodes do what they do when they are loaded, once they have their values. The list may have nodes of other
        homes."""
