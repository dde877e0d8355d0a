"""What a pickle becomes when it is read without running it: names, descriptions of objects, and errors."""

from collections.abc import Callable
from typing import Any

from leafwise.core.path import escape

SCALARS = (str, int, float, complex, bool, bytes, type(None))


class GlobalName(str):
    """A global name in a pickle that is in the table. It may also be a plain value, such as `torch.float16`."""

    __slots__ = ("make",)
    make: Callable[..., Any]

    def __new__(cls, module: str, name: str, make: Callable[..., Any]) -> "GlobalName":
        global_name = super().__new__(cls, f"{module}.{name}")
        global_name.make = make
        return global_name


Table = dict[tuple[str, str], Callable[..., Any]]  # module and name → our function that is called instead


class PickledObject:
    """The description of an object whose class is in the table: the name of the class, the arguments, and the state."""

    __slots__ = ("args", "kind", "state")

    def __init__(self, kind: str, args: tuple[Any, ...] = ()) -> None:
        self.kind = kind
        self.args = args
        self.state: Any = {}

    def get(self, name: str, default: Any = None) -> Any:
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        return escape(f"<{self.kind}>")


def pickled_object(kind: str) -> Callable[..., PickledObject]:
    """A table entry for a class whose objects are kept as descriptions."""
    return lambda *args: PickledObject(kind, args)


class UnpicklingError(Exception):
    """The pickle contains something that is refused. Callers turn this into a FileError with the offset."""


class TruncatedPickleError(Exception):
    """The bytes end before the pickle does."""


def shown(value: Any) -> str:
    """A value for an error message. Only plain values are written out: the text of nested values may be endless."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[:100]
    return ascii(value)[:100] if isinstance(value, SCALARS) else f"<{type(value).__name__}>"
