"""What a pickle becomes when it is read without running it: names, descriptions of objects, and errors."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.opaque import Opaque, StoredText
from leafwise.core.path import escape
from leafwise.files.arrays.stored import CHUNK, Storage

if TYPE_CHECKING:
    from leafwise.files.pickles.unpickler import Unpickler

SCALARS = (str, int, float, complex, bool, bytes, type(None))


class GlobalName(StoredText):
    """A global name in a pickle that is in the table. It may also be a plain value, such as `torch.float16`."""

    __slots__ = ("is_cheap", "make", "takes_machine")
    make: Callable[..., Any]
    is_cheap: bool  # whether the function does not copy its arguments
    takes_machine: bool  # whether its first argument is the machine that reads the pickle

    def __new__(cls, full_name: str, make: Callable[..., Any]) -> "GlobalName":
        global_name = super().__new__(cls, full_name, "type")
        global_name.make = make
        global_name.is_cheap = hasattr(make, _CHEAP)
        global_name.takes_machine = hasattr(make, _TAKES_MACHINE)
        return global_name


class UnknownName(Opaque):
    """A class or function that leafwise does not know, by name: not an object that a call makes."""

    __slots__ = ()


Table = dict[tuple[str, str], Callable[..., Any]]  # module and name → our function that is called instead


class Usage(NamedTuple):
    """What a pickle does with a class or function: `doubt` is why it could do more than the name says, for example
    because leafwise does not see with what it is called; and whether the pickle calls it."""

    doubt: str = ""
    is_called: bool = False

    def combined(self, other: "Usage | None") -> "Usage":
        """What is done with it here and elsewhere."""
        return self if other is None else Usage(self.doubt or other.doubt, self.is_called or other.is_called)


PickleNames = dict[tuple[str, str], Usage]  # by module and name

# Functions that checkpoints call with arguments that leafwise reads. Whoever gets one of them as a value may call it
# with any others.
PASSED_ON_IS_DANGEROUS = frozenset(
    {
        "builtins.getattr", "builtins.type", "copyreg.__newobj__", "copyreg.__newobj_ex__", "copyreg._reconstructor",
        "torch._tensor._rebuild_from_type_v2", "torch.storage._load_from_bytes",
    }
)  # fmt: skip


_CHEAP = "is_cheap"  # an attribute of functions in the table that do not copy their arguments


def cheap(make: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a table entry whose arguments need not be counted, because it copies none of them."""
    setattr(make, _CHEAP, True)
    return make


_TAKES_MACHINE = "takes_machine"  # an attribute of functions in the table that read another pickle


def takes_machine(make: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a table entry that reads another pickle, and gets the machine that reads this one first."""
    setattr(make, _TAKES_MACHINE, True)
    return make


MAKES_OPAQUE = "makes_opaque"  # an attribute of functions in the table that make objects of any class


def makes_opaque(make: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a table entry that makes objects of any class; a strict machine refuses it like an unknown name."""
    setattr(make, MAKES_OPAQUE, True)
    return make


def pickled_object(class_name: str) -> Callable[..., Opaque]:
    """A table entry for a class whose objects are kept as descriptions."""
    return lambda *args: Opaque(class_name, args)


class UnfinishedArray(Opaque):
    """An array whose shape and values follow as its state. It is replaced by what `finished` returns; if that is None,
    it stays an opaque object."""

    __slots__ = ()

    def finished(self, state: Any, stream: "Unpickler") -> Any:
        raise NotImplementedError


class TensorParts(Opaque):
    """A tensor of a class that consists of other tensors, such as a DTensor or a quantized tensor."""

    __slots__ = ()


class WithStorage(Opaque):
    """An object whose bytes stay in the file."""

    __slots__ = ("storage",)

    def __init__(self, class_name: str, args: tuple[Any, ...], storage: Storage) -> None:
        super().__init__(class_name, args)
        self.storage = storage

    def stored(self) -> Iterator[Any]:
        for start in range(0, self.storage.nbytes, CHUNK):
            yield self.storage.read(start, min(start + CHUNK, self.storage.nbytes))


class StoredBytes(WithStorage):
    """A long bytes object, which stays in the file until an array needs it."""

    __slots__ = ()

    def __init__(self, storage: Storage) -> None:
        super().__init__("builtins.bytes", (), storage)

    def __len__(self) -> int:
        return self.storage.nbytes

    def __repr__(self) -> str:
        return f"<bytes, {len(self):,} of them, not loaded>"


class StoredDeque(deque[Any]):
    """A deque in a file. It is a node of the tree if it contains arrays or opaque objects, and otherwise a plain
    value."""

    is_node = False

    @recursive_repr()
    def __repr__(self) -> str:
        return escape(f"{deque(self, self.maxlen)!r}")


def looks_like_class(name: str) -> bool:
    """Whether the last part of a name is spelled as classes are, and not as modules and functions.

    >>> looks_like_class("enum.Color"), looks_like_class("torch.nn.functional"), looks_like_class("torch.nn.F")
    (True, False, False)
    """
    return _CLASS.fullmatch(name.rpartition(".")[2]) is not None


_CLASS = re.compile(r"_*[A-Z]\w*[a-z0-9]\w*")


def parts_of(value: Any) -> list[Any]:
    """The values that a container or an object of a pickle consists of."""
    if isinstance(value, Opaque):
        return [part for part in (value.args, value.keywords, value.state, value.items, value.entries) if part]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple | set | frozenset | deque) else []


class UnpicklingError(Exception):
    """The pickle contains something that is refused. Callers turn this into a FileError with the offset."""


class UnexpectedArgumentsError(UnpicklingError):
    """A known class or function is called with other arguments than checkpoints use. The object is then opaque."""


class TruncatedPickleError(Exception):
    """The bytes end before the pickle does."""


def is_plain_key(key: Any) -> bool:
    """Whether a key of a dict or set is a plain value, or a short tuple or frozenset of plain values. Nested tuples can
    be built that take forever to hash."""
    if isinstance(key, SCALARS):
        return is_short(key)
    return (
        isinstance(key, tuple | frozenset)
        and len(key) <= 64
        and all(isinstance(part, SCALARS) and is_short(part) for part in key)
    )


def kind_of_text(key: Any) -> Any:
    """What the texts in a key stand for, such as a path; empty if they are plain. Keys that are equal here, but differ
    in this, are different keys in the program that saved them."""
    if isinstance(key, StoredText):
        return key.class_name
    if not isinstance(key, tuple | frozenset):
        return ""
    kinds = [(kind_of_text(part), part) for part in key]
    if not any(kind for kind, _ in kinds):
        return ""
    return tuple(kind for kind, _ in kinds) if isinstance(key, tuple) else frozenset(kinds)


def is_short(key: Any) -> bool:
    """Whether a key cannot collide with many others: only integers with more bits can be chosen so that they do."""
    return not isinstance(key, int) or key.bit_length() <= 64


def shown(value: Any) -> str:
    """A value for an error message. Only plain values are written out: the text of nested values may be endless."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[:100]
    if isinstance(value, Opaque):
        return ascii(value.class_name[:100])[1:-1]
    return ascii(value)[:100] if isinstance(value, SCALARS) else f"<{type(value).__name__}>"
