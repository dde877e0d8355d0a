"""Pickles, read and never run.

A pickle is a program for a small stack machine that may call anything it can import. This machine knows the same
opcodes, and imports nothing: a name in a pickle is looked up in a short table of what checkpoints are made of, each
with a function of ours that builds an inert description. Every other name is refused, by name.
"""

import struct
from collections.abc import Callable
from typing import Any

from leafwise.core.path import escape
from leafwise.errors import FileError

MAX_STEPS = 40_000_000  # opcodes; a checkpoint of a million tensors has about half as many
MAX_DEPTH = 100  # containers in containers
MAX_EXPANDED = 1_000_000  # items, where what is referred to several times counts as often
MAX_MADE = 1 << 26  # bytes and items that calls may make beyond what the file itself holds
_MAX_NUMBER = 1024  # bytes of a whole number
_MARK: Any = type("Mark", (), {"__repr__": lambda self: "a mark"})()
_SCALARS = (str, int, float, complex, bool, bytes, type(None))


class Named(str):
    """A name that a pickle refers to, which is in the table: `torch.float16` is a plain value, too."""

    __slots__ = ("make",)
    make: Callable[..., Any]

    def __new__(cls, module: str, name: str, make: Callable[..., Any]) -> "Named":
        named = super().__new__(cls, f"{module}.{name}")
        named.make = make
        return named


class Record:
    """An object of a class in the table: the name of the class, what it was made from, and its state."""

    __slots__ = ("args", "kind", "state")

    def __init__(self, kind: str, args: tuple[Any, ...] = ()) -> None:
        self.kind = kind
        self.args = args
        self.state: Any = {}

    def get(self, name: str, default: Any = None) -> Any:
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        return escape(f"<{self.kind}>")


class Refused(Exception):  # noqa: N818
    """Something in a pickle that cannot be had; turned into a FileError with its offset."""


def record(kind: str) -> Callable[..., Record]:
    """A table entry for a class whose objects are kept as records."""
    return lambda *args: Record(kind, args)


Table = dict[tuple[str, str], Callable[..., Any]]


class Machine:
    """Runs one pickle to its end."""

    def __init__(
        self,
        data: bytes,
        table: Table,
        persistent: Callable[[Any], Any] | None,
        error: Callable[[int, str], FileError],
        at: int = 0,
    ) -> None:
        self.data = data
        self.at = at
        self._table = table
        self._persistent = persistent
        self._error = error
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._known: dict[tuple[str, str], Named] = {}
        self._made_so_far = 0

    def run(self) -> Any:
        """What the pickle describes; `at` is then the offset behind it."""
        data, ops, start = self.data, _OPS, self.at
        try:
            for _ in range(MAX_STEPS):
                start = self.at
                code = data[start]
                self.at = start + 1
                if code == 0x2E:  # STOP
                    return _bounded(self._pop())
                op = ops.get(code)
                if op is None:
                    raise Refused(f"the opcode {bytes([code])!r} is not one that checkpoints need")
                op(self)
            raise Refused(f"it goes on for more than {MAX_STEPS:,} steps")
        except Refused as error:
            raise self._error(start, f"in the pickle: {error}") from error
        except FileError:
            raise
        except (IndexError, struct.error):
            raise self._error(min(self.at, len(data)), "the pickle ends early; was it cut off?") from None
        except MemoryError as error:
            raise self._error(start, "the pickle asks for more memory than there is") from error
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            said = f"{type(error).__name__}: {ascii(str(error))[:200]}"
            raise self._error(start, f"the pickle makes no sense here ({said})") from error

    # -- the stack ---------------------------------------------------------------------------------------

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise Refused("a mark where a value should be")
        return value

    def _top(self) -> Any:
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                found = stack[at + 1 :]
                del stack[at:]
                return found
        raise Refused("a mark is missing")

    # -- reading arguments -------------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise IndexError
        found = self.data[self.at : end]
        self.at = end
        return found

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    # -- opcodes -----------------------------------------------------------------------------------------

    def _proto(self) -> None:
        if self.take(1)[0] > 5:
            raise Refused("a protocol later than 5")

    def _int(self) -> None:
        text = self.line()
        self._push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else _number(text))

    def _long(self) -> None:
        self._push(_number(self.line().rstrip(b"L")))

    def _long1(self, width: int = 1) -> None:
        length = self.unsigned(width)
        if length > _MAX_NUMBER:
            raise Refused("a number too long to read")
        self._push(int.from_bytes(self.take(length), "little", signed=True))

    def _text(self, width: int) -> None:
        self._push(str(self.take(self.unsigned(width)), "utf-8", "surrogatepass"))

    def _string(self, width: int) -> None:
        self._push(str(self.take(self.unsigned(width)), "latin-1"))

    def _bytes(self, width: int) -> None:
        self._push(bytes(self.take(self.unsigned(width))))

    def _append(self) -> None:
        value = self._pop()
        _list(self._top()).append(value)

    def _appends(self) -> None:
        values = self._since_mark()
        _list(self._top()).extend(values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        _dict(self._top())[_key(key)] = value

    def _set_items(self) -> None:
        items = self._since_mark()
        into = _dict(self._top())
        for key, value in zip(items[::2], items[1::2], strict=True):
            into[_key(key)] = value

    def _dict(self) -> None:
        items = self._since_mark()
        self._push({_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)})

    def _add_items(self) -> None:
        items = self._since_mark()
        into = self._top()
        if not isinstance(into, set):
            raise Refused("items added to what is not a set")
        into.update(map(_key, items))

    def _tuple(self, length: int) -> None:
        found = self._stack[-length:]
        if len(found) < length or any(one is _MARK for one in found):
            raise IndexError
        del self._stack[-length:]
        self._push(tuple(found))

    def _get(self, number: int) -> None:
        self._push(self._memo[number])

    def _put(self, number: int) -> None:
        value = self._top()
        if value is _MARK:
            raise Refused("a mark where a value should be")
        self._memo[number] = value

    def _global(self) -> None:
        module, name = str(self.line(), "utf-8"), str(self.line(), "utf-8")
        self._push(self._lookup(module, name))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refused("a name that is not text")
        self._push(self._lookup(module, name))

    def _lookup(self, module: str, name: str) -> Named:
        known = self._known.get((module, name))
        if known is None:
            make = self._table.get((module, name))
            if make is None:
                raise Refused(
                    f"it asks for {ascii(f'{module}.{name}')[1:-1][:200]}, which leafwise neither knows nor imports"
                )
            known = self._known[module, name] = Named(module, name, make)
        return known

    def _reduce(self) -> None:
        args, callee = self._pop(), self._pop()
        self._push(self._made(callee, args))

    def _new_object_with_names(self) -> None:
        named, args, callee = self._pop(), self._pop(), self._pop()
        if named:
            raise Refused("an object made with named arguments")
        self._push(self._made(callee, args))

    def _made(self, callee: Any, args: Any) -> Any:
        if not isinstance(callee, Named) or not isinstance(args, tuple):
            raise Refused(f"it calls {shown(callee)}")
        result = callee.make(*args)
        self._count(result)
        return result

    def _count(self, made: Any) -> None:
        """A call may copy what is large, and be made again and again."""
        if isinstance(made, str | bytes | list | tuple | dict | set | frozenset):
            self._made_so_far += len(made)
            if self._made_so_far > MAX_MADE + len(self.data):
                raise Refused("it makes far more than the file holds")

    def _build(self) -> None:
        state, into = self._pop(), self._top()
        if isinstance(into, Record):
            into.state = state
        elif hasattr(into, "build_from"):
            self._count(state)
            into.build_from(state)
        elif not isinstance(into, dict):  # the attributes of an OrderedDict, such as _metadata, are passed over
            raise Refused(f"it gives a state to {shown(into)}")

    def _persistent_id(self) -> None:
        found = self._pop()
        if self._persistent is None:
            raise Refused("a reference to something outside of it")
        self._push(self._persistent(found))


def shown(value: Any) -> str:
    """A value in an error message. Only plain values are written out: the text of nested ones may have no end."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    return ascii(value)[:100] if isinstance(value, _SCALARS) else f"<{type(value).__name__}>"


def _bounded(value: Any) -> Any:
    """Refuses containers in containers without end, and few that stand for very many by being referred to again."""
    sizes: dict[int, int] = {}
    stack: list[tuple[Any, bool]] = [(value, False)]
    inside: set[int] = set()
    while stack:
        one, done = stack.pop()
        if not isinstance(one, dict | list | tuple | set) or id(one) in sizes:
            continue
        items = list(one.values()) if isinstance(one, dict) else list(one)
        if not done:
            if id(one) in inside:
                continue  # it contains itself; the walk shows that once
            inside.add(id(one))
            if len(inside) > MAX_DEPTH:
                raise Refused(f"containers are nested more than {MAX_DEPTH} deep")
            stack.append((one, True))
            stack += [(item, False) for item in items if isinstance(item, dict | list | tuple | set)]
            continue
        inside.discard(id(one))
        sizes[id(one)] = 1 + sum(sizes.get(id(item), 1) for item in items)
        if sizes[id(one)] > MAX_EXPANDED:
            raise Refused(f"it stands for more than {MAX_EXPANDED:,} items")
    return value


def _number(text: bytes) -> int:
    if len(text) > 4000:
        raise Refused("a number too long to read")
    return int(text)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refused("items appended to what is not a list")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Refused("items set in what is not a dict")
    return value


def _key(key: Any) -> Any:
    """A key of plain values. Hashes of nested tuples, and of chosen numbers, can be made to take for ever."""
    if isinstance(key, (*_SCALARS, Record)) and _is_short(key):
        return key
    if isinstance(key, tuple) and len(key) <= 64 and all(isinstance(one, _SCALARS) and _is_short(one) for one in key):
        return key
    raise Refused(f"a key that is not a plain value, but {type(key).__name__}")


def _is_short(key: Any) -> bool:
    return not isinstance(key, int | float) or -(1 << 53) < key < 1 << 53


def _unquoted(text: bytes) -> str:
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise Refused("a string without quotes")
    if b"\\" in text:
        raise Refused("a string with escapes, as only Python 2 wrote")
    return str(text[1:-1], "latin-1")


_OPS: dict[int, Callable[[Machine], Any]] = {
    0x80: Machine._proto,
    0x95: lambda m: m.take(8),  # FRAME
    ord("("): lambda m: m._stack.append(_MARK),
    ord("0"): lambda m: m._stack.pop(),
    ord("1"): Machine._since_mark,
    ord("2"): lambda m: m._push(m._top()),
    ord("N"): lambda m: m._push(None),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("I"): Machine._int,
    ord("J"): lambda m: m._push(int.from_bytes(m.take(4), "little", signed=True)),
    ord("K"): lambda m: m._push(m.unsigned(1)),
    ord("M"): lambda m: m._push(m.unsigned(2)),
    ord("L"): Machine._long,
    0x8A: Machine._long1,
    0x8B: lambda m: m._long1(4),
    ord("F"): lambda m: m._push(float(m.line())),
    ord("G"): lambda m: m._push(struct.unpack(">d", m.take(8))[0]),
    ord("S"): lambda m: m._push(_unquoted(m.line())),
    ord("T"): lambda m: m._string(4),
    ord("U"): lambda m: m._string(1),
    ord("B"): lambda m: m._bytes(4),
    ord("C"): lambda m: m._bytes(1),
    0x8E: lambda m: m._bytes(8),
    0x96: lambda m: m._bytes(8),  # BYTEARRAY8
    ord("V"): lambda m: m._push(str(m.line(), "raw-unicode-escape")),
    ord("X"): lambda m: m._text(4),
    0x8C: lambda m: m._text(1),
    0x8D: lambda m: m._text(8),
    ord("]"): lambda m: m._push([]),
    ord("a"): Machine._append,
    ord("e"): Machine._appends,
    ord("l"): lambda m: m._push(m._since_mark()),
    ord(")"): lambda m: m._push(()),
    ord("t"): lambda m: m._push(tuple(m._since_mark())),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    ord("}"): lambda m: m._push({}),
    ord("d"): Machine._dict,
    ord("s"): Machine._set_item,
    ord("u"): Machine._set_items,
    0x8F: lambda m: m._push(set()),
    0x90: Machine._add_items,
    0x91: lambda m: m._push(frozenset(map(_key, m._since_mark()))),
    ord("c"): Machine._global,
    0x93: Machine._stack_global,
    ord("R"): Machine._reduce,
    0x81: Machine._reduce,  # NEWOBJ
    0x92: Machine._new_object_with_names,
    ord("b"): Machine._build,
    ord("g"): lambda m: m._get(_number(m.line())),
    ord("h"): lambda m: m._get(m.unsigned(1)),
    ord("j"): lambda m: m._get(m.unsigned(4)),
    ord("p"): lambda m: m._put(_number(m.line())),
    ord("q"): lambda m: m._put(m.unsigned(1)),
    ord("r"): lambda m: m._put(m.unsigned(4)),
    0x94: lambda m: m._put(len(m._memo)),
    ord("Q"): Machine._persistent_id,
}
