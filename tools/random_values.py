"""Random nested Python objects, as they are in checkpoints, and odder ones; and pairs of values that differ: for
tools/random_pickles.py and tools/random_pairs.py."""

import argparse
import array
import datetime
import decimal
import enum
import fractions
import functools
import io
import random
import struct
import types
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

MOST_LEVELS = 6  # containers inside each other


class Color(enum.Enum):
    RED = 1
    BLUE = "2"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Config:
    width: Any = 8
    table: Any = None


@dataclass(frozen=True)
class Place:
    number: int


class Thing:
    """An object whose attributes are drawn at random."""


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Any = 1) -> None:
        self.x = {"a": x}


class Table(dict[Any, Any]):
    pass


class Row(list[Any]):
    pass


class Name(str):
    pass


# Keys that differ, but have the same text or the same hash.
LOOKALIKES = (
    ("w", Path("w"), PurePosixPath("w")),
    (1, "1", "1 (int)"),
    (0.5, "0.5", np.float32(0.5), decimal.Decimal("0.5")),
    (None, "None"),
    (True, "True", "1"),
    (torch.float32, "torch.float32", "float32"),
    (torch.device("cpu"), "cpu"),
    ((1, 2), "(1, 2)", torch.Size([1, 2])),
    ((torch.float32,), ("torch.float32",)),
    ((Path("w"), 1), ("w", 1)),
    (b"w", "w", "b'w'"),
    (OrderedDict, "collections.OrderedDict"),
    (nn.Linear, "torch.nn.modules.linear.Linear"),
    (Color.RED, Color.BLUE, 1),
    (Place(1), Place(2)),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    (frozenset({1}), frozenset({Path("a")}), frozenset({"a"})),
    ("a", "a.b", "a.b.c", "a."),
    ("", ".", " ", "\0"),
    ("\ud800", "\x1b[2J", "é", "日本", "\U0001f600", '"', "\\", "\\u0041", "x\ny", "\r", "\u202e"),
    (-0.0, -1, 2**70, 1j, float("nan"), float("inf")),
    ("param_groups", "state", "__metadata__", "content", "data", "layout", "parts"),
    ((), ((),), ((1, 2), 3)),
    (range(3), range(4)),
    (np.datetime64("2026-01-01"), np.datetime64("2026-01-01T00", "h")),
)  # fmt: skip
PATHS = ("w", "/a/b", "/", ".", "..", "a/../b", "//a/b", "é/ü")
NUMBERS = ("b1", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "c8", "u8", "i8", "f8", "c16")
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int8,
    torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn,
)  # fmt: skip

_LARGE = (90, 100)
_WIDE = np.longdouble("0.1"), np.clongdouble(1j)  # made once, because some of their bytes are not set


class Values:
    """Draws objects. Some places get an object that is at another place, too, or a container that they are in."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.left = rng.choice([2, 8, 20, 40])  # values until only plain ones are drawn
        self.made: list[Any] = []
        self.above: list[Any] = []  # containers that are being filled
        self.tensors: list[torch.Tensor] = []

    def value(self) -> Any:
        self.left -= 1
        choice, rng = self.rng.random(), self.rng
        if self.made and choice < 0.08:
            return rng.choice(self.made)
        if self.above and choice < 0.09:
            return rng.choice(self.above)
        if self.left > 0 and len(self.above) < MOST_LEVELS and choice < 0.5:
            made = rng.choice(_CONTAINERS)(self)
        else:
            made = rng.choice((self.tensor, self.array, self.plain, self.plain))()
        self.made.append(made)
        return made

    def values(self) -> list[Any]:
        return [self.value() for _ in range(self.rng.choice([0, 1, 2, 4]))]

    def keys(self) -> list[Any]:
        similar = self.rng.choice(LOOKALIKES)
        keys = [*self.rng.sample(similar, self.rng.randint(1, len(similar))), *self.rng.sample("abcxyz", 2)]
        if self.rng.random() < 0.05:
            keys.append(self.rng.choice([torch.ones(2), Thing(), len]))
        self.rng.shuffle(keys)
        return keys[: self.rng.randrange(len(keys) + 1)]

    # -- plain values ----------------------------------------------------------------------------------------

    def plain(self) -> Any:
        return self.rng.choice(_PLAIN)(self.rng)

    def array(self) -> Any:
        """A NumPy array."""
        rng, kind = self.rng, self.rng.random()
        shape = self._shape()
        if kind < 0.12:
            objects = np.empty(shape if shape != _LARGE else (10, 30), object)
            for number in range(objects.size):
                objects.flat[number] = self.plain() if rng.random() < 0.7 else np.ones(2)
            return objects
        if kind < 0.2:
            return np.array(rng.choice([["a", "bc"], [b"a", b"bc"], ["x\0"], []]))
        if kind < 0.3:
            dtype = rng.choice(["g", "M8[s]", "m8[ms]", [("a", "<f4"), ("b", "i8", 2)], "V3", "G"])
            return np.zeros(shape, dtype)
        data = self._bytes(shape, dtype := np.dtype(rng.choice("<>") + rng.choice(NUMBERS)))
        array = np.frombuffer(data, dtype).reshape(shape, order=rng.choice("CF")).copy("K")
        return rng.choice(
            [array, array, array.T, array[::-1] if array.ndim else array, np.asmatrix(array.reshape(1, -1))]
        )

    def tensor(self) -> Any:
        rng = self.rng
        if not self.tensors or rng.random() < 0.4:
            dtype, shape = rng.choice(DTYPES), self._shape()
            data = bytearray(self._bytes(shape, np.dtype("b1") if dtype == torch.bool else dtype))
            tensor = torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.zeros(shape, dtype=dtype)
        else:
            tensor = self._view(rng.choice(self.tensors).detach())
        if rng.random() < 0.2 and (tensor.is_floating_point() or tensor.is_complex()):
            tensor = nn.Parameter(tensor, requires_grad=rng.random() < 0.7)
        self.tensors.append(tensor)
        return rng.choice([tensor.untyped_storage, tensor.storage])() if rng.random() < 0.04 else tensor

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        views: list[Callable[[], torch.Tensor]] = [lambda: tensor, lambda: tensor.mT if tensor.dim() > 1 else tensor]
        views += [lambda: tensor.unsqueeze(0), lambda: tensor.reshape(-1)[1:], lambda: tensor.clone()]
        views.append(lambda: tensor.unsqueeze(0).expand(3, *tensor.shape))
        if tensor.is_complex():
            views.append(tensor.conj)
        if tensor.dim():
            views += [lambda: tensor[::2], lambda: tensor[:1], lambda: tensor[0] if len(tensor) else tensor]
        return self.rng.choice(views)()

    def _shape(self) -> tuple[int, ...]:
        return self.rng.choice([(), (0,), (1,), (3,), (2, 3), (3, 2), (2, 0), (1, 2, 2), (4, 4), _LARGE])

    def _bytes(self, shape: tuple[int, ...], dtype: Any) -> bytes:
        size = int(np.prod(shape))
        if dtype == np.dtype("b1"):
            return bytes(self.rng.getrandbits(1) for _ in range(size))
        return self.rng.randbytes(size * dtype.itemsize)

    # -- containers ------------------------------------------------------------------------------------------

    def mapping(self, make: Callable[[], Any]) -> Any:
        return self.filled(make(), lambda made: made.update([(key, self.value()) for key in self.keys()]))

    def attributes(self, make: Callable[[], Any]) -> Any:
        names = self.rng.sample(["width", "table", "args", "items", "keywords", "x"], self.rng.randrange(4))
        return self.filled(make(), lambda made: vars(made).update([(name, self.value()) for name in names]))

    def sequence(self, make: Callable[[], Any]) -> Any:
        return self.filled(make(), lambda made: made.extend(self.values()))

    def frozen(self, make: Callable[[list[Any]], Any]) -> Any:
        self.above.append(placeholder := Thing())
        made = make(self.values())
        self.above.remove(placeholder)
        return made

    def filled(self, made: Any, fill: Callable[[Any], Any]) -> Any:
        self.above.append(made)
        fill(made)
        self.above.pop()
        return made


def _number(rng: random.Random) -> Any:
    return rng.choice(
        [
            0, 1, -1, 255, 256, 65_536, 1 << 31, -(1 << 31), 1 << 63, -(1 << 63), 1 << 200, -(1 << 2000), True, False,
            None, 0.1, -0.0, 1e308, float("inf"), -float("inf"), struct.unpack(">d", b"\x7f\xf8" + rng.randbytes(6))[0],
            1j, complex(-0.0, float("nan")), rng.random(), rng.getrandbits(64),
        ]
    )  # fmt: skip


def _text(rng: random.Random) -> Any:
    short = rng.choice(rng.choice(LOOKALIKES))
    return rng.choice([str(short), str(short), "ü" * 300, "x" * 70_000, "日本\ud800" * 200, "\x85\u2028\t", Name("n")])


def _data(rng: random.Random) -> Any:
    length = rng.choice([0, 1, 3, 255, 256, 5_000, 65_535, 65_536, 100_000])
    return rng.choice([bytes, bytearray])(
        rng.randbytes(length) if length < 50_000 else bytes([rng.randrange(256)]) * length
    )


def _scalar(rng: random.Random) -> Any:
    """A NumPy scalar."""
    kinds = [
        lambda: np.frombuffer(rng.randbytes(8), "f4")[0], lambda: np.float16(rng.random()), lambda: np.float64(-0.0),
        lambda: _WIDE[0], lambda: np.int8(-5), lambda: np.uint64(2**64 - 1), lambda: np.bool_(True),
        lambda: np.complex64(1 - 2j), lambda: _WIDE[1], lambda: np.datetime64("2026-01-01", rng.choice("sD")),
        lambda: np.timedelta64(rng.randrange(9), rng.choice("smh")), lambda: np.str_("a\0"), lambda: np.bytes_(b"ab"),
        lambda: np.zeros(1, [("a", "i4"), ("b", "f8")])[0], lambda: np.array(7, ">i4")[()], lambda: np.str_(""),
    ]  # fmt: skip
    return rng.choice(kinds)()


def _other(rng: random.Random) -> Any:
    """An object of Python's, PyTorch's or NumPy's library, or of ours."""
    return rng.choice(
        [
            range(3), range(5, -1, -2), slice(1, None), Ellipsis, len, nn.Linear, OrderedDict, Color.RED, Level.LOW,
            Path(rng.choice(PATHS)), PurePosixPath("a"), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
            datetime.date(2026, 1, 2), datetime.time(1, 2), datetime.timedelta(seconds=rng.randrange(9)),
            decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=5), torch.float32, torch.bfloat16,
            torch.device("cpu"), torch.device("cuda", 1), torch.strided, torch.per_tensor_affine, torch.Size([2, 3]),
            np.dtype(">f4"), np.float32, functools.partial(print, 1, sep=""), random.Random(1), Place(3), Slots(),
            array.array("f", [1, 2]), io.BytesIO(b"ab"), ValueError("a", 1), UserDict({1: 2}),
        ]
    )  # fmt: skip


def _many(rng: random.Random) -> Any:
    """More items than a pickle writes at once."""
    return rng.choice(
        [list(range(2_500)), {str(n): n for n in range(1_500)}, set(range(1_500)), dict.fromkeys(range(3_000))]
    )


def _set(rng: random.Random) -> Any:
    items = [*rng.choice(LOOKALIKES), *rng.sample("abc", 2)]
    return rng.choice([set, frozenset])(rng.sample(items, rng.randrange(len(items))))


_PLAIN = (
    _number,
    _number,
    _number,
    _text,
    _text,
    _data,
    _scalar,
    _other,
    _other,
    _set,
    _many,
    lambda rng: rng.choice("ab"),
)
_CONTAINERS: tuple[Callable[[Values], Any], ...] = (
    *[lambda draw: draw.mapping(dict)] * 6,
    *[lambda draw: draw.sequence(list)] * 3,
    *[lambda draw: draw.frozen(tuple)] * 2,
    lambda draw: draw.mapping(OrderedDict),
    lambda draw: draw.mapping(lambda: defaultdict(list)),
    lambda draw: Counter(draw.rng.choices(("a", 1, None), k=3)),
    lambda draw: draw.sequence(deque),
    lambda draw: draw.sequence(lambda: deque(maxlen=3)),
    lambda draw: draw.frozen(lambda values: Point(values, draw.value())),
    lambda draw: draw.frozen(lambda values: functools.partial(print, *values)),
    lambda draw: draw.attributes(Config),
    lambda draw: draw.attributes(Thing),
    lambda draw: draw.attributes(argparse.Namespace),
    lambda draw: draw.attributes(types.SimpleNamespace),
    lambda draw: draw.mapping(Table),
    lambda draw: draw.sequence(Row),
)


# -- pairs of values ---------------------------------------------------------------------------------------------


def with_attributes(made: Any, **attributes: Any) -> Any:
    vars(made).update(attributes)
    return made


def _arrays(dtype: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """Two arrays that differ in one element."""
    return np.array([second, first], dtype), np.array([second, second], dtype)


_DAY, _FIELDS = datetime.datetime(2026, 1, 2, 3), [("a", "<f4"), ("b", "i8")]
_LONG = np.longdouble(1), np.nextafter(np.longdouble(1), np.longdouble(2))  # equal as a float of 64 bits
_OBJECTS = {
    "date": (_DAY.date(), datetime.date(2026, 1, 3)), "time zone": (_DAY, _DAY.replace(tzinfo=datetime.UTC)),
    "time": (datetime.time(1), datetime.time(2)), "timedelta": (datetime.timedelta(1), datetime.timedelta(2)),
    "decimal": (decimal.Decimal("1.5"), decimal.Decimal("1.6")), "uuid": (uuid.UUID(int=1), uuid.UUID(int=2)),
    "fraction": (fractions.Fraction(1, 3), fractions.Fraction(1, 4)), "path": (Path("a/b"), Path("a/c")),
    "enum": (Color.RED, Color.BLUE), "type": (nn.Linear, nn.Conv2d),
    "function": (len, print), "dtype": (torch.float32, torch.float16), "byte order": (np.dtype("<f4"), np.dtype(">f4")),
    "device": (torch.device("cuda", 0), torch.device("cuda", 1)), "dtype of NumPy": (np.dtype("f4"), np.dtype("i2")),
    "range": (range(3), range(4)), "slice": (slice(1), slice(2)), "size": (torch.Size([1]), torch.Size([2])),
    "keyword": (functools.partial(print, sep="a"), functools.partial(print, sep="b")), "name": (Name("a"), Name("b")),
    "attribute": (with_attributes(Thing(), x=1), with_attributes(Thing(), x=2)), "class": (Thing(), Config()),
    "dataclass": (Config(1), Config(2)), "frozen dataclass": (Place(1), Place(2)),
    "slots": (Slots(1), Slots(2)), "rows": (Row([1]), Row([2])),
    "named tuple": (Point(1, 2), Point(1, 3)), "dict of a class": (Table(a=1), Table(a=2)),
    "user dict": (UserDict(a=1), UserDict(a=2)), "exception": (ValueError("a"), ValueError("b")),
    "file in memory": (io.BytesIO(b"ab"), io.BytesIO(b"ac")),
    "array of Python": (array.array("f", [1]), array.array("f", [2])), "numbers": (random.Random(1), random.Random(2)),
    "storage": (torch.tensor([1.0, 2.0]).untyped_storage(), torch.tensor([1.0, 3.0]).untyped_storage()),
    "beside a tensor": (with_attributes(Thing(), x=1, y=torch.ones(1)), with_attributes(Thing(), x=2, y=torch.ones(1))),
}  # fmt: skip
# Pairs of values that differ in one thing.
CHANGES: dict[str, tuple[Any, Any]] = {
    "text": ("weight", "weigkt"), "long text": ("x" * 70_000, "x" * 69_999 + "y"), "surrogates": ("\ud800", "\ud801"),
    "bytes": (b"ab", b"ac"), "long bytes": (b"x" * 99_999, b"x" * 99_998 + b"y"), "text or bytes": ("a", b"a"),
    "bytearray": (bytearray(b"ab"), bytearray(b"ac")), "int": (1, 2), "long int": (1 << 200, 1 << 201),
    "int or bool": (1, True), "float": (0.1, 0.2), "sign of zero": (0.0, -0.0),
    "nan": (float("nan"), 0.0), "complex": (1j, 2j), "none or false": (None, False), "text or int": ("1", 1),
    "order of a list": (["a", "b"], ["b", "a"]), "order of a tuple": (("a", 1), (1, "a")), "length": ([0], [0, 0]),
    "empty": ([], None), "set": ({"a", (1, 2)}, {"a", (1, 3)}), "frozenset": (frozenset({1}), frozenset({2})),
    "set of objects": ({_DAY, 1}, {_DAY.date(), 1}), "set or frozenset": ({1}, frozenset({1})),
    "key": ({"a": 1}, {"b": 1}), "counter": (Counter("ab"), Counter("abb")),
    "deque": (deque([1]), deque([2])), "length of a deque": (deque([1], 3), deque([1], 4)), **_OBJECTS,
    "tensor": (torch.ones(2), torch.tensor([1.0, 2.0])), "array": _arrays("f4", 1, 2),
    "array of bytes": _arrays("S2", b"ab", b"ac"), "void": _arrays("V2", b"ab", b"ac"),
    "array of text": _arrays("U2", "a", "bc"), "array of objects": _arrays("O", 1, "b"),
    "array with fields": _arrays(_FIELDS, (1, 2), (1, 3)), "record": tuple(np.array([(1, 2), (1, 3)], _FIELDS)),
    "array of dates": _arrays("M8[D]", "2026-01-01", "2026-01-02"), "array of times": _arrays("m8[s]", 1, 2),
    "unit of dates": (np.array([1], "M8[D]"), np.array([1], "M8[s]")), "longdouble array": _arrays("g", *_LONG),
    "longdouble": _LONG, "number of NumPy": (np.float32(1), np.float32(2)),
    "date of NumPy": (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
}  # fmt: skip
