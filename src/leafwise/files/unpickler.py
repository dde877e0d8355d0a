"""Reads pickles without running them.

A pickle is a program for a small stack machine that may call anything it can import. This machine implements the same
opcodes but imports nothing: a name in a pickle is looked up in a short table of the names that checkpoints use, which
maps each to a function of ours that builds an inert description. Every other name is refused, and the error shows it.
"""

import struct
from collections.abc import Callable
from time import thread_time
from typing import Any

from leafwise.errors import FileError
from leafwise.files.limits import HashClock, LimitError, Limits
from leafwise.files.pickle_costs import (
    ARRAY_BYTES,
    CALL_STEPS,
    DICT_ENTRY_BYTES,
    LOOKUP_STEPS,
    METHOD_STEPS,
    OPCODE_BYTES,
    SET_ENTRY_BYTES,
    SLOT_BYTES,
    check_size,
    count_argument,
)
from leafwise.files.pickle_objects import (
    SCALARS,
    GlobalName,
    PickledObject,
    Table,
    TruncatedPickleError,
    UnpicklingError,
    shown,
)

_MAX_MARKS = 100_000  # marks that may be open at once
_MAX_NUMBER = 1024  # bytes that an int may have


class Unpickler:
    """Reads one pickle after another from some bytes, and returns what each describes."""

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
        self._known: dict[tuple[str, str], GlobalName] = {}
        self._clock = HashClock()
        limits.spend_bytes(len(data) - at)

    def run(self) -> Any:
        """Returns what the pickle describes; `at` is then the offset after it. Raises TruncatedPickleError if the bytes
        end before the pickle does."""
        self._stack, self._below = [], []
        try:
            value = self._run()
            check_size(value, self._limits)
            return value
        except (UnpicklingError, LimitError) as error:
            raise self._error(self.at, f"the pickle cannot be read: {error}") from error
        except (FileError, TruncatedPickleError):
            raise
        except MemoryError as error:
            raise self._error(self.at, "the pickle needs more memory than is available") from error
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
            reason = f"{type(error).__name__}: {ascii(str(error)[:200])[:200]}"
            raise self._error(self.at, f"the pickle is not valid here ({reason})") from error

    def _run(self) -> Any:  # noqa: C901
        # The hot loop of opening a pickle. The most common opcodes of checkpoints are handled right here, which is
        # three times as fast as calling a method for each. An opcode that reads beyond the end gets fewer bytes than it
        # asked for; the next iteration then finds `at` beyond the end, and raises.
        data, size, memo, limits, costs, ops = self.data, len(self.data), self._memo, self._limits, OPCODE_BYTES, _OPS
        stack, at, last, steps, room = self._stack, self.at, len(self.data) - 1, limits.steps, limits.bytes
        for step in range(steps + 1):
            if at >= last and (at > last or data[at] != 0x2E):
                raise TruncatedPickleError  # every opcode except STOP is followed by something
            self.at = at
            code = data[at]
            at += 1
            room -= costs[code]
            if room < 0 or step >= steps:
                limits.bytes = room
                limits.spend_bytes(0)
                limits.spend_steps(step + 1)
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
                    raise TruncatedPickleError
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
                    raise TruncatedPickleError
                stack.append(_FLOAT(data, at)[0])
                at += 8
            elif code == 0x28:  # MARK
                self._below.append(stack)
                if len(self._below) > _MAX_MARKS:
                    raise UnpicklingError(f"more than {_MAX_MARKS:,} marks are open at once")
                stack = self._stack = []
            elif code == 0x74:  # TUPLE
                items = tuple(stack)
                room -= SLOT_BYTES * len(items)
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
                    raise UnpicklingError(f"it contains the opcode {bytes([code])!r}, which checkpoints do not use")
                limits.bytes, limits.steps, began = room, limits.steps - METHOD_STEPS, at - 1
                self.at = at
                op(self)
                at, self.at = self.at, began
                stack, steps, room = self._stack, limits.steps, limits.bytes
        raise UnpicklingError("it does not end")

    # -- the stack ---------------------------------------------------------------------------------------

    def _pop(self) -> Any:
        return self._stack.pop()

    def _top(self) -> Any:
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        if not self._below:
            raise UnpicklingError("a mark is missing")
        values, self._stack = self._stack, self._below.pop()
        return values

    def _discard(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    # -- reading arguments -------------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise TruncatedPickleError
        self._limits.spend_bytes(length)
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise TruncatedPickleError
        return self.take(end + 1 - self.at)[:-1]

    # -- opcodes -----------------------------------------------------------------------------------------

    def _proto(self) -> None:
        if self.take(1)[0] > 5:
            raise UnpicklingError("its protocol is later than 5")

    def _int(self) -> None:
        text = self.line()
        self._push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else _number(text))

    def _long(self) -> None:
        self._push(_number(self.line().rstrip(b"L")))

    def _long1(self, width: int = 1) -> None:
        length = self.unsigned(width)
        if length > _MAX_NUMBER:
            raise UnpicklingError("a number is too long to read")
        self._push(int.from_bytes(self.take(length), "little", signed=True))

    def _text(self, width: int) -> None:
        text = self.take(self.unsigned(width))
        if not text.isascii():
            self._limits.spend_bytes(3 * len(text))
        self._push(str(text, "utf-8", "surrogatepass"))

    def _line_of_text(self) -> None:
        text = self.line()
        self._limits.spend_bytes(3 * len(text))
        self._push(str(text, "raw-unicode-escape"))

    def _string(self, width: int) -> None:
        text = self.take(self.unsigned(width))
        self._limits.spend_bytes(len(text))
        self._push(str(text, "latin-1"))

    def _bytes(self, width: int) -> None:
        self._push(self.take(self.unsigned(width)))

    def _append(self) -> None:
        value = self._pop()
        _list(self._top()).append(value)

    def _appends(self) -> None:
        values = self._since_mark()
        self._limits.spend_bytes(SLOT_BYTES * len(values))
        _list(self._top()).extend(values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._fill(_dict(self._top()), [key], [value])

    def _set_items(self) -> None:
        items = self._since_mark()
        self._fill(_dict(self._top()), items[::2], items[1::2])

    def _dict(self) -> None:
        items = self._since_mark()
        made: dict[Any, Any] = {}
        self._fill(made, items[::2], items[1::2])
        self._push(made)

    def _fill(self, into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
        self._limits.spend_bytes(DICT_ENTRY_BYTES * len(keys))
        self._limits.spend_steps(LOOKUP_STEPS)
        if len(keys) != len(values):
            raise UnpicklingError("a dict has a key without a value")
        if set(map(type, keys)) <= {str}:
            into.update(zip(keys, values, strict=True))
            return
        rest = iter(values)
        self._limits.spend_steps(LOOKUP_STEPS + 2 * len(keys))
        self._clock.fill(lambda batch: into.update(zip(batch, rest)), list(map(self._key, keys)))  # noqa: B905

    def _add_items(self) -> None:
        items = self._since_mark()
        into = self._top()
        if not isinstance(into, set):
            raise UnpicklingError("items are added to an object that is not a set")
        self._add(into, items)

    def _frozen(self) -> None:
        items: set[Any] = set()
        self._add(items, self._since_mark())
        self._push(frozenset(items))

    def _add(self, into: set[Any], items: list[Any]) -> None:
        self._limits.spend_bytes(SET_ENTRY_BYTES * len(items))
        self._limits.spend_steps(2 * LOOKUP_STEPS + 2 * len(items))
        self._clock.fill(into.update, list(map(self._key, items)))

    def _key(self, key: Any) -> Any:
        """A key, checked to be a plain value or a flat tuple. Nested tuples can be built that take forever to hash."""
        if isinstance(key, (*SCALARS, PickledObject)) and _is_short(key):
            return key
        if isinstance(key, tuple) and len(key) <= 64:
            self._limits.spend_steps(2 * len(key))
            # The path contains the key as text.
            self._limits.spend_bytes(sum(4 * len(part) for part in key if isinstance(part, str | bytes)))
            if all(isinstance(part, SCALARS) and _is_short(part) for part in key):
                return key
        raise UnpicklingError(
            f"a dict or set has a key of type {type(key).__name__} that leafwise does not read; it reads keys that are "
            "plain values or short tuples of plain values"
        )

    def _tuple(self, length: int) -> None:
        items = self._stack[-length:]
        if len(items) < length:
            raise IndexError(f"{len(items)} values for a tuple of {length}")
        del self._stack[-length:]
        self._push(tuple(items))

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
            raise UnpicklingError("the name of a class or function is not text")
        self._push(self._lookup(module, name))

    def _lookup(self, module: str, name: str) -> GlobalName:
        self._limits.spend_steps(LOOKUP_STEPS)
        known = self._known.get((module, name))
        if known is None:
            make = self._table.get((module, name))
            if make is None:
                full_name = ascii(f"{module[:200]}.{name[:200]}")[1:-1][:200]
                raise UnpicklingError(
                    f"it contains the Python class or function {full_name}, which leafwise does not load; if you trust "
                    "the file, load it with PyTorch and save only its tensors and plain values"
                )
            known = self._known[module, name] = GlobalName(module, name, make)
        return known

    def _reduce(self) -> None:
        args, callee = self._pop(), self._pop()
        self._push(self._made(callee, args))

    def _new_object_with_names(self) -> None:
        named, args, callee = self._pop(), self._pop(), self._pop()
        if named:
            raise UnpicklingError("an object is made with keyword arguments")
        self._push(self._made(callee, args))

    def _made(self, callee: Any, args: Any) -> Any:
        """The result of a call. Calls may copy large arguments again and again, so the arguments are counted before."""
        if not isinstance(callee, GlobalName) or not isinstance(args, tuple):
            raise UnpicklingError(f"it calls {shown(callee)}, which leafwise does not support")
        self._limits.spend_steps(CALL_STEPS)
        count_argument(args, self._limits)
        for arg in args[:1000]:  # functions that inspect their arguments refuse more than that
            count_argument(arg, self._limits)
        if not args or not isinstance(args[0], list | tuple) or len(args[0]) < 64:
            made = callee.make(*args)
        else:
            started = thread_time()
            made = callee.make(*args)
            self._clock.took(thread_time() - started, len(args[0]))
        if hasattr(made, "spec"):
            self._limits.spend_bytes(ARRAY_BYTES)
        return made

    def _build(self) -> None:
        state, into = self._pop(), self._top()
        self._limits.spend_steps(CALL_STEPS)
        if isinstance(into, PickledObject):
            into.state = state
        elif hasattr(into, "build_from"):
            count_argument(state, self._limits)
            if isinstance(state, dict):
                self._limits.spend_bytes(sum(8 * len(key) for key in state if isinstance(key, str | bytes)))
            into.build_from(state)
        elif not isinstance(into, dict):  # attributes of an OrderedDict, such as _metadata, are ignored
            raise UnpicklingError(f"it sets the state of {shown(into)}, which leafwise does not support")

    def _persistent_id(self) -> None:
        reference = self._pop()
        self._limits.spend_steps(CALL_STEPS)
        if self._persistent is None:
            raise UnpicklingError("it refers to an object outside of the pickle")
        self._push(self._persistent(reference))


def _number(text: bytes) -> int:
    if len(text) > 4000:
        raise UnpicklingError("a number is too long to read")
    return int(text)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnpicklingError("items are appended to an object that is not a list")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise UnpicklingError("items are set in an object that is not a dict")
    return value


def _is_short(key: Any) -> bool:
    return not isinstance(key, int | float) or -(1 << 53) < key < 1 << 53


def _unquoted(text: bytes) -> str:
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise UnpicklingError("a string has no quotes")
    if b"\\" in text:
        raise UnpicklingError("a string has escapes, which only Python 2 wrote")
    return str(text[1:-1], "latin-1")


_FLOAT = struct.Struct(">d").unpack_from

# Opcodes that are not handled in the loop itself.
_OPS: dict[int, Callable[[Unpickler], Any]] = {
    0x80: Unpickler._proto,
    0x95: lambda m: m.take(8),  # FRAME
    ord("0"): Unpickler._discard,
    ord("1"): Unpickler._since_mark,
    ord("2"): lambda m: m._push(m._top()),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("I"): Unpickler._int,
    ord("L"): Unpickler._long,
    0x8A: Unpickler._long1,
    0x8B: lambda m: m._long1(4),
    ord("F"): lambda m: m._push(float(m.line())),
    ord("S"): lambda m: m._push(_unquoted(m.line())),
    ord("T"): lambda m: m._string(4),
    ord("U"): lambda m: m._string(1),
    ord("B"): lambda m: m._bytes(4),
    ord("C"): lambda m: m._bytes(1),
    0x8E: lambda m: m._bytes(8),
    0x96: lambda m: m._bytes(8),  # BYTEARRAY8
    ord("V"): Unpickler._line_of_text,
    0x8C: lambda m: m._text(1),
    0x8D: lambda m: m._text(8),
    ord("]"): lambda m: m._push([]),
    ord("a"): Unpickler._append,
    ord("e"): Unpickler._appends,
    ord("l"): lambda m: m._push(m._since_mark()),
    ord(")"): lambda m: m._push(()),
    0x87: lambda m: m._tuple(3),
    ord("}"): lambda m: m._push({}),
    ord("d"): Unpickler._dict,
    ord("s"): Unpickler._set_item,
    ord("u"): Unpickler._set_items,
    0x8F: lambda m: m._push(set()),
    0x90: Unpickler._add_items,
    0x91: Unpickler._frozen,
    ord("c"): Unpickler._global,
    0x93: Unpickler._stack_global,
    ord("R"): Unpickler._reduce,
    0x81: Unpickler._reduce,  # NEWOBJ
    0x92: Unpickler._new_object_with_names,
    ord("b"): Unpickler._build,
    ord("g"): lambda m: m._get(_number(m.line())),
    ord("p"): lambda m: m._put(_number(m.line())),
    0x94: lambda m: m._put(len(m._memo)),
    ord("Q"): Unpickler._persistent_id,
}
