"""Capabilities: what a home may implement beyond the small interface of `core.home.Home`.

Each file holds one class, with the methods that verbs call, and the records that they exchange. A home lists its
capabilities in `Home.capabilities`, and verbs get one by `home.capability(Measuring)`. A capability with `has_defaults`
works in every home, by `read` and `write`; a home that lists it is faster, or knows something that the defaults do not.
"""

from typing import TYPE_CHECKING, ClassVar

from leafwise.errors import Unsupported

if TYPE_CHECKING:
    from leafwise.core.home import Home


class Capability:
    """The base of every capability. `action` and `why` complete the error of a home that lacks it: "`home` cannot
    `action`: `why`"."""

    action: ClassVar[str] = ""
    why: ClassVar[str] = ""
    has_defaults: ClassVar[bool] = False

    def __init__(self, home: "Home") -> None:
        self.home = home

    def missing(self, action: str) -> Unsupported:
        """The error for a method that a home must write for itself, and has not."""
        return Unsupported(self.home.name, action, f"{type(self).__name__} does not say how")
