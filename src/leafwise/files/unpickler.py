"""Pickles, read and never run.

A pickle is a program for a small stack machine that may call anything it can import. This machine knows the same
opcodes, and imports nothing: a name in a pickle is looked up in a short table of what checkpoints are made of, each
with a function of ours that builds an inert description. Every other name is refused, by name.
"""

import struct
import sys
from collections.abc import Callable
from time import thread_time
from typing import Any

from leafwise.core.path import escape
from leafwise.errors import FileError
from leafwise.files.limits import HashClock, LimitError, Limits, names_cost

MAX_DEPTH = 100  # containers in containers
_MAX_MARKS = 100_000  # that are open at once
_MAX_NUMBER = 1024  # bytes of a whole number
_SCALARS = (str, int, float, complex, bool, bytes, type(None))
_NUMBERS = frozenset({int, float, bool, complex, type(None)})
_CONTAINERS = (dict, list, tuple, set)

# What things take in memory, in bytes: measured, and rounded up.
_SLOT = 9  # a place on the stack, or in a list
_TEXT = 60  # besides the letters
_KEPT = 80  # an entry of the memo
_KEY = 60  # an entry of a dict
_COPIED = 8  # steps that it takes to copy an entry of a large collection
_FEW = 64  # entries of one that is not large
_ELEMENT = 110  # an entry of a set
_ARRAY = 400  # what describes an array
_WALKED = 90  # what the walk keeps of a value
_NUMBER = 110  # what the walk, or a listing as JSON, makes of a number
_OTHER = 4  # the steps of an opcode that is not done in the loop itself, besides the one
_CALL = 25  # the steps of a call
_LOOKUP = 6  # the steps of finding a name, or of getting at a dict


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


class EndError(Exception):
    """The pickle goes on where its bytes end."""


class Machine:
    """Runs one pickle to its end."""

    def __init__(
        self,
        data: bytes,
        table: Table,
        persistent: Callable[[Any], Any] | None,
        error: Callable[[int, str], FileError],
        limits: Limits,
        at: int = 0,
    ) -> None:
        self.data = data
        self.at = at
        self._table = table
        self._persistent = persistent
        self._error = error
        self._limits = limits
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below the open marks
        self._memo: dict[int, Any] = {}
        self._known: dict[tuple[str, str], Named] = {}
        self._clock = HashClock()
        limits.make(len(data) - at)

    def run(self) -> Any:
        """What the pickle describes; `at` is then the offset behind it. Raises EndError where the bytes end before."""
        self._stack, self._below = [], []
        try:
            return self._bounded(self._run())
        except (Refused, LimitError) as error:
            raise self._error(self.at, f"in the pickle: {error}") from error
        except (FileError, EndError):
            raise
        except MemoryError as error:
            raise self._error(self.at, "the pickle asks for more memory than there is") from error
        except (
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            IndexError,
            struct.error,
        ) as error:
            said = f"{type(error).__name__}: {ascii(str(error)[:200])[:200]}"
            raise self._error(self.at, f"the pickle makes no sense here ({said})") from error

    def _run(self) -> Any:  # noqa: C901
        # The hot loop of opening a pickle. The opcodes that checkpoints consist of are done right here, which is three
        # times as fast as a call of a function for each. An opcode that reads beyond the end gets less than it asked
        # for, and the next look at the data, which is then outside of it, finds out.
        data, size, memo, limits, costs, ops = self.data, len(self.data), self._memo, self._limits, _COSTS, _OPS
        stack, at, last, steps, room = self._stack, self.at, len(self.data) - 1, limits.steps, limits.bytes
        for step in range(steps + 1):
            if at >= last and (at > last or data[at] != 0x2E):
                raise EndError  # every other opcode is followed by something
            self.at = at
            code = data[at]
            at += 1
            room -= costs[code]
            if room < 0 or step >= steps:
                limits.bytes = room
                limits.make(0)
                limits.work(step + 1)
            if code == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif code == 0x72:  # LONG_BINPUT
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == 0x58:  # BINUNICODE
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                if end > size:
                    raise EndError
                text = data[at + 4 : end]
                room -= len(text) if text.isascii() else 4 * len(text)
                if room >= 0:
                    stack.append(str(text, "utf-8", "surrogatepass"))
                at = end
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x4A:  # BININT
                stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
                at += 4
            elif code == 0x4D:  # BININT2
                stack.append(int.from_bytes(data[at : at + 2], "little"))
                at += 2
            elif code == 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
            elif code == 0x86:  # TUPLE2
                stack[-2:] = [(stack[-2], stack[-1])]
            elif code == 0x4E:  # NONE
                stack.append(None)
            elif code == 0x47:  # BINFLOAT
                if at + 8 > size:
                    raise EndError
                stack.append(_FLOAT(data, at)[0])
                at += 8
            elif code == 0x28:  # MARK
                self._below.append(stack)
                if len(self._below) > _MAX_MARKS:
                    raise Refused(f"more than {_MAX_MARKS:,} marks are open at once")
                stack = self._stack = []
            elif code == 0x74:  # TUPLE
                items = tuple(stack)
                room -= _SLOT * len(items)
                stack = self._stack = self._below.pop()
                stack.append(items)
            elif code == 0x30 and stack:  # POP
                stack.pop()
            elif code == 0x2E:  # STOP
                self.at = at
                limits.bytes, limits.steps = room, limits.steps - step
                return stack.pop()
            else:
                op = ops.get(code)
                if op is None:
                    raise Refused(f"the opcode {bytes([code])!r} is not one that checkpoints need")
                limits.bytes, limits.steps, began = room, limits.steps - _OTHER, at - 1
                self.at = at
                op(self)
                at, self.at = self.at, began
                stack, steps, room = self._stack, limits.steps, limits.bytes
        raise Refused("it has no end")

    # -- the stack ---------------------------------------------------------------------------------------

    def _pop(self) -> Any:
        return self._stack.pop()

    def _top(self) -> Any:
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        if not self._below:
            raise Refused("a mark is missing")
        found, self._stack = self._stack, self._below.pop()
        return found

    def _discard(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    # -- reading arguments -------------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise EndError
        self._limits.make(length)
        found = self.data[self.at : end]
        self.at = end
        return found

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise EndError
        return self.take(end + 1 - self.at)[:-1]

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
        text = self.take(self.unsigned(width))
        if not text.isascii():
            self._limits.make(3 * len(text))
        self._push(str(text, "utf-8", "surrogatepass"))

    def _line_of_text(self) -> None:
        text = self.line()
        self._limits.make(3 * len(text))
        self._push(str(text, "raw-unicode-escape"))

    def _string(self, width: int) -> None:
        text = self.take(self.unsigned(width))
        self._limits.make(len(text))
        self._push(str(text, "latin-1"))

    def _bytes(self, width: int) -> None:
        self._push(self.take(self.unsigned(width)))

    def _append(self) -> None:
        value = self._pop()
        _list(self._top()).append(value)

    def _appends(self) -> None:
        values = self._since_mark()
        self._limits.make(_SLOT * len(values))
        _list(self._top()).extend(values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._fill(_dict(self._top()), [key], [value])

    def _set_items(self) -> None:
        items = self._since_mark()
        self._fill(_dict(self._top()), items[::2], items[1::2])

    def _dict(self) -> None:
        items = self._since_mark()
        found: dict[Any, Any] = {}
        self._fill(found, items[::2], items[1::2])
        self._push(found)

    def _fill(self, into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
        self._limits.make(_KEY * len(keys))
        self._limits.work(_LOOKUP)
        if len(keys) != len(values):
            raise Refused("a key without a value")
        if set(map(type, keys)) <= {str}:
            into.update(zip(keys, values, strict=True))
            return
        rest = iter(values)
        self._limits.work(_LOOKUP + 2 * len(keys))
        self._clock.fill(lambda some: into.update(zip(some, rest)), list(map(self._key, keys)))  # noqa: B905

    def _add_items(self) -> None:
        items = self._since_mark()
        into = self._top()
        if not isinstance(into, set):
            raise Refused("items added to what is not a set")
        self._add(into, items)

    def _frozen(self) -> None:
        found: set[Any] = set()
        self._add(found, self._since_mark())
        self._push(frozenset(found))

    def _add(self, into: set[Any], items: list[Any]) -> None:
        self._limits.make(_ELEMENT * len(items))
        self._limits.work(2 * _LOOKUP + 2 * len(items))
        self._clock.fill(into.update, list(map(self._key, items)))

    def _key(self, key: Any) -> Any:
        """A key of plain values. Hashes of nested tuples can be made to take for ever."""
        if isinstance(key, (*_SCALARS, Record)) and _is_short(key):
            return key
        if isinstance(key, tuple) and len(key) <= 64:
            self._limits.work(2 * len(key))
            # The path calls it by its text.
            self._limits.make(sum(4 * len(one) for one in key if isinstance(one, str | bytes)))
            if all(isinstance(one, _SCALARS) and _is_short(one) for one in key):
                return key
        raise Refused(f"a key that is not a plain value, but {type(key).__name__}")

    def _tuple(self, length: int) -> None:
        found = self._stack[-length:]
        if len(found) < length:
            raise IndexError(f"{len(found)} values for a tuple of {length}")
        del self._stack[-length:]
        self._push(tuple(found))

    def _get(self, number: int) -> None:
        self._push(self._memo[number])

    def _put(self, number: int) -> None:
        self._memo[number] = self._top()

    def _global(self) -> None:
        module, name = str(self.line(), "utf-8"), str(self.line(), "utf-8")
        self._push(self._lookup(module, name))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refused("a name that is not text")
        self._push(self._lookup(module, name))

    def _lookup(self, module: str, name: str) -> Named:
        self._limits.work(_LOOKUP)
        known = self._known.get((module, name))
        if known is None:
            make = self._table.get((module, name))
            if make is None:
                asked = ascii(f"{module[:200]}.{name[:200]}")[1:-1][:200]
                raise Refused(f"it asks for {asked}, which leafwise neither knows nor imports")
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
        """What a call gives. It may copy what is large, and be made again and again, so it is counted beforehand."""
        if not isinstance(callee, Named) or not isinstance(args, tuple):
            raise Refused(f"it calls {shown(callee)}")
        self._limits.work(_CALL)
        self._count(args)
        for arg in args[:1000]:  # what looks into its arguments refuses more of them
            self._count(arg)
        if not args or not isinstance(args[0], list | tuple) or len(args[0]) < 64:
            made = callee.make(*args)
        else:
            started = thread_time()
            made = callee.make(*args)
            self._clock.took(thread_time() - started, len(args[0]))
        if hasattr(made, "spec"):
            self._limits.make(_ARRAY)
        return made

    def _count(self, value: Any) -> None:
        if isinstance(value, (*_CONTAINERS, frozenset)):
            self._limits.work(_COPIED * len(value) if len(value) > _FEW else len(value))
            self._limits.make(_ELEMENT * len(value) if isinstance(value, dict | set | list) else _SLOT * len(value))
        elif isinstance(value, str | bytes):
            self._limits.make(sys.getsizeof(value))

    def _build(self) -> None:
        state, into = self._pop(), self._top()
        self._limits.work(_CALL)
        if isinstance(into, Record):
            into.state = state
        elif hasattr(into, "build_from"):
            self._count(state)
            if isinstance(state, dict):
                self._limits.make(sum(8 * len(key) for key in state if isinstance(key, str | bytes)))
            into.build_from(state)
        elif not isinstance(into, dict):  # the attributes of an OrderedDict, such as _metadata, are passed over
            raise Refused(f"it gives a state to {shown(into)}")

    def _persistent_id(self) -> None:
        found = self._pop()
        self._limits.work(_CALL)
        if self._persistent is None:
            raise Refused("a reference to something outside of it")
        self._push(self._persistent(found))

    def _bounded(self, value: Any) -> Any:
        """Refuses containers in containers without end, and few that stand for very many by being referred to again:
        counts what the walk and a listing make of them."""
        sizes: dict[int, int] = {}  # of containers that are done with, in bytes
        stack: list[tuple[Any, bool]] = [(value, False)]
        inside: set[int] = set()
        made = once = 0
        if getattr(value, "is_built", True) is False:
            raise Refused("the array was never given its values")
        while stack:
            one, done = stack.pop()
            if not done:
                if id(one) in sizes or id(one) in inside or not isinstance(one, _CONTAINERS):
                    continue  # where it contains itself, the walk shows that once
                self._limits.work(len(one))
                inside.add(id(one))
                if len(inside) > MAX_DEPTH:
                    raise Refused(f"containers are nested more than {MAX_DEPTH} deep")
                stack.append((one, True))
                items = one.values() if isinstance(one, dict) else one
                below = {id(item): item for item in items if isinstance(item, _CONTAINERS)}
                stack += [(item, False) for item in below.values()]
                continue
            inside.discard(id(one))
            own, below_it = self._size(one, sizes)
            once += own
            made = sizes[id(one)] = own + below_it
            if made > self._limits.bytes:
                self._limits.make(made)
        self._limits.make(made)
        self._limits.repeat_values(made - once)
        return value

    def _size(self, one: Any, sizes: dict[int, int]) -> tuple[int, int]:
        """What a container and what is in it stand for, in bytes of what is made of them: it alone, and the containers
        in it."""
        is_dict = isinstance(one, dict)
        items = one.values() if is_dict else one
        if _NUMBERS.issuperset(map(type, items)):
            return _NUMBER * len(one) + _WALKED, 0
        total, below = 4 * _WALKED, 0
        arrays = []
        for key, item in one.items() if is_dict else enumerate(one):
            size = sizes.get(id(item))
            if size is None:
                total += _WALKED
            else:
                below += size
            kind = type(item)
            if kind is str or kind is bytes:
                total += len(item)
            elif kind not in _NUMBERS and hasattr(item, "spec"):
                if getattr(item, "is_built", True) is False:
                    raise Refused(f"the array under {shown(key)} was never given its values")
                arrays.append(str(key))
        return total + names_cost(arrays, self._limits.bytes), below


def shown(value: Any) -> str:
    """A value in an error message. Only plain values are written out: the text of nested ones may have no end."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[:100]
    return ascii(value)[:100] if isinstance(value, _SCALARS) else f"<{type(value).__name__}>"


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


def _is_short(key: Any) -> bool:
    return not isinstance(key, int | float) or -(1 << 53) < key < 1 << 53


def _unquoted(text: bytes) -> str:
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise Refused("a string without quotes")
    if b"\\" in text:
        raise Refused("a string with escapes, as only Python 2 wrote")
    return str(text[1:-1], "latin-1")


_FLOAT = struct.Struct(">d").unpack_from

# What each opcode makes, in bytes, besides what its method counts.
_COSTS = [_SLOT] * 256
for _codes, _cost in (
    ("qrp", _KEPT),
    ("XVSTUBC", _SLOT + _TEXT),
    ("\x8c\x8d\x8e\x96", _SLOT + _TEXT),
    ("JMILG", _SLOT + 32),
    ("]l", _SLOT + 72),
    ("}d", _SLOT + 180),
    ("\x8f\x91", _SLOT + 232),
    ("\x85\x86\x87t", _SLOT + 80),
    ("R\x81\x92", _SLOT + 64),
):
    for _code in _codes:
        _COSTS[ord(_code)] = _cost
_COSTS[0x94] = _KEPT
_COSTS[ord("0")] = 0

# Opcodes that are not done in the loop of the machine itself.
_OPS: dict[int, Callable[[Machine], Any]] = {
    0x80: Machine._proto,
    0x95: lambda m: m.take(8),  # FRAME
    ord("0"): Machine._discard,
    ord("1"): Machine._since_mark,
    ord("2"): lambda m: m._push(m._top()),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("I"): Machine._int,
    ord("L"): Machine._long,
    0x8A: Machine._long1,
    0x8B: lambda m: m._long1(4),
    ord("F"): lambda m: m._push(float(m.line())),
    ord("S"): lambda m: m._push(_unquoted(m.line())),
    ord("T"): lambda m: m._string(4),
    ord("U"): lambda m: m._string(1),
    ord("B"): lambda m: m._bytes(4),
    ord("C"): lambda m: m._bytes(1),
    0x8E: lambda m: m._bytes(8),
    0x96: lambda m: m._bytes(8),  # BYTEARRAY8
    ord("V"): Machine._line_of_text,
    0x8C: lambda m: m._text(1),
    0x8D: lambda m: m._text(8),
    ord("]"): lambda m: m._push([]),
    ord("a"): Machine._append,
    ord("e"): Machine._appends,
    ord("l"): lambda m: m._push(m._since_mark()),
    ord(")"): lambda m: m._push(()),
    0x87: lambda m: m._tuple(3),
    ord("}"): lambda m: m._push({}),
    ord("d"): Machine._dict,
    ord("s"): Machine._set_item,
    ord("u"): Machine._set_items,
    0x8F: lambda m: m._push(set()),
    0x90: Machine._add_items,
    0x91: Machine._frozen,
    ord("c"): Machine._global,
    0x93: Machine._stack_global,
    ord("R"): Machine._reduce,
    0x81: Machine._reduce,  # NEWOBJ
    0x92: Machine._new_object_with_names,
    ord("b"): Machine._build,
    ord("g"): lambda m: m._get(_number(m.line())),
    ord("p"): lambda m: m._put(_number(m.line())),
    0x94: lambda m: m._put(len(m._memo)),
    ord("Q"): Machine._persistent_id,
}
