"""Objects in files whose classes leafwise does not load."""

from collections import deque
from collections.abc import Iterator
from marshal import dumps
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from leafwise.core.home import Visit
from leafwise.core.path import Path, escape

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

# Attributes of every PyTorch module that are not in the tree as they are: what is registered has its own places, and
# hooks may refer to the optimizer, or to other modules.
MODULE_INTERNALS = frozenset(
    [
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_flat_weights", "training"),
        *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_forward_hooks", "_forward_pre_hooks"),
        *("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"),
        *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    ]
)

_SCALARS = (str, int, float, complex, bool, bytes, type(None))
_NUMBERS = frozenset({int, float, complex, bool, type(None)})
_LONG = 200  # characters; the digest of a longer text is kept
_AT_ONCE = 1_000  # numbers of a list
_AS_TEXT = 1  # the version of marshal that writes floats as text: all nan are equal


class StoredText(str):
    """The text of an object that is shown as text: a path, a device, or the name of a class. It is equal to that text,
    but as a key of a dict, it is another key."""

    __slots__ = ("class_name",)
    class_name: str

    def __new__(cls, text: str, class_name: str) -> Self:
        stored = super().__new__(cls, text)
        stored.class_name = class_name
        return stored

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredText, (str(self), self.class_name)


class Opaque:
    """An object in a checkpoint whose class leafwise does not load: a description of what the file says about it.

    Nothing is imported or called. `class_name` is the name of its class or function, `args` and `keywords` are what it
    would be called with, `state` is what it would be restored from, and `items` and `entries` are what would be added
    to it as a list and as a dict.

    >>> import datetime, tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.ones(2), "made": datetime.date(2026, 1, 31)}, f"{folder}/model.pt")
    ...     with lw.open(f"{folder}/model.pt") as t:
    ...         t["made"], t["made"].class_name, len(t.opaque)
    (<datetime.date, not loaded>, 'datetime.date', 1)
    """

    __slots__ = ("args", "class_name", "content", "digests", "entries", "items", "keywords", "state")

    def __init__(self, class_name: str, args: tuple[Any, ...] = (), keywords: dict[Any, Any] | None = None) -> None:
        self.class_name = class_name
        self.args = args
        self.keywords = keywords
        self.state: Any = None
        self.items: list[Any] | None = None
        self.entries: dict[Any, Any] | None = None
        self.content: Visit | None = None  # its leaves and children, if it contains arrays or is a module
        self.digests = Digests()  # those of its file, once all of it was read

    def stored(self) -> Iterator[Any]:
        """The bytes that it has in the file, piece by piece; they are read only to compare it."""
        return iter(())

    @property
    def attributes(self) -> dict[Any, Any]:
        """The attributes that its state would set."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2 and all(isinstance(part, dict | None) for part in state):
            return {**(state[0] or {}), **(state[1] or {})}  # the second are attributes of a class with __slots__
        return state if isinstance(state, dict) else {}

    @property
    def is_module(self) -> bool:
        """Whether it is a PyTorch module: its state has parameters, buffers and submodules."""
        attributes = self.attributes
        return all(isinstance(attributes.get(name), dict) for name in ("_parameters", "_buffers", "_modules"))

    def parts(self) -> list[Any]:
        """The values that it consists of; for a module, those that may be in the tree."""
        parts = [part for part in (self.args, self.keywords, self.items, self.entries) if part]
        if not self.is_module:
            return parts if self.state is None else [*parts, self.state]
        attributes = self.attributes
        for name in ("_parameters", "_buffers", "_modules"):
            parts += attributes[name].values()
        return parts + [value for name, value in attributes.items() if name not in MODULE_INTERNALS]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute that its state would set."""
        return self.attributes.get(name, default)

    def __getitem__(self, name: str) -> Any:
        """A leaf or child, by the name that it has in the tree."""
        leaves, children, _ = self.content or ((), (), None)
        for found, value in [*(pair for _, pairs in leaves for pair in pairs), *children]:
            if found == name:
                return value
        return (self.entries or {})[name]

    def __str__(self) -> str:
        """Its name as a key in a path: the member of an enum is `package.Color(1)`."""
        if not self.args or len(self.args) > 3 or not all(map(_is_readable, self.args)):
            # What differs has different names.
            return escape(
                f"{self.class_name} {self.digests.of(self).hex()[:8]}" if any(self.parts()) else self.class_name
            )
        return escape(f"{self.class_name}({', '.join(map(_beginning, self.args))})")

    def __repr__(self) -> str:
        return escape(f"<{self.class_name}, not loaded>")


class OpaqueObject(NamedTuple):
    """An object of a file that leafwise does not load: its path, and the name of its class; see `Tree.opaque`."""

    path: Path
    class_name: str


def opaque_objects(columns: "Columns", root: int) -> list[OpaqueObject]:
    """The outermost objects below a node that leafwise does not load."""
    nodes, stack = range(root, columns.node_ends[root]), [root]
    outermost, outside = set(), set()  # nodes of these objects, and the nodes that are in none of them
    while stack:
        node = stack.pop()
        if isinstance(columns.node_objects[node], Opaque):
            outermost.add(node)
        elif node not in outside:
            outside.add(node)
            stack += columns.children(node)
            # A container that contains itself is listed once: perhaps in an object, although it is outside, too.
            if node in columns.listed_elsewhere and columns.repeats[node] in nodes:
                stack.append(columns.repeats[node])
    objects = [
        OpaqueObject(columns.node_path(node), columns.node_objects[node].class_name) for node in sorted(outermost)
    ]
    objects += [
        OpaqueObject(columns.scalar_path(node, name, value), value.class_name)
        for node, name, value in columns.scalars
        if isinstance(value, Opaque) and node in outside
    ]
    return objects


def _beginning(value: Any) -> str:
    """The first characters of what Python shows for a value, which may be a very long text."""
    return repr(value[:100] if isinstance(value, str) else value)[:40]


def _is_readable(value: Any) -> bool:
    return isinstance(value, str | float | None) or (isinstance(value, int) and value.bit_length() <= 200)


def same_records(first: Opaque, second: Opaque, with_arrays: bool = False) -> bool:
    """Whether two files say the same about two objects. Arrays are not compared, because they are leaves; except those
    in keys of dicts, which are not. `with_arrays` is for objects that are keys themselves."""
    return first.digests.of(first, with_arrays) == second.digests.of(second, with_arrays)


class Digests:
    """Digests of values of one file, which are equal for equal values. The digest of each container, and of each long
    text, is computed once, so that one to which many records refer does not take forever."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], bytes] = {}  # by identity, without or with arrays

    def of(self, record: Opaque, with_arrays: bool = False) -> bytes:
        known = self._known
        stack: list[tuple[Any, bool, bool]] = [(record, with_arrays, False)]
        while stack:
            value, with_arrays, done = stack.pop()
            key = id(value), with_arrays
            if done:
                known[key] = self._combined(value, with_arrays)
            elif key not in known:
                known[key] = b"inside itself"
                stack.append((value, with_arrays, True))
                parts = _inside(value, with_arrays)
                stack += [(part, arrays, False) for part, arrays in parts if not _is_short(part)]
        return known[id(record), with_arrays]

    def _combined(self, value: Any, with_arrays: bool) -> bytes:
        from hashlib import sha256  # takes longer to import than a small file to list

        if isinstance(value, _SCALARS):
            return sha256(_scalar_bytes(value)).digest()
        text = sha256(f"{type(value).__name__} {_label(value)}".encode("utf-8", "surrogatepass"))
        if isinstance(value, list | tuple) and _NUMBERS.issuperset(map(type, value)):
            for start in range(0, len(value), _AT_ONCE):
                text.update(dumps(value[start : start + _AT_ONCE], _AS_TEXT))
            return text.digest()
        parts = [
            _scalar_bytes(part) if _is_short(part) else self._known[id(part), arrays]
            for part, arrays in _inside(value, with_arrays)
        ]
        for part in sorted(parts) if isinstance(value, set | frozenset) else parts:
            text.update(len(part).to_bytes(8, "little") + part)
        is_array = with_arrays and hasattr(value, "chunks")
        for piece in value.chunks() if is_array else value.stored() if isinstance(value, Opaque) else ():
            text.update(piece)
        return text.digest()


def _is_short(value: Any) -> bool:
    return isinstance(value, _SCALARS) and (not isinstance(value, str | bytes) or len(value) <= _LONG)


def _scalar_bytes(value: Any) -> bytes:
    """A plain value as bytes; without its repr if that takes long."""
    prefix = f"{type(value).__name__} ".encode()
    if isinstance(value, str):
        return prefix + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return prefix + value
    if type(value) is int and value.bit_length() > 64:
        return prefix + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return prefix + repr(value).encode()


def _label(value: Any) -> str:
    if isinstance(value, Opaque):
        return f"{value.class_name} {[part is not None for part in _fields(value)]}"
    if isinstance(value, deque):
        return str(value.maxlen)
    return str(value) if isinstance(value, range) else str(getattr(value, "spec", ""))


def _inside(value: Any, with_arrays: bool) -> list[tuple[Any, bool]]:
    """The values in a value, and whether their arrays are compared."""
    if isinstance(value, dict):
        return [part for key, item in value.items() for part in ((key, True), (item, with_arrays))]
    if isinstance(value, Opaque):
        return [(part, with_arrays) for part in _fields(value) if part is not None]
    is_container = isinstance(value, list | tuple | set | frozenset | deque)
    return [(part, with_arrays) for part in value] if is_container else []


def _fields(record: Opaque) -> list[Any]:
    return [record.args, record.keywords, record.state, record.items, record.entries]
