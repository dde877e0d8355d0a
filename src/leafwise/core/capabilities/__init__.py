"""Capabilities: what a home may implement beyond the small interface of `core.home.Home`.

Each file has one class, with the methods that verbs call, and the records that they exchange. A home lists its
capabilities in `Home.capabilities`, and a verb gets one with `home.capability(Measuring)`. A capability with
`has_defaults` works in every home, by `read` and `write`; a home that implements it is faster, or adds knowledge.
"""

from typing import TYPE_CHECKING, Any, ClassVar

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

    def array_of(self, value: Any) -> Any:
        """The values of an array as a NumPy array, for the defaults. Raises if it is not as the home says, because the
        bits would then be read as other numbers."""
        array, spec = self.home.read(value), self.home.spec(value)
        if (array.dtype.name, array.shape) != (spec.dtype, spec.shape):
            why = f"its spec() says {spec.dtype} {spec.shape}, but its read() returns {array.dtype} {array.shape}"
            raise Unsupported(self.home.name, "be read by NumPy", why)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def missing(self, action: str) -> Unsupported:
        """The error for a method that the home did not implement."""
        return Unsupported(self.home.name, action, f"{type(self).__name__} does not implement it")
