"""What bytes would look up and call if a program took them for opcodes of a pickle.

Only the stack is followed, and nothing is refused: a real reader stops at the first opcode that it cannot carry out, so
this reads at least as far as any of them.
"""

import codecs
import io
import os
import pickletools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from leafwise.core.opaque import Opaque
from leafwise.errors import FileError
from leafwise.files.pickles.pickle_objects import GlobalName, UnknownName
from leafwise.files.sources.source import Source

_MOST_OPCODES = 1_000_000
_AT_ONCE = 1 << 16  # bytes
_NAME_BYTES = 1_000  # of a text that are read
_MARK = object()
_BY_CODE = {op.code: op for op in pickletools.opcodes}
_COUNTS = {  # bytes of the number of bytes that follow, by what pickletools calls it
    pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4, pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}  # fmt: skip
# Where programs stop: they have no objects outside of the pickle, and no numbers for classes.
_LAST = {"STOP", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER"}
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ"}
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}


_RETURN_TEXT = ("builtins.", "_codecs.", "codecs.", "functools.", "json.", "operator.")


class _EndError(Exception):
    """A program that reads these opcodes would stop here."""


class Found(NamedTuple):
    """A class or function that is looked up or called. Without a module, it is not known which one."""

    module: str
    name: str
    is_called: bool


class _Opcodes:
    def __init__(
        self, data: "bytes | Source", at: int, stack: list[list[Any]], memo: Callable[[int], Any], entries: int
    ) -> None:
        self._stream: Any = (
            io.BytesIO(data) if isinstance(data, bytes) else io.BufferedReader(_SourceBytes(data), _AT_ONCE)
        )
        self._stream.seek(at)
        self._size = len(data) if isinstance(data, bytes) else data.size
        self._stack = [value for part in stack for value in (*part, _MARK)][:-1]
        self._memo, self._own, self._entries = memo, dict[int, Any](), entries

    def run(self) -> Iterator[Found]:
        for _ in range(_MOST_OPCODES):
            op = _BY_CODE.get(str(self._read(1), "latin-1"))
            if op is None or op.name in _LAST:
                return
            yield from self._done(op, self._argument(op))
        yield Found("", "", False)  # whatever comes later is not known

    def _read(self, length: int) -> bytes:
        data = bytes(self._stream.read(length))
        if len(data) < length:
            raise _EndError
        return data

    def _line(self) -> bytes:
        line = bytes(self._stream.readline(_NAME_BYTES))
        end = line
        while end and not end.endswith(b"\n"):
            end = bytes(self._stream.readline(_AT_ONCE))
        if not end:
            raise _EndError
        return line.removesuffix(b"\n")

    def _argument(self, op: Any) -> Any:
        """The argument: text, or the number of an entry of the memo; anything else is not needed."""
        if op.arg is None:
            return None
        if op.name in ("GLOBAL", "INST"):
            return str(self._line(), "utf-8", "replace"), str(self._line(), "utf-8", "replace")
        if op.arg.n == pickletools.UP_TO_NEWLINE:
            line = self._line()
            if op.name == "UNICODE":
                return str(line, "raw-unicode-escape", "replace")
            if op.name == "STRING":
                return str(codecs.escape_decode(line.strip()[1:-1])[0], "latin-1")
            return int(line.partition(b"\0")[0]) if op.name in ("PUT", "GET") else None  # as C does
        width = _COUNTS.get(op.arg.n)
        if width is None:
            number = int.from_bytes(self._read(op.arg.n), "little")
            return number if "PUT" in op.name or "GET" in op.name else None
        length = int.from_bytes(self._read(width), "little")
        if self._stream.tell() + length > self._size:
            raise _EndError
        data = self._read(min(length, _NAME_BYTES))
        self._stream.seek(length - len(data), 1)
        return str(data, "utf-8", "replace") if op.name in _TEXTS else None

    def _pop(self) -> Any:
        if not self._stack:
            raise _EndError
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        values = []
        while (value := self._pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _done(self, op: Any, argument: Any) -> Iterator[Found]:
        name, stack = op.name, self._stack
        if name in _TEXTS:
            stack.append(argument)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            self._pop()
        elif name == "DUP":
            stack += [value := self._pop(), value]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            number = self._entries if name == "MEMOIZE" else argument
            self._entries += number not in self._own and number >= self._entries
            self._own[number] = self._pop()
            stack.append(self._own[number])
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._own[argument] if argument in self._own else self._memo(argument))
        elif name in ("GLOBAL", "INST"):
            if name == "INST":
                self._since_mark()
            stack.append(UnknownName(".".join(argument)))
            yield Found(argument[0], argument[1], name == "INST")
        elif name == "STACK_GLOBAL":
            last, module = self._pop(), self._pop()
            if not _may_be_text(module) or not _may_be_text(last):
                raise _EndError
            is_known = isinstance(module, str) and isinstance(last, str)
            stack.append(UnknownName(f"{module}.{last}" if is_known else "a computed name"))
            yield Found(module, last, False) if is_known else Found("", "", False)
        else:
            values, result = self._popped(op), "an object"
            if name in _CALLS and values and isinstance(values[0], GlobalName | UnknownName):
                result = values[0].class_name if isinstance(values[0], UnknownName) else str(values[0])
                module, _, last = result.rpartition(".")
                yield Found(module, last, True)
            # What is changed stays the same object.
            kept = (
                values[:1] if op.stack_before and name in ("BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS") else []
            )
            stack += kept or [Opaque(result)] * len(op.stack_after)

    def _popped(self, op: Any) -> list[Any]:
        values: list[Any] = []
        before = list(op.stack_before)
        if pickletools.markobject in before:
            values = self._since_mark()
            before = before[: before.index(pickletools.markobject)]
        return [*[self._pop() for _ in before][::-1], *values]


def _may_be_text(value: Any) -> bool:
    """Whether a value on the stack is text, or the result of a function that may return text."""
    return isinstance(value, str) or (type(value) is Opaque and value.class_name.startswith(_RETURN_TEXT))


class _SourceBytes(io.RawIOBase):
    """A source as a file object."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._at if whence == os.SEEK_CUR else 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._source.size)
        data = self._source.read(self._at, stop) if self._at < stop else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def names_in_opcodes(
    data: "bytes | Source", at: int, stack: list[list[Any]], memo: Callable[[int], Any], entries: int
) -> list[Found]:
    """The names that a program looks up or calls if it reads opcodes from `at` on. `stack` are the parts of its stack
    between open marks, `memo` returns an entry of its memo, which has this many `entries`, or raises."""
    found: list[Found] = []
    with suppress(_EndError, LookupError, ValueError, OverflowError, EOFError, FileError):
        found.extend(_Opcodes(data, at, stack, memo, entries).run())
    return found
