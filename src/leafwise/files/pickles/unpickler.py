"""Reads pickles without running them.

A pickle is a program for a small stack machine that may call anything it can import. This machine implements the same
opcodes but imports nothing: a name in a pickle is looked up in a short table of the names that checkpoints use, which
maps each to a function of ours that builds an inert description. An object of any other class becomes an `Opaque`
record of what the pickle says about it; if the machine is strict, it is refused, and the error shows its name.
"""

import codecs
import re
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from time import thread_time
from typing import Any

from leafwise.core.opaque import Opaque, StoredText
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Storage
from leafwise.files.limits import HashClock, LimitError, Limits
from leafwise.files.pickles.opcode_names import names_in_opcodes
from leafwise.files.pickles.pickle_bytes import MARGIN, STOP, PickleBytes
from leafwise.files.pickles.pickle_calls import HARMLESS_NAMES, danger, doubt_of_call, warning_text
from leafwise.files.pickles.pickle_costs import (
    ARRAY_BYTES,
    ARRAY_STEPS,
    CALL_STEPS,
    DICT_ENTRY_BYTES,
    FAR_MEMO_BYTES,
    LOOKUP_STEPS,
    METHOD_STEPS,
    OBJECT_BYTES,
    OPCODE_BYTES,
    SET_ENTRY_BYTES,
    SLOT_BYTES,
    Survey,
    count_argument,
)
from leafwise.files.pickles.pickle_objects import (
    MAKES_OPAQUE,
    PASSED_ON_IS_DANGEROUS,
    GlobalName,
    PickleNames,
    StoredBytes,
    StoredDeque,
    Table,
    TruncatedPickleError,
    UnexpectedArgumentsError,
    UnfinishedArray,
    UnknownName,
    UnpicklingError,
    Usage,
    is_plain_key,
    kind_of_text,
    looks_like_class,
    parts_of,
    shown,
)
from leafwise.files.pickles.pickled_content import ContentOf, content_of
from leafwise.files.pickles.python_objects import class_text, is_plain_factory, make_dict, text_of_python_2
from leafwise.files.sources.source import Source

# What an opcode raises if its operands are not valid.
_INVALID = LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, struct.error
_MAX_MARKS = 100_000  # marks that may be open at once
_MAX_NUMBER = 1024  # bytes that an int may have
_MAX_NAMES = 20_000  # classes and functions; a model has some dozens
_NAME_BYTES = 800  # what is kept for each of them
_ATTRIBUTE_STEPS = 4
_MAX_NAME = 200  # characters of a module or a class that are kept
_HOOKS = re.compile(rb"h.h(.)\)Rr....(?:h.h\1\)Rr....)*", re.DOTALL)  # see _add_hooks
_HOOKS_LENGTH = 11  # bytes for each kind of hook
_HOOKS_NUMBERS = struct.Struct("<7xI").iter_unpack
_HOOKS_BYTES = 180  # an empty dict, and its place in the memo and on the stack
_LONG_BYTES = 1 << 16  # longer bytes objects stay in the file, if the pickle is not in memory


class Unpickler(PickleBytes):
    """Reads one pickle after another from some bytes, and returns what each describes.

    `data` is the whole pickle, or a source, of which only a window is in memory. `names` collects the module and the
    name of each class and function that the pickle refers to, and what it does with them.
    """

    def __init__(
        self,
        data: "bytes | Source",
        table: Table,
        persistent: Callable[[Any], Any] | None,
        error: Callable[[int, str], FileError],
        limits: Limits,
        at: int = 0,
        *,
        names: PickleNames,
        content_of: ContentOf = content_of,
        keeps_memo: bool = False,
    ) -> None:
        super().__init__(data, at, limits)
        self._table = table
        self._persistent = persistent
        self._error = error
        self._content_of = content_of
        self._keeps_memo = keeps_memo  # from one pickle to the next, as `pickle.Unpickler` does
        self.names = names
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below the open marks
        self._memo: list[Any] = []
        self._far_memo: dict[int, Any] = {}  # entries whose numbers are not consecutive
        self._known: dict[tuple[str, str], Any] = {}
        self._asked: dict[str, tuple[str, str]] = {}  # by full name, the module and the name in the pickle
        self._scanned: dict[int, Any] = {}  # by identity, what was searched for such names
        self._passes_names = False  # whether a name in PASSED_ON_IS_DANGEROUS was looked up
        self._clock = HashClock()
        self._kinds: dict[int, tuple[Any, dict[Any, Any]]] = {}  # by dict or set, what the texts in its keys stand for
        self._depth = 0  # of pickles inside each other
        self.changeable: dict[int, Any] = {}  # by identity, bytes that are those of a bytearray
        self._frame_end, self._is_in_frame = 0, False  # the offset at which the last frame ends

    def run(self) -> Any:
        """Returns what the pickle describes; `at` is then the offset after it. Raises TruncatedPickleError if the bytes
        end before the pickle does."""
        self._stack, self._below, self._is_in_frame = [], [], False
        if not self._keeps_memo:
            self._memo, self._far_memo = [], {}  # each pickle in a file has its own memo
        try:
            value = self._run()
            if self._passes_names:  # in what was filled after it was passed on, too
                self._scanned = {}
                self._note_passed([parts_of(kept) for kept in (value, *self._memo, *self._far_memo.values())])
            Survey(self.limits, self._content_of).run(value)
            return value
        except (UnpicklingError, LimitError) as error:
            raise self._error(self.at, f"the pickle cannot be read: {error}{warning_text(self.names)}") from error
        except (FileError, TruncatedPickleError):
            raise
        except MemoryError as error:
            raise self._error(self.at, "the pickle needs more memory than is available") from error
        except (
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            struct.error,
        ) as error:
            reason = f"{type(error).__name__}: {ascii(str(error)[:200])[:200]}"
            raise self._error(self.at, f"the pickle is not valid here ({reason}){warning_text(self.names)}") from error

    def _run(self) -> Any:  # noqa: C901
        # The hot loop of opening a pickle. The most common opcodes of checkpoints are handled right here, which is
        # three times as fast as calling a method for each. An opcode that reads beyond the end gets fewer bytes than it
        # asked for; the next iteration then finds `at` beyond the end, and raises.
        data, size, memo, limits, costs, ops = self.data, len(self.data), self._memo, self.limits, OPCODE_BYTES, _OPS
        stack, at, edge, steps, bytes_left = self._stack, self.position, self.edge, limits.steps, limits.bytes
        far_memo = self._far_memo
        for step in range(steps + 1):
            if at >= edge:
                # Raises if the bytes end here: every opcode except STOP is followed by something.
                at = self._at_edge(at)
                data, size, edge = self.data, len(self.data), self.edge
            self.position = at
            code = data[at]
            at += 1
            bytes_left -= costs[code]
            if bytes_left < 0 or step >= steps:
                limits.bytes = bytes_left
                limits.spend_bytes(0)
                limits.spend_steps(step + 1)
            if code == 0x71:  # BINPUT
                if data[at] == len(memo) and not far_memo:
                    memo.append(stack[-1])
                else:
                    bytes_left -= self._remember(data[at], stack[-1])
                at += 1
            elif code == 0x72:  # LONG_BINPUT
                number = int.from_bytes(data[at : at + 4], "little")
                if number == len(memo) and not far_memo:
                    memo.append(stack[-1])
                else:
                    bytes_left -= self._remember(number, stack[-1])
                at += 4
            elif code == 0x68:  # BINGET
                number = data[at]
                if at < edge - MARGIN and data[at + 1] == 0x68 and data[at + 3 : at + 6] == b")Rr":
                    end = self._add_hooks(at - 1, memo, stack)
                    if end:
                        bytes_left -= _HOOKS_BYTES * (end - at) // _HOOKS_LENGTH
                        at = end
                        continue
                stack.append(memo[number] if number < len(memo) else self._far_memo[number])
                at += 1
            elif code == 0x6A:  # LONG_BINGET
                number = int.from_bytes(data[at : at + 4], "little")
                stack.append(memo[number] if number < len(memo) else self._far_memo[number])
                at += 4
            elif code == 0x58:  # BINUNICODE
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                if end > size:
                    end -= at - 1
                    self.slide(at - 1, end)
                    data, size, edge, at = self.data, len(self.data), self.edge, 1
                text = data[at + 4 : end]
                bytes_left -= len(text) if text.isascii() else _decoded_bytes(text)
                if bytes_left >= 0:
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
                bytes_left -= SLOT_BYTES * len(items)
                stack = self._stack = self._below.pop()
                stack.append(items)
            elif code == 0x94:  # MEMOIZE
                if self._far_memo:
                    bytes_left -= self._remember(len(memo) + len(self._far_memo), stack[-1])
                else:
                    memo.append(stack[-1])
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code == 0x52 and not stack[-1] and getattr(stack[-2], "make", None) is make_dict:
                # REDUCE that makes an empty OrderedDict.
                stack.pop()
                stack[-1] = {}
                bytes_left -= _HOOKS_BYTES
            elif code == 0x88:  # NEWTRUE
                stack.append(True)
            elif code == 0x89:  # NEWFALSE
                stack.append(False)
            elif code == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif code == 0x87:  # TUPLE3
                stack[-3:] = [tuple(stack[-3:])]
            elif code == 0x30 and stack:  # POP
                stack.pop()
            elif code == STOP:
                self.position = at
                if self._is_in_frame and self.base + at != self._frame_end:
                    raise UnpicklingError("it does not end where its last frame does")
                self._is_in_frame = False
                limits.bytes, limits.steps = bytes_left, limits.steps - step
                return stack.pop()
            else:
                op = ops.get(code)
                if op is None:
                    raise UnpicklingError(f"it contains the opcode {bytes([code])!r}, which checkpoints do not use")
                limits.bytes, limits.steps, began = bytes_left, limits.steps - METHOD_STEPS, self.base + at - 1
                self.position = at
                op(self)
                at, self.position = self.position, began - self.base
                data, size, edge = self.data, len(self.data), self.edge
                stack, steps, bytes_left = self._stack, limits.steps, limits.bytes
        raise UnpicklingError("it does not end")

    def _add_hooks(self, start: int, memo: list[Any], stack: list[Any]) -> int:
        """Handles the empty dicts of hooks, of which each module has a dozen, all at once: they are most of the pickle
        of a whole model. Each takes the opcodes BINGET, BINGET, EMPTY_TUPLE, REDUCE and LONG_BINPUT. Returns where they
        end; 0 if these are other opcodes."""
        match = None if self._far_memo else _HOOKS.match(self.data, start)
        if match is None or match[1][0] >= len(memo) or getattr(memo[match[1][0]], "make", None) is not make_dict:
            return 0
        names, first = match[0][1::_HOOKS_LENGTH], len(memo)
        numbers = [number for (number,) in _HOOKS_NUMBERS(match[0])]
        if numbers != list(range(first, first + len(numbers))) or max(names) >= first:
            return 0
        for name in names:
            hooks: dict[Any, Any] = {}
            stack += (memo[name], hooks)
            memo.append(hooks)
        return match.end()

    # -- the memo ----------------------------------------------------------------------------------------

    def _remember(self, number: int, value: Any) -> int:
        """Sets an entry of the memo whose number is not the next one. Returns the bytes that it takes."""
        if number < len(self._memo):
            self._memo[number] = value
            return 0
        if number == len(self._memo):
            self._memo.append(value)
            self._far_memo.pop(number, None)  # so that each number counts once, as in CPython
            return SLOT_BYTES
        self._far_memo[number] = value
        return FAR_MEMO_BYTES

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

    # -- opcodes -----------------------------------------------------------------------------------------

    def _proto(self) -> None:
        if self.take(1)[0] > 5:
            raise UnpicklingError("its protocol is later than 5")

    # A program reads a frame as a whole, and then continues after it: programs read a wrong frame in different ways.

    def _frame(self) -> None:
        length = self.unsigned(8)
        if self._is_in_frame and self.at - 9 != self._frame_end:
            raise UnpicklingError("a frame begins inside another")
        self._frame_end, self._is_in_frame = self.at + length, True
        self.edge = min(self.edge, self._frame_end - self.base)

    def _at_edge(self, at: int) -> int:
        """Continues after a frame, or with the next bytes of the file."""
        if self._is_in_frame and self.base + at >= self._frame_end:
            if self.base + at > self._frame_end:
                raise UnpicklingError("an opcode begins in a frame and ends outside of it")
            self._is_in_frame = False
            self.edge = self.last_edge()
            if at < self.edge:
                return at
        return self.slide(at)

    def slide(self, at: int, need: int = 0) -> int:
        at = super().slide(at, need)
        if self._is_in_frame:
            self.edge = min(self.edge, self._frame_end - self.base)
        return at

    def array_bytes(self, length: int, aligned: bool) -> Storage:
        self._check_outside_frames()
        return super().array_bytes(length, aligned)

    def _check_outside_frames(self) -> None:
        if self._is_in_frame and self.at < self._frame_end:
            raise UnpicklingError("the bytes of an array begin inside a frame")
        self._is_in_frame, self.edge = False, self.last_edge()

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
            self.limits.spend_bytes(_decoded_bytes(text) - len(text))
        self._push(str(text, "utf-8", "surrogatepass"))

    def _line_of_text(self) -> None:
        text = self.line()
        self.limits.spend_bytes(3 * len(text))
        self._push(str(text, "raw-unicode-escape"))

    def _string(self, width: int) -> None:
        """A string of Python 2: text, or the bytes of an array."""
        length = self.unsigned(width)
        if self._stays_in_file(length):
            return
        text = self.take(length)
        self.limits.spend_bytes(_decoded_bytes(text))
        self._push(text_of_python_2(text))

    def _bytes(self, width: int) -> None:
        length = self.unsigned(width)
        if not self._stays_in_file(length):
            self._push(self.take(length))

    def _bytearray(self) -> None:
        self._bytes(8)
        self.note_changeable(self._top())

    def note_changeable(self, data: Any) -> None:
        """Notes bytes that are those of a bytearray: programs may have other bytes there when they use it."""
        self.changeable[id(data)] = data

    def _stays_in_file(self, length: int) -> bool:
        if self.source is None or length < _LONG_BYTES:
            return False
        self.limits.spend_bytes(OBJECT_BYTES)
        self._push(StoredBytes(Storage(self.source, self.skip(length), length)))
        return True

    def _append(self) -> None:
        value = self._pop()
        self._items(self._top(), [value]).append(value)

    def _appends(self) -> None:
        values = self._since_mark()
        self.limits.spend_bytes(SLOT_BYTES * len(values))
        self._items(self._top(), values).extend(values)

    def _items(self, into: Any, values: list[Any]) -> Any:
        """Where items are appended: a list, or the items of an opaque object."""
        self._note_put(values)
        if isinstance(into, list | StoredDeque):
            return into
        if not isinstance(into, Opaque):
            raise UnpicklingError("items are appended to an object that is not a list")
        self._note_changed(into)
        into.items = [] if into.items is None else into.items
        return into.items

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._fill(self._entries(self._top()), [key], [value])

    def _set_items(self) -> None:
        items = self._since_mark()
        into = self._stack[-1]
        self._fill(into if into.__class__ is dict else self._entries(into), items[::2], items[1::2])

    def _entries(self, into: Any) -> dict[Any, Any]:
        """Where items are set: a dict, or the entries of an opaque object."""
        if isinstance(into, dict):
            return into
        if not isinstance(into, Opaque):
            raise UnpicklingError("items are set in an object that is not a dict")
        self._note_changed(into)
        into.entries = {} if into.entries is None else into.entries
        return into.entries

    def _dict(self) -> None:
        items = self._since_mark()
        made: dict[Any, Any] = {}
        self._fill(made, items[::2], items[1::2])
        self._push(made)

    def _fill(self, into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
        self.limits.spend_bytes(DICT_ENTRY_BYTES * len(keys))
        self.limits.spend_steps(LOOKUP_STEPS)
        self._note_put(values)
        if len(keys) != len(values):
            raise UnpicklingError("a dict has a key without a value")
        if not self._kinds and set(map(type, keys)) <= {str}:
            into.update(zip(keys, values, strict=True))
            return
        rest = iter(values)
        self.limits.spend_steps(LOOKUP_STEPS + 2 * len(keys))
        keys = list(map(self._key, keys))
        for number in self._same_texts(into, keys):
            self._tell_apart(into, keys, number)
        self._clock.fill(lambda batch: into.update(zip(batch, rest)), keys)  # noqa: B905

    def _same_texts(self, into: Any, keys: list[Any]) -> list[int]:
        """The numbers of keys that are equal to another key of a dict or a set only because one is shown as the text
        of the other, such as a path."""
        kinds = list(map(kind_of_text, keys))
        if id(into) not in self._kinds:
            if not any(kinds):
                return []
            self._kinds[id(into)] = into, {key: kind_of_text(key) for key in into}
        known = self._kinds[id(into)][1]
        self.limits.spend_bytes(DICT_ENTRY_BYTES * len(keys))
        pairs = enumerate(zip(keys, kinds, strict=True))
        return [number for number, (key, kind) in pairs if known.setdefault(key, kind) != kind]

    def _tell_apart(self, into: dict[Any, Any], keys: list[Any], number: int) -> None:
        """Replaces one of two keys that are equal by an opaque object: not the one that is plain text."""
        key = keys[number]
        if kind_of_text(key):
            keys[number] = self._opaque_key(key)
            return
        self.limits.spend_steps(len(into) + number)
        before = [place for place in range(number) if keys[place] == key]
        if before:
            keys[before[0]] = self._opaque_key(keys[before[0]])
            return
        items = [(self._opaque_key(other) if other == key else other, value) for other, value in into.items()]
        into.clear()
        into.update(items)

    def _opaque_key(self, key: Any) -> Opaque:
        self.limits.spend_bytes(OBJECT_BYTES)
        return Opaque(key.class_name if isinstance(key, StoredText) else f"builtins.{type(key).__name__}", (key,))

    def _add_items(self) -> None:
        items = self._since_mark()
        self._note_put(items)
        into = self._top()
        if isinstance(into, Opaque):
            self.limits.spend_bytes(SLOT_BYTES * len(items))
            self._items(into, items).extend(items)
        elif isinstance(into, set):
            if (opaque := self._add(into, items)) is not None:
                self._replace_top(opaque)
        else:
            raise UnpicklingError("items are added to an object that is not a set")

    def _frozen(self) -> None:
        items: set[Any] = set()
        added = self._since_mark()
        self._note_put(added)
        opaque = self._add(items, added, "builtins.frozenset")
        self._push(frozenset(items) if opaque is None else opaque)

    def _add(self, into: set[Any], items: list[Any], class_name: str = "builtins.set") -> Opaque | None:
        """Adds items to a set. Returns an opaque object to use instead, if an item is neither a plain value nor a short
        tuple of them: it may contain arrays, or take forever to hash."""
        self.limits.spend_bytes(SET_ENTRY_BYTES * len(items))
        self.limits.spend_steps(2 * LOOKUP_STEPS + 2 * len(items))
        is_opaque = not all(map(self._is_key, items)) or any(isinstance(item, Opaque) for item in items)
        if is_opaque or self._same_texts(into, items):
            self._refuse_if_strict("a set contains collections or objects")
            self.limits.spend_bytes(SLOT_BYTES * len(into) + OBJECT_BYTES)
            opaque = Opaque(class_name)
            opaque.items = [*into, *items]
            return opaque
        self._clock.fill(into.update, items)
        return None

    def _key(self, key: Any) -> Any:
        """A key of a dict. If it is not a plain value or a short tuple of these, an opaque object represents it."""
        if self._is_key(key):
            return key
        self._refuse_if_strict(
            f"a dict has a key of type {type(key).__name__} that leafwise does not read; it reads keys that are plain "
            "values or short tuples of plain values"
        )
        if not hasattr(key, "spec"):
            return self._opaque_key(key)
        self.limits.spend_bytes(OBJECT_BYTES)
        return Opaque("torch.Tensor", (key,))

    def _is_key(self, key: Any) -> bool:
        """Whether a key can be looked up in a short time. Nested tuples can be built that take forever to hash."""
        if isinstance(key, Opaque):
            return True
        if isinstance(key, tuple | frozenset) and len(key) <= 64:
            self.limits.spend_steps(2 * len(key))
            # The path contains the key as text.
            self.limits.spend_bytes(sum(4 * len(part) for part in key if isinstance(part, str | bytes)))
        return is_plain_key(key)

    def _refuse_if_strict(self, reason: str) -> None:
        if self.limits.strict:
            raise UnpicklingError(reason)

    def _get(self, number: int) -> None:
        self._push(self._memo[number] if 0 <= number < len(self._memo) else self._far_memo[number])

    def _put(self, number: int) -> None:
        self.limits.spend_bytes(self._remember(number, self._top()))

    def _global(self) -> None:
        module, name = str(self.line(), "utf-8"), str(self.line(), "utf-8")
        self._push(self._lookup(module, name))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise UnpicklingError("the name of a class or function is not text")
        self._push(self._lookup(module, name))

    def _lookup(self, module: str, name: str) -> Any:
        self.limits.spend_steps(LOOKUP_STEPS)
        asked = module, name
        known = self._known.get(asked)
        if known is None:
            # Older protocols write the module names of Python 2.
            module, name = NAME_MAPPING.get((module, name)) or (IMPORT_MAPPING.get(module, module), name)
            named = module[:_MAX_NAME], name[:_MAX_NAME]
            full_name = ".".join(named)
            self.limits.spend_bytes(OBJECT_BYTES + _NAME_BYTES + 8 * len(full_name))
            self._note_name(*named, "" if named == (module, name) else "whose name is too long to show")
            self._passes_names = self._passes_names or full_name in PASSED_ON_IS_DANGEROUS
            make = self._table.get((module, name))
            if make is None or hasattr(make, MAKES_OPAQUE):
                self._refuse_if_strict(
                    f"it contains the Python class or function {ascii(full_name)[1:-1][:200]}, which leafwise does not "
                    "load; if you trust the file, load it with PyTorch and save only its tensors and plain values"
                )
            known = UnknownName(full_name) if make is None else GlobalName(full_name, make)
            self._known[asked], self._asked[full_name] = known, named
        return known

    def _inst(self) -> None:
        module, name = str(self.line(), "utf-8"), str(self.line(), "utf-8")
        self._push(self.made(self._lookup(module, name), tuple(self._since_mark())))

    def _obj(self) -> None:
        values = self._since_mark()
        if not values:
            raise IndexError("an object without a class")
        self._push(self.made(values[0], tuple(values[1:])))

    def _reduce(self) -> None:
        args, callee = self._pop(), self._pop()
        self._push(self.made(callee, args))

    def _new_object_with_names(self) -> None:
        keywords, args, callee = self._pop(), self._pop(), self._pop()
        if keywords:
            self._refuse_if_strict("an object is made with keyword arguments")
            if not isinstance(keywords, dict) or not isinstance(args, tuple):
                raise UnpicklingError(f"it calls {shown(callee)} with arguments that are not valid")
            self.limits.spend_bytes(OBJECT_BYTES)
            if not isinstance(callee, GlobalName | Opaque):
                raise UnpicklingError(f"it calls {shown(callee)}, which leafwise does not support")
            self._note_call(callee, (args, keywords))
            name = callee.class_name if isinstance(callee, Opaque) else str(callee)
            self._push(Opaque(name, args, keywords))
        else:
            self._push(self.made(callee, args))

    def made(self, callee: Any, args: Any) -> Any:
        """The result of a call. Calls may copy large arguments again and again, so the arguments are counted before."""
        if not isinstance(callee, GlobalName | Opaque) or not isinstance(args, tuple):
            raise UnpicklingError(f"it calls {shown(callee)}, which leafwise does not support")
        self.limits.spend_steps(CALL_STEPS)
        self._note_call(callee, args)
        if isinstance(callee, Opaque):
            self._refuse_if_strict(f"it calls {shown(callee)}, which leafwise does not support")
            self.limits.spend_bytes(OBJECT_BYTES)
            return Opaque(callee.class_name, args)
        if callee == "builtins.getattr":
            self._note_attribute(args)
        if not callee.is_cheap:
            count_argument(args, self.limits)
            for arg in args[:1000]:  # functions that inspect their arguments refuse more than that
                count_argument(arg, self.limits)
        try:
            if callee.takes_machine:
                made = callee.make(self, *args)
            elif callee.is_cheap or not args or not isinstance(args[0], list | tuple) or len(args[0]) < 64:
                made = callee.make(*args)
            else:
                started = thread_time()
                made = callee.make(*args)
                self._clock.took(thread_time() - started, len(args[0]))
        except UnexpectedArgumentsError as error:
            self._refuse_if_strict(str(error))
            made = Opaque(str(callee), args)
        if hasattr(made, "spec"):
            self.limits.spend_bytes(ARRAY_BYTES)
        elif isinstance(made, Opaque):
            self.limits.spend_bytes(OBJECT_BYTES)
        return made

    def _note_attribute(self, args: tuple[Any, ...]) -> None:
        """Adds an attribute that the pickle looks up to the names: `__globals__` of a harmless class leads anywhere."""
        owner, name = (*args, None, None)[:2]
        attribute = name[:_MAX_NAME] if isinstance(name, str) else "a computed attribute.__"
        self.limits.spend_bytes(_NAME_BYTES)
        owner_text = class_text(owner)
        is_of_class = looks_like_class(owner_text) or owner_text in HARMLESS_NAMES
        is_of_class = is_of_class or not isinstance(owner, GlobalName | UnknownName)
        doubt = "" if is_of_class else "an attribute of what may be a module"
        self._note_name(owner_text[: 2 * _MAX_NAME], attribute, doubt)

    def _note_call(self, callee: Any, args: Any) -> None:
        """Adds to the names what a call could do besides calling its function by name."""
        if isinstance(callee, UnknownName):
            named = self._asked.get(callee.class_name) or callee.class_name.rpartition(".")[::2]
            self._note_name(*named, doubt_of_call(callee.class_name, args), is_called=True)
        elif isinstance(callee, Opaque):
            module, _, name = callee.class_name.rpartition(".")
            self._note_name(module, name, "an object that the pickle makes and then calls")
        if self._passes_names:
            self._note_passed(args)

    def _note_changed(self, into: Opaque) -> None:
        """Adds to the names that a program calls a method of an object, to put items into it. Python itself does that
        before it sets the attributes of an object, one of which may have the name of the method."""
        if into.state is not None or into.class_name.startswith("omegaconf."):
            module, _, name = into.class_name.rpartition(".")
            self._note_name(module, name, "whose items the pickle changes in an unusual way")

    def note_factory(self, factory: Any) -> None:
        """Adds to the names that a defaultdict calls a function for its new entries, unless that only makes a value."""
        if factory is None or is_plain_factory(factory):
            return
        if isinstance(factory, UnknownName):
            self._note_call(factory, ())
        module, _, name = class_text(factory).rpartition(".")
        if not isinstance(factory, UnknownName) or danger(module, name) == "harmless":
            self._note_name(module, name, "which a defaultdict calls")

    def _note_put(self, values: list[Any]) -> None:
        """Adds to the names that a function is put into a container, which may have been passed on before."""
        if self._passes_names:
            for value in values:
                self._note_passed(value)

    def _note_passed(self, value: Any) -> None:
        """Adds to the names that a function is passed on, in other values: whoever gets it may call it."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if isinstance(value, GlobalName | UnknownName):
                if (full_name := class_text(value)) in PASSED_ON_IS_DANGEROUS:
                    module, _, name = full_name.rpartition(".")
                    self._note_name(module, name, "passed on to be called")
                continue
            if id(value) not in self._scanned and (parts := parts_of(value)):
                self._scanned[id(value)] = value  # which keeps it, so that no other object gets its identity
                self.limits.spend_bytes(OBJECT_BYTES)
                self.limits.spend_steps(4 * len(parts))
                waiting += parts

    def _note_name(self, module: str, name: str, doubt: str = "", is_called: bool = False) -> None:
        self.names[module, name] = Usage(doubt, is_called).combined(self.names.get((module, name)))
        if len(self.names) > _MAX_NAMES:
            raise UnpicklingError(f"it refers to more than {_MAX_NAMES:,} classes and functions")

    def _build(self) -> None:
        state, into = self._pop(), self._top()
        self.limits.spend_steps(CALL_STEPS)
        if self._passes_names:
            self._note_passed(state)
        if isinstance(into, UnfinishedArray):
            count_argument(state, self.limits)
            into.state = state
            finished = into.finished(state, self)
            if finished is not None:
                self.limits.spend_bytes(ARRAY_BYTES)
                self.limits.spend_steps(ARRAY_STEPS)
                self._replace_top(finished)
        elif hasattr(into, "build_from"):
            count_argument(state, self.limits)
            into.build_from(state)
        elif isinstance(into, Opaque):
            if into.state is not None:
                raise UnpicklingError(f"the state of {shown(into)} is set twice")
            for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
                if isinstance(part, dict):  # attributes are looked through again for each object, and merged
                    inside = sum(len(value) for value in part.values() if isinstance(value, dict))  # of modules
                    self.limits.spend_steps(_ATTRIBUTE_STEPS * (len(part) + inside))
                    self.limits.spend_bytes(SLOT_BYTES * 8 * inside)
            self._note_state(into, state)
            into.state = state
        elif not isinstance(into, dict):
            raise UnpicklingError(f"it sets the state of {shown(into)}, which leafwise does not support")
        elif not isinstance(state, dict) or any(isinstance(key, str) and key.startswith("__") for key in state):
            # Attributes of an OrderedDict, such as _metadata, are ignored; the factory of a defaultdict is a slot.
            self._note_name("collections", "defaultdict", "whose attributes the pickle sets")

    def note_made(self, kind: Any, args: Any) -> None:
        """Adds to the names that a function of `copyreg` makes an object, of a class that leafwise does not replace."""
        if isinstance(kind, GlobalName):
            module, _, name = str(kind).rpartition(".")
            self._note_name(module, name, "made in a way that leafwise does not know")
        else:
            self._note_call(kind, args)

    def note_called(self, function: Any, args: Any) -> None:
        """Adds to the names that a function is called by another one, which then sets attributes of the result."""
        if isinstance(function, UnknownName):
            self._note_call(function, args)
            module, _, name = function.class_name.rpartition(".")
            if danger(module, name) != "harmless":
                return
        self._note_name(*class_text(function).rpartition(".")[::2], "whose result is changed")

    def _note_state(self, into: Opaque, state: Any) -> None:
        """Adds to the names what setting a state could do besides setting the attributes of an object."""
        module, _, name = into.class_name.rpartition(".")
        if isinstance(into, UnknownName):
            self._note_name(module, name, "whose attributes the pickle changes")
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        is_special = isinstance(slots, dict) and any(isinstance(key, str) and key.startswith("__") for key in slots)
        if is_special or (isinstance(attributes, dict) and any(map(_may_be_called, attributes.items()))):
            self._note_name(module, name, "whose special attributes the pickle sets")

    def note_used(self, value: Opaque) -> None:
        """Adds to the names that a function calls a method of an object, which may be an attribute that was set."""
        module, _, name = value.class_name.rpartition(".")
        if danger(module, name) == "harmless" or (isinstance(value.state, dict) and "detach" in value.state):
            self._note_name(module, name, "of which PyTorch calls an attribute")

    def probe(self, is_pickle: bool = False) -> None:
        """Adds to the names what a program would look up that takes what follows for opcodes, as `pickle.load` does
        with the bytes of arrays that joblib writes between them. If a pickle follows, as for an array of objects, then
        only names that are dangerous themselves."""

        def entry(number: int) -> Any:
            return self._memo[number] if 0 <= number < len(self._memo) else self._far_memo[number]

        parts = [*self._below, self._stack]
        self.limits.spend_steps(sum(map(len, parts)))
        entries = len(self._memo) + len(self._far_memo)
        where = "in what could be read as opcodes"
        for found in names_in_opcodes(self.source or self.data, self.at, parts, entry, entries):
            if not found.name:
                self._note_name("pickle", "load", f"a name that leafwise cannot read, {where}")
            elif is_pickle and danger(found.module, found.name, use=Usage("", found.is_called)) != "dangerous":
                continue
            elif f"{found.module}.{found.name}".replace(".", "_").isidentifier():  # and not the bytes of numbers
                self._note_name(found.module[:_MAX_NAME], found.name[:_MAX_NAME], where, found.is_called)

    def nested(self) -> Any:
        """What a pickle between two opcodes describes, as joblib writes it for an array of objects."""
        self._check_outside_frames()
        if self.source is None or self._depth > 4:
            raise UnpicklingError("a pickle inside another is not expected here")
        inner = Unpickler(self.source, self._table, None, self._error, self.limits, self.at, names=self.names)
        inner._depth = self._depth + 1
        value = inner._run()
        self.position += inner.at - self.at
        return value

    def _replace_top(self, value: Any) -> None:
        """Replaces the top of the stack, and the entry of the memo that refers to it, which is usually a recent one."""
        old, memo = self._stack[-1], self._memo
        self._stack[-1] = value
        for number in range(len(memo) - 1, -1, -1):
            if memo[number] is old:
                self.limits.spend_steps((len(memo) - number) // 8)
                memo[number] = value
                return
        self.limits.spend_steps(len(memo) // 8)
        for number, remembered in self._far_memo.items():
            if remembered is old:
                self._far_memo[number] = value
                return

    def _persistent_id(self) -> None:
        reference = self._pop()
        self.limits.spend_steps(CALL_STEPS)
        self.limits.spend_bytes(OBJECT_BYTES)
        if self._persistent is None:
            raise UnpicklingError("it refers to an object outside of the pickle")
        self._push(self._persistent(reference))


def _may_be_called(attribute: tuple[Any, Any]) -> bool:
    """Whether an attribute has the name of a method that Python or a library calls, and is not a plain value."""
    key, value = attribute
    if not isinstance(key, str) or not (key.startswith("__") and key.endswith("__")):
        return False
    return key not in ("__dict__", "__orig_class__") and isinstance(value, Opaque | GlobalName)


def truncated_pickle(source: Source, offset: int) -> FileError:
    """The error for a pickle that does not end."""
    return source.error(offset, f"the pickle ends early; was the file cut off?{warning_text(source.pickle_names)}")


def _number(text: bytes) -> int:
    if len(text) > 4000:
        raise UnpicklingError("a number is too long to read")
    return int(text)


def _decoded_bytes(text: bytes) -> int:
    """The memory of a text that is not ASCII. Characters below 256, such as those that represent bytes in pickles of
    protocol 2, take one byte each."""
    return 2 * len(text) if len(text) > 4096 and not text.translate(None, _LATIN) else 4 * len(text)


_LATIN = bytes(range(0xC4))  # the bytes in the UTF-8 of characters below 256


def _unquoted(text: bytes) -> str:
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise UnpicklingError("a string has no quotes")
    return text_of_python_2(codecs.escape_decode(text[1:-1])[0])  # as pickle does


_FLOAT = struct.Struct(">d").unpack_from

# Opcodes that are not handled in the loop itself.
_OPS: dict[int, Callable[[Unpickler], Any]] = {
    0x80: Unpickler._proto,
    0x95: Unpickler._frame,
    ord("0"): Unpickler._discard,
    ord("1"): Unpickler._since_mark,
    ord("2"): lambda m: m._push(m._top()),
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
    0x96: Unpickler._bytearray,
    ord("V"): Unpickler._line_of_text,
    0x8C: lambda m: m._text(1),
    0x8D: lambda m: m._text(8),
    ord("a"): Unpickler._append,
    ord("e"): Unpickler._appends,
    ord("l"): lambda m: m._push(m._since_mark()),
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
    ord("i"): Unpickler._inst,  # INST and OBJ: Python 2 used them for objects of old classes
    ord("o"): Unpickler._obj,
    ord("Q"): Unpickler._persistent_id,
}
