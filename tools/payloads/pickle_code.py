"""Writes pickles from descriptions of calls, with any protocol, so that nothing is imported or called when they are
written.

>>> pickled(call("os:mkdir", "/tmp/x"), 0)
b'cos\\nmkdir\\n(V/tmp/x\\ntR.'
"""

import struct
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A class or function of a module."""

    module: str
    name: str


class Call(NamedTuple):
    """A call, with the opcode that makes it: "reduce", "obj", "inst", "new" or "new_ex"."""

    function: Any
    args: Any
    by: str = "reduce"
    keywords: Any = None


class Built(NamedTuple):
    """An object after BUILD."""

    into: Any
    state: Any


class Filled(NamedTuple):
    """An object after items are appended, added (`how="add"`), or set, if they are pairs in a dict."""

    into: Any
    items: Any
    how: str = "append"


class Steps(NamedTuple):
    """Values that are made and discarded, and the last one."""

    values: tuple[Any, ...]


class Kept(NamedTuple):
    """A value that goes into the memo; without a value, the one that is there."""

    number: int
    value: Any = ...


class Code(NamedTuple):
    """Opcodes as they are."""

    code: bytes


def name(dotted: str) -> Name:
    """`os:path.join` is `path.join` in `os`."""
    return Name(*dotted.split(":"))


def call(function: Any, *args: Any, by: str = "reduce") -> Call:
    return Call(name(function) if isinstance(function, str) else function, args, by)


def partial(function: Any, *args: Any, **keywords: Any) -> Any:
    """A `functools.partial`; keywords need BUILD."""
    function = name(function) if isinstance(function, str) else function
    made = call("functools:partial", function, *args)
    return Built(made, (function, args, keywords, None)) if keywords else made


def at(mapping: Any, key: Any) -> Call:
    """An item of a mapping or sequence."""
    return call(call("operator:itemgetter", key), mapping)


def list_of(iterator: Any) -> Call:
    return call("builtins:list", iterator)


def attribute(owner: Any, attribute_name: str) -> Call:
    return call("builtins:getattr", owner, attribute_name)


def pickled(value: Any, protocol: int = 4, framed: bool = False) -> bytes:
    body = encoded(value, protocol) + b"."
    if framed:
        body = b"\x95" + struct.pack("<Q", len(body)) + body
    return (bytes([0x80, protocol]) if protocol >= 2 else b"") + body


def encoded(value: Any, protocol: int = 4) -> bytes:
    def code(*values: Any) -> bytes:
        return b"".join(encoded(one, protocol) for one in values)

    match value:
        case Code(opcodes):
            return opcodes
        case Name(module, dotted):
            if protocol < 4:
                return f"c{module}\n{dotted}\n".encode()
            return code(module, dotted) + b"\x93"
        case Call():
            return _call(value, protocol)
        case Built(into, state):
            return code(into, state) + b"b"
        case Filled(into, items, how):
            if isinstance(items, dict):
                return code(into) + b"(" + code(*(part for pair in items.items() for part in pair)) + b"u"
            return code(into) + b"(" + code(*items) + (b"\x90" if how == "add" else b"e")
        case Steps(values):
            return b"0".join(code(one) for one in values)
        case Kept(number, kept):
            where = struct.pack("<I", number) if protocol else f"{number}\n".encode()
            if kept is ...:
                return (b"j" if protocol else b"g") + where
            return code(kept) + (b"r" if protocol else b"p") + where
    return _plain(value, protocol)


def _call(made: Call, protocol: int) -> bytes:
    function, args = made.function, made.args
    parts = [encoded(one, protocol) for one in (function, *(args if isinstance(args, tuple) else ()))]
    if made.by == "obj":
        return b"(" + b"".join(parts) + b"o"
    if made.by == "inst":
        return b"(" + b"".join(parts[1:]) + f"i{function.module}\n{function.name}\n".encode()
    if made.by == "new_ex":
        return parts[0] + encoded(args, protocol) + encoded(made.keywords or {}, protocol) + b"\x92"
    return parts[0] + encoded(args, protocol) + (b"\x81" if made.by == "new" else b"R")


def _plain(value: Any, protocol: int) -> bytes:  # noqa: C901
    def code(*values: Any) -> bytes:
        return b"".join(encoded(one, protocol) for one in values)

    match value:
        case None:
            return b"N"
        case bool():
            return b"I01\n" if value else b"I00\n"
        case int() if protocol and 0 <= value < 256:
            return b"K" + bytes([value])
        case int():
            return b"L%dL\n" % value
        case float():
            return b"G" + struct.pack(">d", value)
        case str() if protocol:
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case str():
            escaped = value.replace("\\", "\\u005c").replace("\n", "\\u000a").replace("\r", "\\u000d")
            return b"V" + escaped.encode("raw-unicode-escape") + b"\n"
        case bytes() if protocol >= 3:
            return b"B" + struct.pack("<I", len(value)) + value
        case bytes():
            return code(call("_codecs:encode", value.decode("latin-1"), "latin1"))
        case tuple():
            return b"(" + code(*value) + b"t"
        case list():
            return b"(" + code(*value) + b"l"
        case dict():
            return b"(" + code(*(part for pair in value.items() for part in pair)) + b"d"
        case set():
            return code(call("builtins:set", sorted(value)))
    raise TypeError(f"cannot write {value!r}")
