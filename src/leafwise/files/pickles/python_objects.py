"""The names of Python's standard library that occur in checkpoints, and our replacements: containers, paths, sets."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leafwise.core.opaque import Opaque, StoredText
from leafwise.files.limits import filled_dict, filled_set
from leafwise.files.pickles.pickle_objects import (
    GlobalName,
    StoredBytes,
    StoredDeque,
    Table,
    UnexpectedArgumentsError,
    UnknownName,
    UnpicklingError,
    is_plain_key,
    kind_of_text,
    makes_opaque,
    pickled_object,
    shown,
    takes_machine,
)

if TYPE_CHECKING:
    from leafwise.files.pickles.unpickler import Unpickler


def make_dict(*args: Any) -> dict[Any, Any]:
    """A table entry for dicts. Their items usually follow in the pickle."""
    if not args or args == ([],):
        return {}
    pairs = args[0]
    if len(args) == 1 and isinstance(pairs, list) and all(isinstance(pair, list | tuple) for pair in pairs):
        if all(len(pair) == 2 and is_plain_key(pair[0]) for pair in pairs):  # an OrderedDict of Python 2
            return filled_dict([(key, value) for key, value in pairs])
    raise UnexpectedArgumentsError("a dict is made from unexpected arguments")


def _counter(*args: Any) -> dict[Any, Any]:
    counted = args[0] if args else {}
    if not isinstance(counted, dict):
        raise UnexpectedArgumentsError("a Counter is made from unexpected arguments")
    return dict(counted)


def _bytes(*args: Any) -> "bytes | StoredBytes":
    if not args or isinstance(args[0], bytes | StoredBytes):
        return args[0] if args else b""
    return _encoded(*args)


def sequence(of: Callable[[Any], Any]) -> Callable[..., Any]:
    """A table entry for a collection that is made from a list of its items."""

    def make(*args: Any) -> Any:
        items = args[0] if args else ()
        if len(args) > 1 or not isinstance(items, list | tuple):
            raise UnexpectedArgumentsError("a collection is made from unexpected arguments")
        if of not in (set, frozenset) or not items:
            return of(items)
        if not all(map(is_plain_key, items)):
            raise UnexpectedArgumentsError("a set contains collections or objects")
        kinds: dict[Any, Any] = {}
        if any(kinds.setdefault(item, kind := kind_of_text(item)) != kind for item in items):
            raise UnexpectedArgumentsError("a set contains objects that are shown as the same text")
        return of(filled_set(items))

    return make


def _deque(*args: Any) -> StoredDeque:
    items, longest = (*args, *((), None)[len(args) :])[:2]
    if len(args) > 2 or not isinstance(items, list | tuple) or not isinstance(longest, int | None):
        raise UnexpectedArgumentsError("a deque is made from unexpected arguments")
    return StoredDeque(items, longest)


def _range(*args: Any) -> range:
    if not 1 <= len(args) <= 3 or not all(type(number) is int for number in args):
        raise UnexpectedArgumentsError("a range is made from unexpected arguments")
    return range(*args)


def _path(*args: Any) -> StoredText:
    if len(args) > 1000 or not all(isinstance(arg, str) and len(arg) < 1000 for arg in args):
        raise UnexpectedArgumentsError("a file path is made from unexpected arguments")
    root = args[0] if args[:1] in (("/",), ("//",)) else ""
    return StoredText(root + "/".join(args[1:] if root else args) or ".", "pathlib.Path")


def text_of_python_2(data: bytes) -> str:
    """A string of Python 2: text, usually in UTF-8, or the bytes of an array."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return str(data, "latin-1")


def bytes_of_python_2(text: str, length: int) -> bytes:
    """The bytes of an array or a number, of which there are this many, from a string of Python 2.

    >>> bytes_of_python_2(text_of_python_2(b"\\xc3\\xa9"), 2), bytes_of_python_2(text_of_python_2(b"\\xe9"), 1)
    (b'\\xc3\\xa9', b'\\xe9')
    """
    encoded = text.encode("utf-8")  # longer than in latin-1, unless both are the same
    return encoded if len(encoded) == length else text.encode("latin-1")


@takes_machine
def _bytearray(machine: "Unpickler", *args: Any) -> "bytes | StoredBytes":
    made = _bytes(*args)
    machine.note_changeable(made)
    return made


def _encoded(text: Any, how: Any = "latin1") -> bytes:
    if isinstance(text, str) and how in ("latin1", "latin-1"):
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            pass
    raise UnexpectedArgumentsError("bytes are encoded in an unexpected way")


def _complex(real: Any, imaginary: Any = 0.0) -> complex:
    if not isinstance(real, int | float) or not isinstance(imaginary, int | float):
        raise UnexpectedArgumentsError("a complex number is made from unexpected arguments")
    return complex(float(real), float(imaginary))


class Namespace(dict[str, Any]):
    """The attributes of an argparse.Namespace or a types.SimpleNamespace."""

    is_built = False

    def build_from(self, state: Any) -> None:
        # A program may call what special attributes are, the second time that a state is set.
        if self.is_built or not isinstance(state, dict) or not all(map(_is_usual_name, state)):
            raise UnpicklingError("a Namespace has an unexpected state")
        self.is_built = True
        self.update(state)


def _is_usual_name(key: Any) -> bool:
    return isinstance(key, str) and not (key.startswith("__") and key.endswith("__"))


@takes_machine
def _defaultdict(machine: "Unpickler", factory: Any = None, *_: Any) -> dict[Any, Any]:
    machine.note_factory(factory)
    return {}


@takes_machine
@makes_opaque
def _reconstructor(machine: "Unpickler", kind: Any = None, base: Any = None, state: Any = None, *_: Any) -> Any:
    """How protocols 0 and 1 make an object: from its class, and for subclasses of built-in types from their value."""
    if isinstance(kind, GlobalName) and state is None and class_text(base) == "builtins.object":
        return machine.made(kind, ())
    machine.note_made(kind, ())
    made = Opaque(class_text(kind), () if state is None or isinstance(state, dict | list) else (state,))
    made.entries = state if isinstance(state, dict) else None
    made.items = state if isinstance(state, list) else None
    return made


@takes_machine
@makes_opaque
def _new_object(machine: "Unpickler", kind: Any = None, *args: Any) -> Any:
    if isinstance(kind, GlobalName):
        return machine.made(kind, args)
    machine.note_made(kind, args)
    return Opaque(class_text(kind), args)


@takes_machine
@makes_opaque
def _new_object_with_names(
    machine: "Unpickler", kind: Any = None, args: Any = (), keywords: Any = None, *_: Any
) -> Any:
    if isinstance(kind, GlobalName) and isinstance(args, tuple) and not keywords:
        return machine.made(kind, args)
    machine.note_made(kind, args)
    return Opaque(
        class_text(kind),
        args if isinstance(args, tuple) else (args,),
        keywords if isinstance(keywords, dict) else None,
    )


_COLLECTIONS = ("Counter", "OrderedDict", "defaultdict", "deque")
_DEEPEST = 10  # partial calls inside each other
_LONGEST_CHAIN = 1_000  # characters of the name of an attribute


@makes_opaque
def _attribute(owner: Any = None, name: Any = None, *_: Any) -> Opaque:
    """An attribute, such as the member of an enum or a method. It is not looked up."""
    if not isinstance(name, str):
        raise UnexpectedArgumentsError("the name of an attribute is not text")
    if len(class_text(owner)) > _LONGEST_CHAIN:
        raise UnpicklingError("it looks up attributes of attributes, more than leafwise reads")
    if isinstance(owner, GlobalName | UnknownName):
        return UnknownName(f"{class_text(owner)}.{name[:200]}")
    if isinstance(owner, Opaque):
        return Opaque(f"{class_text(owner)}.{name[:200]}", (owner,))
    return Opaque("builtins.getattr", (owner, name))


_PLAIN_FACTORIES = frozenset(
    {
        *(f"builtins.{name}" for name in ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str")),
        "builtins.complex", "builtins.tuple", *(f"collections.{name}" for name in _COLLECTIONS),
    }
)  # fmt: skip


def is_plain_factory(factory: Any, depth: int = 0) -> bool:
    """Whether a function without arguments only makes a plain value: such a class, or a partial call of one."""
    if isinstance(factory, GlobalName | UnknownName):
        return class_text(factory) in _PLAIN_FACTORIES
    if not isinstance(factory, Opaque) or factory.class_name != "functools.partial" or depth > _DEEPEST:
        return False
    function, args = (*factory.state, None, None)[:2] if isinstance(factory.state, tuple) else (None, None)
    is_nested = isinstance(args, tuple) and all(arg is None or is_plain_factory(arg, depth + 1) for arg in args)
    return is_plain_factory(function) and is_nested


def class_text(kind: Any) -> str:
    """The name of a class that a pickle refers to."""
    if isinstance(kind, Opaque) or type(kind) is StoredText:
        return kind.class_name
    return str(kind) if isinstance(kind, GlobalName) else f"an object of the class {shown(kind)}"


PYTHON_TABLE: Table = {
    ("collections", "OrderedDict"): make_dict,
    ("collections", "defaultdict"): _defaultdict,
    ("collections", "Counter"): _counter,
    ("collections", "deque"): _deque,
    ("builtins", "set"): sequence(set),
    ("builtins", "frozenset"): sequence(frozenset),
    ("builtins", "list"): sequence(list),
    ("builtins", "dict"): make_dict,
    ("builtins", "complex"): _complex,
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "bytes"): _bytes,
    ("builtins", "slice"): pickled_object("builtins.slice"),
    ("builtins", "range"): _range,
    ("_codecs", "encode"): _encoded,
    ("argparse", "Namespace"): lambda *_: Namespace(),
    ("types", "SimpleNamespace"): lambda *_: Namespace(),
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "WindowsPath"): _path,
    ("pathlib", "PurePosixPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
}
# What Python itself uses to make objects of any class.
for _module in ("copyreg", "copy_reg"):
    PYTHON_TABLE[_module, "_reconstructor"] = _reconstructor
    PYTHON_TABLE[_module, "__newobj__"] = _new_object
    PYTHON_TABLE[_module, "__newobj_ex__"] = _new_object_with_names
PYTHON_TABLE["builtins", "getattr"] = _attribute
for _module, _name in list(PYTHON_TABLE):
    if _module == "builtins":  # older protocols write the module name of Python 2
        PYTHON_TABLE["__builtin__", {"range": "xrange"}.get(_name, _name)] = PYTHON_TABLE[_module, _name]
