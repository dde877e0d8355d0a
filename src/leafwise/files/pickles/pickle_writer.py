"""Writes pickles without running anything: plain values, and objects of classes that need not be imported.

The counterpart of `unpickler`. PyTorch reads these pickles, so leafwise can write its formats where PyTorch is not
installed, and they do not depend on the installed version.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

_MAX_DEPTH = 100  # nested containers, as in leafwise's own entry


class Call:
    """An object that is made by calling a function or class, named as in `collections.OrderedDict`."""

    __slots__ = ("args", "function")

    def __init__(self, function: str, *args: Any) -> None:
        self.function, self.args = function, args


class Made:
    """An object of a class, made without calling `__init__`, and its state."""

    __slots__ = ("class_name", "state")

    def __init__(self, class_name: str, state: Any) -> None:
        self.class_name, self.state = class_name, state


class Global:
    """A class, function or constant of a module, by its full name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Reference:
    """What a pickle refers to but does not contain, such as the storage of a tensor."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


def pickled(value: Any) -> bytes:
    """A pickle of plain values and of the classes above, in protocol 2. Raises TypeError for any other value.

    >>> import pickle
    >>> pickle.loads(pickled({"lr": 0.1, "betas": (0.9, 0.999), "steps": [1, -2, 2**40], "names": {"a"}}))
    {'lr': 0.1, 'betas': (0.9, 0.999), 'steps': [1, -2, 1099511627776], 'names': {'a'}}
    """
    writer = _Writer()
    writer.add(value)
    return b"\x80\x02" + b"".join(writer.parts) + b"."


def can_pickle(value: Any) -> bool:
    """Whether `pickled` writes a plain value.

    >>> can_pickle([1, "a", None]), can_pickle(object())
    (True, False)
    """
    try:
        pickled(value)
    except TypeError:
        return False
    return True


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._texts: dict[str, bytes] = {}  # what refers to a text that was written before
        self._names: dict[str, bytes] = {}  # what refers to a class or function
        self._depth = 0

    def add(self, value: Any) -> None:
        if type(value) in _SINGLE:
            self.parts.append(_SINGLE[type(value)](value))
        elif type(value) is str:
            known = self._texts.get(value)
            self.parts.append(known) if known else self._add_new(self._texts, value, _text(value))
        elif isinstance(value, Global):
            self._add_global(value.name)
        else:
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise TypeError("too many containers inside each other")
            self._add_container(value)
            self._depth -= 1

    def _add_container(self, value: Any) -> None:
        kind = type(value)
        if kind is tuple:
            self._add_tuple(value)
        elif kind is list:
            self._add_items(b"]", value, b"e")
        elif kind is dict:
            self._add_items(b"}", (part for pair in value.items() for part in pair), b"u")
        elif kind in (set, frozenset):
            # In a fixed order, so that equal sets give equal pickles.
            items = sorted(value, key=lambda item: (type(item).__name__, repr(item)))
            self._call(f"__builtin__.{kind.__name__}", (items,))
        elif isinstance(value, Call):
            self._call(value.function, value.args)
        elif isinstance(value, Made):
            self._add_global(value.class_name)
            self.parts.append(b")\x81")
            self.add(value.state)
            self.parts.append(b"b")
        elif isinstance(value, Reference):
            self.add(value.key)
            self.parts.append(b"Q")
        else:
            raise TypeError(f"{kind.__name__} cannot be pickled here")

    def _add_tuple(self, items: tuple[Any, ...]) -> None:
        if items:
            self._add_items(b"", items, b"t")
        else:
            self.parts.append(b")")

    def _add_items(self, empty: bytes, items: Iterable[Any], append: bytes) -> None:
        self.parts.append(empty + b"(")
        for item in items:
            self.add(item)
        self.parts.append(append)

    def _call(self, function: str, args: tuple[Any, ...]) -> None:
        self._add_global(function)
        self._add_tuple(args)
        self.parts.append(b"R")

    def _add_global(self, name: str) -> None:
        known = self._names.get(name)
        if known:
            self.parts.append(known)
            return
        module, _, attribute = name.rpartition(".")
        self._add_new(self._names, name, f"c{module}\n{attribute}\n".encode("ascii"))

    def _add_new(self, memo: dict[str, bytes], key: str, written: bytes) -> None:
        """Writes something, and remembers what refers to it."""
        number = len(self._texts) + len(self._names)
        memo[key] = b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
        put = b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        self.parts.append(written + put)


def _text(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise TypeError("text with an unpaired surrogate") from error
    return b"X" + struct.pack("<I", len(data)) + data


def _number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return (b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + struct.pack("<I", len(data))) + data


def _bytes(value: bytes) -> bytes:
    # Protocol 2 has no bytes; Python writes this call.
    encoded = value.decode("latin-1")
    call = b"c_codecs\nencode\n(" + _text(encoded) + _text("latin1") + b"tR"
    return call if value else b"c__builtin__\nbytes\n)R"


_SINGLE: Mapping[type, Any] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: _number,
    float: lambda value: b"G" + struct.pack(">d", value),
    complex: lambda value: (
        b"c__builtin__\ncomplex\n(G" + struct.pack(">d", value.real) + b"G" + struct.pack(">d", value.imag) + b"tR"
    ),
    bytes: _bytes,
}
