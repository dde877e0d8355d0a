"""Pickles that may cost much memory or time: programs of blocks that refer to one another.

A block makes a value again and again, from values of earlier blocks: a thousand objects that share one large state, or
a chain in which each call gets the result of the call before. A few numbers describe a block, so that a search can
change them; see `tools/fuzz_costly.py`.
"""

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from typing import NamedTuple

from leafwise.files.pickles.numpy_objects import JOBLIB_TABLE
from leafwise.files.pickles.torch_objects import TABLE

MOST_BYTES = 1_000_000
STORED_BYTES = 10_000  # of the storage that tensors refer to
VIEWED_BYTES = 300_000  # of the storage that overlapping tensors refer to
_CALLED = [*TABLE, *JOBLIB_TABLE]
_DTENSOR = "torch.distributed.tensor"


class Block(NamedTuple):
    """Values made again and again, and put together. `first` and `second` are how many blocks back those are whose
    values it uses. If it is chained, each value is made from the one before instead of the first."""

    maker: str
    count: int = 1
    size: int = 1
    first: int = 1
    second: int = 2
    chained: bool = False
    how: str = "list"

    def __str__(self) -> str:
        parts = [f"{self.count:,} × {self.maker}({self.size:,}; {self.first}, {self.second})"]
        return " ".join([*parts, *(["chained"] if self.chained else []), f"→ {self.how}"])


class Program(NamedTuple):
    blocks: tuple[Block, ...]
    wrapper: str = "zip"

    def __str__(self) -> str:
        return f"{self.wrapper}: {', '.join(map(str, self.blocks))}"

    def json(self) -> str:
        return json.dumps([self.wrapper, *map(list, self.blocks)])


def parsed(text: str) -> Program:
    wrapper, *blocks = json.loads(text)
    return Program(tuple(Block(*block) for block in blocks), wrapper)


# -- writing pickles -----------------------------------------------------------------------------------------


class TooLongError(Exception):
    """A program would have more bytes than it may."""


class Writer:
    """Writes a pickle. What several values share is written once, and put into the memo."""

    def __init__(self, most: int) -> None:
        self.parts = [b"\x80\x04"]
        self.left = most
        self._shared: dict[bytes, bytes] = {}
        self._memo = 0

    def write(self, code: bytes) -> None:
        self.left -= len(code)
        if self.left < 0:
            raise TooLongError
        self.parts.append(code)

    def kept(self, code: bytes) -> bytes:
        """Writes a value into the memo. Returns how to refer to it."""
        number, self._memo = self._memo, self._memo + 1
        self.write(code + _put(number) + b"0")
        return _get(number)

    def shared(self, code: bytes) -> bytes:
        if code not in self._shared:
            self._shared[code] = self.kept(code)
        return self._shared[code]

    def name(self, module: str, attribute: str) -> bytes:
        return self.shared(f"c{module}\n{attribute}\n".encode())

    def next_number(self) -> int:
        self._memo += 1
        return self._memo - 1


def _put(number: int) -> bytes:
    return b"q%c" % number if number < 256 else b"r" + struct.pack("<I", number)


def _get(number: int) -> bytes:
    return b"h%c" % number if number < 256 else b"j" + struct.pack("<I", number)


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    if value >= 1 << 31:
        raise TooLongError
    return b"K%c" % value if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def _tuple(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def _dict(**pairs: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in pairs.items()) + b"u"


# -- makers ----------------------------------------------------------------------------------------------------

# Each makes one value from a size, and from the values of two other blocks.
Maker = Callable[[Writer, int, bytes, bytes], bytes]


def _times(code: bytes, times: int) -> bytes:
    if len(code) * times > 2 * MOST_BYTES:
        raise TooLongError
    return code * times


def _numbers(first: bytes, last: bytes, times: int) -> bytes:
    if times > MOST_BYTES // 5:
        raise TooLongError
    return b"".join(first + number(256 + one) + last for one in range(times))


def _object(w: Writer, name: str = "C") -> bytes:
    return w.name("x", name) + b")\x81"


def _named_object(w: Writer, module: str, name: str, **state: bytes) -> bytes:
    return w.name(module, name) + b")\x81" + _dict(**state) + b"b"


def _keys(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A dict whose keys are objects."""
    return b"}(" + _times(w.name("x", "Key") + a + b"\x85RN", n) + b"u"


def _tuple_keys(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    return b"}(" + _tuple(_times(a, min(n, 60)), number(n % 256)) + b + b"u"


def _storage(w: Writer) -> bytes:
    reference = _tuple(text("storage"), w.name("torch", "ByteStorage"), text("0"), text("cpu"), number(STORED_BYTES))
    return w.shared(reference + b"Q")


def _tensor(w: Writer, offset: int = 0, shape: bytes = b"", strides: bytes = b"") -> bytes:
    one = w.shared(b"K\x01\x85")
    parts = _storage(w) + number(offset), (shape or one) + (strides or one) + b"\x89", w.shared(b"}")
    return w.name("torch._utils", "_rebuild_tensor_v2") + _tuple(*parts) + b"R"


def _views(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A list of tensors that overlap: each is almost all of the same storage."""
    n = min(n, 50_000)
    reference = _tuple(text("storage"), w.name("torch", "ByteStorage"), text("1"), text("cpu"), number(VIEWED_BYTES))
    shared = w.shared(reference + b"Q"), w.shared(b"K\x01\x85") + b"\x89", w.shared(b"}")
    shape, name = w.shared(number(VIEWED_BYTES - n) + b"\x85"), w.name("torch._utils", "_rebuild_tensor_v2")
    made = (name + _tuple(shared[0], number(one), shape, *shared[1:]) + b"R" for one in range(n))
    return b"](" + b"".join(made) + b"e"


def _dtype(w: Writer, code: str) -> bytes:
    state = _tuple(b"K\x03", text("|"), b"NNN", number(-1), number(-1), b"K?" if code == "O8" else b"K\0")
    return w.shared(w.name("numpy", "dtype") + _tuple(text(code), b"\x89\x88") + b"R" + state + b"b")


def _numpy(w: Writer, n: int, a: bytes, b: bytes, code: str = "u1") -> bytes:
    state = _tuple(b"K\x01", w.shared(_tuple(number(n))), _dtype(w, code), b"\x89", a)
    return w.name("numpy.core.multiarray", "_reconstruct") + b")R" + state + b"b"


def _scalar(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    return w.name("numpy.core.multiarray", "scalar") + _tuple(_dtype(w, "S" + str(n % 1000)), a) + b"R"


def _numpy_dtype(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    state = _tuple(b"K\x03", text("<"), a, b, b"N", number(-1), number(-1), b"K\0")
    return w.name("numpy", "dtype") + _tuple(text(f"V{n % 1000}"), b"\x89\x88") + b"R" + state + b"b"


def _dtensor(w: Writer, local: bytes, shape: bytes, placements: bytes, mesh: bytes, order: bytes = b"N") -> bytes:
    spec = _named_object(w, f"{_DTENSOR}._spec", "DTensorSpec", mesh=mesh, placements=placements, shard_order=order)
    state = _dict(_local_tensor=local, _spec=w.shared(spec))
    args = w.name(_DTENSOR, "DTensor"), w.name("torch", "uint8"), shape, b"NNNN\x89N"
    made = w.name("torch._utils", "_rebuild_wrapper_subclass"), w.name(_DTENSOR, "DTensor"), _tuple(*args)
    return w.name("torch._tensor", "_rebuild_from_type_v2") + _tuple(*made, w.shared(state)) + b"R"


def _mesh(w: Writer, axes: int) -> bytes:
    shape = b"(" + b"K\x02" * axes + b"t"
    of_axes = w.name("torch._utils", "_rebuild_meta_tensor_no_storage") + _tuple(
        w.name("torch", "int64"), shape, shape, b"\x89"
    )
    coordinate = b"](" + b"K\0" * axes + b"e"
    return _named_object(w, "torch.distributed.device_mesh", "DeviceMesh", mesh=of_axes + b"R",
                         _coordinate_on_dim=coordinate)  # fmt: skip


def _strided_shards(w: Writer, n: int, a: bytes, b: bytes, axes: int = 1) -> bytes:
    """A tensor of which a process has every second element, many times."""
    factor = min(max(n, 1), 10_000)
    place = f"{_DTENSOR}.placement_types"
    shard = w.shared(_named_object(w, place, "_StridedShard", dim=b"K\0", split_factor=number(factor)))
    local = w.shared(_tensor(w, 0, _tuple(number(min(factor, STORED_BYTES))), b"K\x01\x85"))
    placements = b"(" + shard * axes + b"t"
    return _dtensor(w, local, _tuple(number(factor * 2**axes)), placements, _mesh(w, axes))


def _placed(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    local = w.shared(_tensor(w))
    return _dtensor(w, local, w.shared(b"K\x01\x85"), a, _mesh(w, 1), b)


def _layout(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    layout = w.shared(_named_object(w, "torch.distributed._mesh_layout", "_MeshLayout", shape=a))
    mesh = _named_object(w, "torch.distributed.device_mesh", "DeviceMesh", _layout=layout, _coordinate_on_dim=b"](K\0e")
    return _dtensor(w, w.shared(_tensor(w)), w.shared(b"K\x01\x85"), w.shared(b"NNN\x87"), mesh)


def _sharded(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A ShardedTensor with many shards, each of one element."""
    place = "torch.distributed._shard.sharding_spec"
    made = []
    for one in range(min(n, 20_000)):
        metadata = _named_object(
            w, place, "ShardMetadata",
            shard_offsets=b"](" + number(2 * one) + b"e", shard_sizes=w.shared(b"](K\x01e"),
        )  # fmt: skip
        made.append(_named_object(w, place, "Shard", tensor=w.shared(_tensor(w)), metadata=metadata))
    if sum(map(len, made)) > MOST_BYTES:
        raise TooLongError
    shards = w.shared(b"](" + b"".join(made) + b"e\x85")
    name = w.name("torch.distributed._shard.sharded_tensor", "ShardedTensor")
    args = w.shared(_tuple(name, w.name("torch", "uint8"), _tuple(number(1 << 20)), b"NNNN\x89N"))
    made_by = w.name("torch._utils", "_rebuild_wrapper_subclass")
    return w.name("torch._tensor", "_rebuild_from_type_v2") + _tuple(made_by, name, args, shards) + b"R"


def _embedded(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A storage that was pickled without torch.save, with a pickle inside that takes many steps."""
    n = min(n, 100_000)
    storage = _tuple(text("storage"), b"ctorch\nByteStorage\n", text("0"), text("cpu"), b"K\x04N") + b"Q"
    start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    system = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, protocol=2)
    tail = pickle.dumps(["0"], protocol=2) + struct.pack("<q", 4) + bytes(4)
    data = start + system + b"\x80\x02" + b"N0" * n + storage + b"." + tail
    return w.name("torch.storage", "_load_from_bytes") + w.shared(b"B" + struct.pack("<I", len(data)) + data) + b"\x85R"


def _paths(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A dict with file paths as keys, to which the same texts are added one by one."""
    names = [text(f"p{one}") for one in range(min(n, 50_000))]
    if len(names) * 12 > MOST_BYTES:
        raise TooLongError
    path = w.name("pathlib", "PosixPath")
    kept = b"".join(path + name + b"\x85RN" for name in names)
    return b"}(" + kept + b"u" + b"".join(name + b"Ns" for name in names)


def _persistent(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    storage = text("storage"), w.name("torch", "ByteStorage"), text("0"), text("cpu"), number(STORED_BYTES)
    return w.shared(_tuple(*storage)) + b"Q"


def _called(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """A call of any function in the table."""
    kinds = [a + b"\x85", a + b + b"\x86", a + b + a + b"\x87", b"(" + a + b + a + a + b + b"t"]
    return w.name(*_CALLED[n % len(_CALLED)]) + kinds[n // len(_CALLED) % len(kinds)] + b"R"


def _joblib(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    state = _dict(shape=a, dtype=_dtype(w, "u1"), order=text("C"))
    return w.name("joblib.numpy_pickle", "NumpyArrayWrapper") + b")R" + w.shared(state) + b"b"


def _doubled(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    return a + b"2\x86" * min(n, 60)


def _parted(w: Writer, n: int, a: bytes, b: bytes) -> bytes:
    """Tuples in tuples, each of which refers to the next several times."""
    inner = a
    for _ in range(12):
        inner = w.kept(b"(" + inner * min(n, 12) + b"t")
    return inner


MAKERS: dict[str, Maker] = {
    "text": lambda w, n, a, b: text("a" * n),
    "dotted text": lambda w, n, a, b: text("a." * n),
    "control characters": lambda w, n, a, b: text("\1" * n),
    "wide text": lambda w, n, a, b: text("\U0001f600" * n),
    "bytes": lambda w, n, a, b: b"B" + struct.pack("<I", n) + bytes(n),
    "bytearray": lambda w, n, a, b: b"\x96" + struct.pack("<Q", n) + bytes(n),
    "number": lambda w, n, a, b: b"\x8b" + struct.pack("<i", min(n, 1024)) + b"\x7f" * min(n, 1024),
    "float": lambda w, n, a, b: b"G" + struct.pack(">d", n / 3),
    "numbers": lambda w, n, a, b: b"](" + _numbers(b"", b"", n) + b"e",
    "set": lambda w, n, a, b: b"\x8f(" + _numbers(b"", b"", n) + b"\x90",
    "frozenset": lambda w, n, a, b: b"(" + _numbers(b"", b"", n) + b"\x91",
    "list": lambda w, n, a, b: b"](" + _times(a, n) + b"e",
    "tuple": lambda w, n, a, b: b"(" + _times(a, n) + b"t",
    "dict": lambda w, n, a, b: b"}(" + _numbers(b"", a, n) + b"u",
    "dict of names": lambda w, n, a, b: b"}(" + b"".join(text(f"k{one}") + a for one in range(min(n, 150_000))) + b"u",
    "pair": lambda w, n, a, b: a + b + b"\x86",
    "shape": lambda w, n, a, b: b"(" + b"K\1" * min(n, 64) + b"t",
    "nothing": lambda w, n, a, b: b"N",
    "key": lambda w, n, a, b: b"}" + a + b + b"s",
    "value": lambda w, n, a, b: b"}" + b + a + b"s",
    "object keys": _keys,
    "tuple keys": _tuple_keys,
    "set of objects": lambda w, n, a, b: b"\x8f(" + _times(_object(w), n) + a + b"\x90",
    "object": lambda w, n, a, b: _object(w) + a + b"b",
    "object with slots": lambda w, n, a, b: _object(w) + a + b + b"\x86b",
    "object with attributes": lambda w, n, a, b: _object(w) + _dict(one=a, other=b) + b"b",
    "call": lambda w, n, a, b: w.name("x", "f") + a + b + b"\x86R",
    "call of a call": lambda w, n, a, b: a + b + b"\x85R",
    "call with names": lambda w, n, a, b: _object(w)[:-2] + a + b"\x85" + b + b"\x92",
    "getattr": lambda w, n, a, b: w.name("builtins", "getattr") + a + w.shared(text("a" * (n % 1000))) + b"\x86R",
    "items": lambda w, n, a, b: _object(w) + b"(" + _times(a, n) + b"e",
    "entries": lambda w, n, a, b: _object(w) + b"(" + _numbers(b"", a, n) + b"u",
    "added items": lambda w, n, a, b: _object(w) + b"(" + _times(a, n) + b"\x90",
    "deque": lambda w, n, a, b: w.name("collections", "deque") + b")R(" + _times(a, n) + b"e",
    "deque of a list": lambda w, n, a, b: w.name("collections", "deque") + a + b"\x85R",
    "partial": lambda w, n, a, b: w.name("functools", "partial") + a + b"\x85R" + _tuple(a, b, b, b"N") + b"b",
    "namespace": lambda w, n, a, b: w.name("argparse", "Namespace") + b")R" + a + b"b",
    "Counter": lambda w, n, a, b: w.name("collections", "Counter") + a + b"\x85R",
    "OrderedDict": lambda w, n, a, b: w.name("collections", "OrderedDict") + a + b"\x85R" + b + b"b",
    "path": lambda w, n, a, b: w.name("pathlib", "PosixPath") + _tuple(_times(a, min(n, 1000))) + b"R",
    "reconstructor": lambda w, n, a, b: (
        w.name("copyreg", "_reconstructor") + w.name("x", "C") + w.name("builtins", "object") + a + b"\x87R"
    ),
    "new object": lambda w, n, a, b: w.name("copyreg", "__newobj_ex__") + w.name("x", "C") + a + b + b"\x87R",
    "module": lambda w, n, a, b: (
        _object(w, "Module") + b"}(" + w.shared(text("_parameters")) + a + w.shared(text("_modules")) + b
        + w.shared(text("_buffers")) + w.shared(b"}") + b"ub"
    ),
    "module with buffers": lambda w, n, a, b: (
        _object(w, "Module") + b"}(" + w.shared(text("_parameters")) + w.shared(b"}") + w.shared(text("_modules"))
        + w.shared(b"}") + w.shared(text("_buffers")) + a + w.shared(text("other")) + b + b"ub"
    ),
    "tensor": lambda w, n, a, b: _tensor(w, n % STORED_BYTES),
    "overlapping tensors": _views,
    "tensor of a shape": lambda w, n, a, b: _tensor(w, 0, a, b),
    "parameter": lambda w, n, a, b: w.name("torch._utils", "_rebuild_parameter") + a + b"\x88" + b + b"\x87R",
    "parameter with state": lambda w, n, a, b: (
        w.name("torch._utils", "_rebuild_parameter_with_state")
        + _tuple(w.shared(_tensor(w)), b"\x88", w.shared(b"}"), a)
        + b"R"
    ),
    "tensor of a type": lambda w, n, a, b: (
        w.name("torch._tensor", "_rebuild_from_type_v2")
        + _tuple(w.name("torch._utils", "_rebuild_parameter"), w.name("x", "T"), w.shared(_tensor(w) + b"\x88N\x87"), a)
        + b"R"
    ),
    "wrapper": lambda w, n, a, b: (
        w.name("torch._tensor", "_rebuild_from_type_v2")
        + _tuple(w.name("torch._utils", "_rebuild_wrapper_subclass"), w.name("x", "T"), w.shared(_tuple(a)), b)
        + b"R"
    ),
    "quantized": lambda w, n, a, b: (
        w.name("torch._utils", "_rebuild_qtensor") + _tuple(_storage(w), b"K\0", a, b, w.name("torch", "qint8")) + b"R"
    ),
    "sparse": lambda w, n, a, b: (
        w.name("torch._utils", "_rebuild_sparse_tensor") + w.shared(text("torch.sparse_coo")) + a + b"\x86R"
    ),
    "nested tensor": lambda w, n, a, b: w.name("torch._utils", "_rebuild_nested_tensor") + _tuple(a, b, a, b) + b"R",
    "meta tensor": lambda w, n, a, b: (
        w.name("torch._utils", "_rebuild_meta_tensor_no_storage")
        + _tuple(w.name("torch", "uint8"), a, b, b"\x89")
        + b"R"
    ),
    "numpy array": _numpy,
    "numpy objects": lambda w, n, a, b: _numpy(w, n, a, b, "O8"),
    "numpy texts": lambda w, n, a, b: _numpy(w, n, a, b, "U9"),
    "numpy buffer": lambda w, n, a, b: (
        w.name("numpy.core.numeric", "_frombuffer")
        + _tuple(a, _dtype(w, "u1"), w.shared(_tuple(number(n))), w.shared(text("C")))
        + b"R"
    ),
    "numpy scalar": _scalar,
    "numpy dtype": _numpy_dtype,
    "strided shards": _strided_shards,
    "shards of shards": lambda w, n, a, b: _strided_shards(w, n, a, b, 2),
    "placed tensor": _placed,
    "mesh layout": _layout,
    "sharded tensor": _sharded,
    "embedded storage": _embedded,
    "paths and texts": _paths,
    "storage": _persistent,
    "table": _called,
    "joblib array": _joblib,
    "doubled": _doubled,
    "tuples of tuples": _parted,
}  # fmt: skip
# What these need as their first value; other values are refused.
NEEDED = {
    "call of a call": ("call", "object"), "call with names": ("dict of names", "tuple keys", "object keys"),
    "namespace": ("dict of names", "tuple keys", "object keys"), "tensor of a shape": ("shape",),
    "parameter": ("tensor",), "quantized": ("shape",), "meta tensor": ("shape",), "numpy array": ("text", "bytes"),
    "module": ("dict of names", "tuple keys"), "module with buffers": ("dict of names", "tuple keys"),
    "object with slots": ("dict of names", "tuple keys"), "parameter with state": ("dict of names", "dict"),
    "sharded tensor": ("list",), "mesh layout": ("shape", "tuples of tuples", "tuple"), "placed tensor": ("list",),
}  # fmt: skip
HOLDERS = ("list", "tuple", "dict", "names", "items", "entries", "state", "keys", "last", "nested")


def _put_together(w: Writer, how: str, values: list[bytes]) -> bytes:
    if how == "last":
        return b"0".join(values)
    if how == "nested":  # each in a dict with the one before
        return (
            b"".join(b"}(" + w.shared(text("k")) + one + w.shared(text("next")) for one in values[:90])
            + b"N"
            + (b"u" * min(len(values), 90))
        )
    joined = b"".join(values)
    if how == "list":
        return b"](" + joined + b"e"
    if how == "tuple":
        return b"(" + joined + b"t"
    if how == "items":
        return _object(w) + b"(" + joined + b"e"
    if how == "keys":
        return b"}(" + b"".join(value + b"N" for value in values) + b"u"
    if how == "names":
        return b"}(" + b"".join(text(f"n{one}") + value for one, value in enumerate(values)) + b"u"
    pairs = b"".join((text(f"n{one}") if how == "state" else number(one)) + value for one, value in enumerate(values))
    if how == "dict":
        return b"}(" + pairs + b"u"
    if how == "entries":
        return _object(w) + b"(" + pairs + b"u"
    return _object(w) + b"}(" + pairs + b"ub"


def pickled(program: Program, most: int = MOST_BYTES) -> bytes:
    """The pickle of a program. Raises `TooLongError` if it has more bytes."""
    w, made = Writer(most), list[bytes]()
    for block in program.blocks:
        first, second = (made[-1 - back % len(made)] if made else b"N" for back in (block.first - 1, block.second - 1))
        if block.chained:
            last, codes, length = first, [], 0
            slot = w.next_number()
            for _ in range(block.count):
                code = MAKERS[block.maker](w, block.size, last, second) + _put(slot)
                last = _get(slot)
                codes.append(code)
                length += len(code)
                if length > most:
                    raise TooLongError
            w.write(b"N" + _put(slot) + b"0")
        else:
            code = MAKERS[block.maker](w, block.size, first, second)
            if len(code) * block.count > most:
                raise TooLongError
            codes = [code] * block.count
        if len(codes) == 1 and block.how == "list":
            made.append(w.kept(codes[0]))
        else:
            made.append(w.kept(_put_together(w, block.how, codes)))
    w.write(b"}(" + b"".join(text(f"value{place}") + get for place, get in enumerate(made)) + b"u.")
    return b"".join(w.parts)


WRAPPERS = ("zip", "zip", "zip", "pickle", "npz")
_NPY_HEADER = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(117) + b"\n"
_NPY = b"\x93NUMPY\x01\0" + struct.pack("<H", len(_NPY_HEADER)) + _NPY_HEADER


def file_of(program: Program, most: int = MOST_BYTES) -> bytes:
    """The file with a program: a torch zip with one storage or two, nothing but the pickle, or the array of objects in
    an `.npz` file, which is compressed."""
    data = pickled(program, 40 * most if program.wrapper == "npz" else most)
    if program.wrapper == "pickle":
        return data
    file = io.BytesIO()
    entries = [("data.pkl", data), ("version", b"3\n"), ("data/0", bytes(STORED_BYTES))]
    if any(block.maker == "overlapping tensors" for block in program.blocks):
        entries.append(("data/1", bytes(VIEWED_BYTES)))
    with zipfile.ZipFile(file, "w") as archive:
        if program.wrapper == "npz":
            archive.writestr(zipfile.ZipInfo("a.npy"), _NPY + data, zipfile.ZIP_DEFLATED)
        else:
            for name, content in entries:
                archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    if file.tell() > most + STORED_BYTES + 1000:
        raise TooLongError
    return file.getvalue()


# -- search --------------------------------------------------------------------------------------------------


def random_program(rng: random.Random, most: int) -> Program:
    while True:
        blocks = [one for _ in range(rng.choice([1, 2, 2, 3])) for one in _random_blocks(rng, most)]
        program = Program(tuple(blocks), rng.choice(WRAPPERS))
        if fits(program, most):
            return program


def _random_blocks(rng: random.Random, most: int) -> list[Block]:
    """A block, usually after one that makes what it needs."""
    block = _random_block(rng, most)
    needed = NEEDED.get(block.maker, ())
    if not needed or rng.random() < 0.1:
        return [block]
    before = Block(rng.choice(needed), 1, block.size)
    return [before, block._replace(first=1, second=rng.choice([1, 1, 2]))]


def _random_block(rng: random.Random, most: int) -> Block:
    return Block(
        rng.choice(list(MAKERS)), _amount(rng, most), _amount(rng, most), rng.choice([1, 1, 1, 2, 3]),
        rng.choice([1, 2, 2, 3]), rng.random() < 0.15, rng.choice(HOLDERS),
    )  # fmt: skip


def _amount(rng: random.Random, most: int) -> int:
    return 1 if rng.random() < 0.3 else int((most / 2) ** rng.random())


def fits(program: Program, most: int) -> bool:
    try:
        file_of(program, most)
    except TooLongError:
        return False
    return True


def changed(program: Program, rng: random.Random, most: int) -> Program:
    """A similar program that is not longer than it may be."""
    for _ in range(50):
        other = rng.choice(_CHANGES)(program, rng, most)
        if rng.random() < 0.3 and other.blocks:
            other = rng.choice(_CHANGES)(other, rng, most)
        if other != program and other.blocks and len(other.blocks) < 7 and fits(other, most):
            return other
    return random_program(rng, most)


def _change_block(program: Program, rng: random.Random, most: int) -> Program:
    blocks = list(program.blocks)
    place = rng.randrange(len(blocks))
    block = blocks[place]
    factor = rng.choice([0.1, 0.5, 2, 2, 4, 10])
    blocks[place] = rng.choice(
        [
            block._replace(count=max(1, int(block.count * factor))),
            block._replace(size=max(1, int(block.size * factor))),
            block._replace(size=block.size + rng.choice([-1, 1, 1, 64])),
            block._replace(maker=rng.choice(list(MAKERS))),
            block._replace(first=rng.choice([1, 2, 3]), second=rng.choice([1, 2, 3])),
            block._replace(chained=not block.chained),
            block._replace(how=rng.choice(HOLDERS)),
            # Less of each, more of them, and the other way around.
            block._replace(size=max(1, block.size // 2), count=2 * block.count),
            block._replace(size=2 * block.size, count=max(1, block.count // 2)),
        ]
    )
    return program._replace(blocks=tuple(blocks))


def _add_block(program: Program, rng: random.Random, most: int) -> Program:
    blocks = list(program.blocks)
    block = rng.choice([*blocks, _random_block(rng, most), _random_block(rng, most)])
    blocks.insert(rng.randrange(len(blocks) + 1), block)
    return program._replace(blocks=tuple(blocks))


def _remove_block(program: Program, rng: random.Random, most: int) -> Program:
    place = rng.randrange(len(program.blocks))
    return program._replace(blocks=program.blocks[:place] + program.blocks[place + 1 :])


def _swap_blocks(program: Program, rng: random.Random, most: int) -> Program:
    blocks = list(program.blocks)
    rng.shuffle(blocks)
    return program._replace(blocks=tuple(blocks))


def _other_wrapper(program: Program, rng: random.Random, most: int) -> Program:
    return program._replace(wrapper=rng.choice(WRAPPERS))


_CHANGES: list[Callable[[Program, random.Random, int], Program]] = [
    *[_change_block] * 8, _add_block, _add_block, _remove_block, _swap_blocks, _other_wrapper,
]  # fmt: skip


def grown(program: Program, most: int) -> Program:
    """The program with larger amounts, so that it is almost as long as it may be."""
    factor = 1.0
    while factor < 1e6:
        larger = program._replace(
            blocks=tuple(
                block._replace(
                    count=int(block.count * factor * 2) if block.count > 1 else 1,
                    size=int(block.size * factor * 2) if block.size > 1 else 1,
                )
                for block in program.blocks
            )
        )
        if not fits(larger, most):
            break
        factor *= 2
    return program if factor == 1 else program._replace(
        blocks=tuple(
            block._replace(
                count=int(block.count * factor) if block.count > 1 else 1,
                size=int(block.size * factor) if block.size > 1 else 1,
            )
            for block in program.blocks
        )
    )  # fmt: skip


def _blocks(*blocks: Block) -> tuple[Block, ...]:
    return blocks


_COSTLY = {
    "a chain of getattr": _blocks(Block("object"), Block("getattr", 12_000, 200, chained=True)),
    "a chain of getattr of a class": _blocks(Block("getattr", 12_000, 200, chained=True, how="tuple")),
    "merged slot states": _blocks(Block("dict of names", 1, 5_000), Block("object with slots", 20_000, 1, 1, 1)),
    "merged slot states with arrays": _blocks(
        Block("tensor"), Block("dict of names", 1, 5_000), Block("object with slots", 20_000, 1, 1, 1)
    ),
    "entries of many objects": _blocks(Block("dict of names", 1, 5_000), Block("reconstructor", 20_000)),
    "parameters of many modules": _blocks(
        Block("tensor"), Block("dict of names", 1, 5_000), Block("dict", 1, 0), Block("module", 5_000, 1, 2, 1)
    ),
    "keys that are objects": _blocks(Block("numbers", 1, 20_000), Block("object keys", 1, 20_000)),
    "keys that are objects, with a long text": _blocks(
        Block("control characters", 1, 90_000), Block("object keys", 1, 20_000)
    ),
    "states of parameters": _blocks(
        Block("tensor"), Block("dict of names", 1, 5_000), Block("parameter with state", 10_000)
    ),
    "arrays of one text": _blocks(Block("text", 1, 100_000), Block("numpy array", 15_000, 100_000)),
    "objects in many arrays": _blocks(Block("tensor"), Block("list", 1, 3_000), Block("numpy objects", 5_000, 3_000)),
    "long numbers": _blocks(Block("number", 1, 1024), Block("list", 1, 400_000), Block("object")),
    "texts with control characters": _blocks(
        Block("control characters", 1, 90_000), Block("list", 1, 4_000), Block("object")
    ),
    "texts in many lists": _blocks(Block("text", 1, 90_000), Block("items", 60, 4_000)),
    "namespaces with long keys": _blocks(
        Block("text", 1, 90_000), Block("tuple keys", 1, 60), Block("namespace", 5_000)
    ),
    "long keys": _blocks(
        Block("text", 1, 90_000), Block("nothing"), Block("key", 1, 1, 2, 1), Block("list", 1, 40_000)
    ),
    "long keys of bytes": _blocks(
        Block("bytes", 1, 90_000), Block("nothing"), Block("key", 1, 1, 2, 1), Block("list", 1, 40_000)
    ),
    "long keys in each other": _blocks(
        Block("text", 1, 5_000), Block("value", 90, 1, 1, 1, True, "last"), Block("list", 1, 500)
    ),
    "long keys of arrays": _blocks(
        Block("text", 1, 5_000), Block("tensor"), Block("value", 90, 1, 1, 2, True, "last"), Block("list", 1, 50)
    ),
    "shards of many tensors": _blocks(Block("strided shards", 5_000, 10_000)),
    "shards of shards": _blocks(Block("shards of shards", 1, 10_000)),
    "layouts of meshes": _blocks(Block("tuples of tuples", 1, 8), Block("mesh layout")),
    "placements of many tensors": _blocks(Block("list", 1, 20_000), Block("placed tensor", 20_000)),
    "sharded tensors": _blocks(Block("sharded tensor", 5_000, 5_000)),
    "embedded storages": _blocks(Block("embedded storage", 10_000, 30_000)),
    "storages": _blocks(Block("storage", 250_000), Block("object")),
    "tensors that overlap": _blocks(Block("overlapping tensors", 1, 20_000)),
    "arguments after getattr": _blocks(
        Block("numbers", 1, 10_000), Block("getattr", 1, 5), Block("call", 20_000, 1, 2, 2)
    ),
    "paths and texts": _blocks(Block("paths and texts", 1, 6_000)),
    "long paths": _blocks(
        Block("tensor"),
        Block("list", 1, 20_000),
        Block("object with attributes", 450, 1, 1, 2, True, "last"),
    ),
    "keys in keys": _blocks(
        Block("value", 184, 1, 1, 2, False, "names"), Block("dict of names", 1_854, 2, 1, 2, True, "keys")
    ),
    "keys that are lists": _blocks(
        Block("deque of a list", 435, 4, 3, 3, False, "list"), Block("deque of a list", 435, 1, 3, 3, False, "keys")
    ),
    "a dict in many objects": _blocks(
        Block("number", 254, 1, 1, 2, False, "names"),
        Block("dict of names", 1, 727),
        Block("call with names", 1, 727, 1, 1),
    ),
    "pairs in an object": _blocks(Block("pair", 300_000, how="items")),
    "nothing, very often": _blocks(Block("nothing", 11_900_000, how="last")),
    "objects, very often": _blocks(Block("object", 900_000)),
    "keys of many objects": _blocks(
        Block("value", 23_552, 1, 1, 2, chained=True, how="keys"), Block("value", 11_776, 1, 1, 2, how="keys"),
        Block("value", 11_776, 1, 1, 2, how="keys"), Block("pair", 11_776, 1, 1, 2, how="keys"),
        Block("value", 11_776, 1, 1, 2, how="keys"),
    ),
    "nested tensors": _blocks(Block("nested tensor", 65_536, 32_768, 1, 3, how="entries")),
    "pairs of pairs as keys": _blocks(
        Block("doubled", 3_280, 11_976, 1, 2, chained=True, how="keys"),
        Block("sparse", 1, 112, 3, 1, chained=True, how="keys"), Block("storage", 1_736, 51_864, 2, 3, how="last"),
        Block("doubled", 3_280, 11_976, 1, 2, chained=True, how="keys"),
    ),
    "sharded tensors under many names": _blocks(
        Block("sharded tensor", 222, 1, 1, 1, how="names"), Block("sharded tensor", 222, 1, 1, 1, how="names"),
        Block("deque of a list", 230, 740, 2, 2, how="nested"), Block("list", 1, 2, 1, 2),
    ),
    "tuples as keys of many dicts, in a pickle": _blocks(Block("tuple keys", 12_288, 30_576, 1, 1, how="dict")),
    "few keys that are objects, with a long text": _blocks(
        Block("control characters", 1, 90_000, 1, 2), Block("object keys", 1, 10_000, 1, 2)
    ),
    "objects with a long tuple as state, in a pickle": _blocks(
        Block("bytes", 1, 3_840, 3, 1, how="entries"), Block("call", 17_024, 384, 1, 2, how="tuple"),
        Block("object", 37_888, 1, 1, 1, how="names"),
    ),
    "meshes of tuples": _blocks(
        Block("tuples of tuples", 1, 15_360, 1, 2), Block("mesh layout", 17_408, 1_536, 1, 2, how="dict")
    ),
}  # fmt: skip
_KINDS = {"very often": "npz", "in a pickle": "pickle"}


def _kind(name: str) -> str:
    return next((kind for words, kind in _KINDS.items() if words in name), "zip")


KNOWN = {name: Program(blocks, _kind(name)) for name, blocks in _COSTLY.items()}
