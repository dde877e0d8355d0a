"""Random pickles: programs for the stack machine, in which values mostly have the type that is needed."""

import pickle
import random
import struct

from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.dcp.opening import DCP_TABLE
from leafwise.files.pickles.torch_objects import QUANTIZED, STORAGES, TABLE

_FORBIDDEN = [
    ("os", "system"), ("builtins", "eval"), ("builtins", "exec"), ("subprocess", "Popen"), ("builtins", "open"),
    ("torch", "load"), ("builtins", "__import__"), ("builtins", "getattr"), ("webbrowser", "open"),
]  # fmt: skip
_ODD = [
    "",
    "x\x1b[2J",
    "\u202ex",
    "\ud800",
    "a.b",
    "a\nb",
    "\x9b31m",
    "\u2066",
    "0.weight",
    "x" * 5_000,
    "__metadata__",
]
_LARGE = [1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, -1, -(1 << 62), 1 << 200]


STORAGES_HELD = {"0": 96, "1": 24}  # the storages that a program refers to, and how many bytes each has


def legacy_program(rng: random.Random) -> bytes:
    """A pickle as in the older format, followed by a list of its storages and their bytes."""
    made = program(rng).replace(b"tQ", b"NtQ")
    used = [key for key in STORAGES_HELD if text(key) + text("cpu") in made]
    tail = b"\x80\x02](" + b"".join(map(text, used)) + b"e."
    for key in used:
        tail += struct.pack("<q", STORAGES_HELD[key] // 4) + bytes(range(STORAGES_HELD[key]))
    return made + tail


def program(rng: random.Random) -> bytes:
    """A whole pickle like those of torch.save, or a wilder one. It refers to the storages above and to others."""
    start = b"\x80" + bytes([rng.choice([2, 2, 2, 3, 4, 5])])
    choice = rng.random()
    if choice < 0.65:
        keys = [rng.choice(_ODD) if rng.random() < 0.15 else f"k{place}" for place in range(rng.randrange(6))]
        items = b"".join(text(key) + value(rng) for key in keys)
        body = b"}(" + items + b"u"
    elif choice < 0.8:
        body = b"".join(instruction(rng) for _ in range(rng.choice([5, 40, 300])))
    else:
        body = _bomb(rng)
    return start + body + b"."


def value(rng: random.Random, depth: int = 0) -> bytes:
    """Instructions that leave one value on the stack; some also put it into the memo."""
    made = _plain(rng) if depth > 4 or rng.random() < 0.35 else rng.choice(_MAKERS)(rng, depth + 1)
    if rng.random() < 0.3:
        made += b"q" + bytes([rng.randrange(8)])
    return made


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = pickle.encode_long(value)
    return b"\x8a" + bytes([len(raw)]) + raw


def _count(rng: random.Random) -> bytes:
    return number(rng.choice(_LARGE) if rng.random() < 0.05 else rng.randrange(5))


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def _plain(rng: random.Random) -> bytes:
    return rng.choice(
        [
            b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", _count(rng), _count(rng), _count(rng),
            text(rng.choice(["a", "0", "weight", "x\x1b[2J", "\u202e", "\ud800", "a.b", "", "a\nb"])),
            b"G" + struct.pack(">d", rng.choice([0.5, -0.0, float("nan"), float("inf"), 1e308])),
            b"C\x04abcd", b"U\x02ab", b"I01\n", b"I12\n", b"L7L\n", b"F1.5\n", b"F1e999\n", b"S'x'\n", b"Vx\\u0041\n",
            b"\x96" + struct.pack("<Q", 3) + b"abc", b"h" + bytes([rng.randrange(8)]), b"h\x00",
        ]
    )  # fmt: skip


def _items(rng: random.Random, depth: int) -> bytes:
    return b"".join(value(rng, depth) for _ in range(rng.randrange(4)))


def _tuple(rng: random.Random, depth: int) -> bytes:
    return b"(" + _items(rng, depth) + b"t"


def _list(rng: random.Random, depth: int) -> bytes:
    return b"](" + _items(rng, depth) + b"e"


def _dict(rng: random.Random, depth: int) -> bytes:
    pairs = b"".join(_plain(rng) + value(rng, depth) for _ in range(rng.randrange(4)))
    return rng.choice([b"}(" + pairs + b"u", b"(" + pairs + b"d"])


def _set(rng: random.Random, depth: int) -> bytes:
    return rng.choice([b"\x8f(" + _items(rng, depth) + b"\x90", b"(" + _items(rng, depth) + b"\x91"])


def _storage(rng: random.Random) -> bytes:
    kind = rng.choice([*STORAGES, *["FloatStorage"] * 60])
    key = rng.choice([*list(STORAGES_HELD) * 12, "9", "../0"])
    size = {**QUANTIZED, **ITEM_BYTES}[STORAGES[kind]]
    count = number(STORAGES_HELD.get(key, 8) // size) if rng.random() < 0.95 else _count(rng)
    parts = text("storage") + name("torch", kind) + text(key) + text("cpu")
    return b"(" + parts + count + b"tQ"


def _numbers(rng: random.Random, length: int) -> bytes:
    if rng.random() < 0.03:
        return value(rng, 3)
    return b"(" + b"".join(_count(rng) for _ in range(length)) + b"t"


def _tensor(rng: random.Random, depth: int) -> bytes:
    axes = rng.choice([0, 1, 1, 2, 3])
    storage = _storage(rng) if rng.random() < 0.95 else value(rng, depth)
    parts = storage + _count(rng) + _numbers(rng, axes) + _numbers(rng, axes) + rng.choice([b"\x88", b"\x89"])
    parts += name("collections", "OrderedDict") + b")R"
    kind = rng.choice(["_rebuild_tensor_v2"] * 3 + ["_rebuild_tensor_v3", "_rebuild_tensor", "_rebuild_qtensor"])
    if kind.endswith("v3"):
        parts += name("torch", rng.choice(["float32", "uint16", "int8", "complex128", "qint8"]))
    if rng.random() < 0.1:
        parts += b"}(" + text(rng.choice(["conj", "neg"])) + b"\x88u"
    return name("torch._utils", kind) + b"(" + parts + b"tR"


def _of_tensor(rng: random.Random, depth: int) -> bytes:
    """A parameter, a sparse tensor, or another object that contains tensors."""
    inner = _tensor(rng, depth) if rng.random() < 0.8 else value(rng, depth)
    choice = rng.randrange(5)
    if choice == 0:
        return name("torch._utils", "_rebuild_parameter") + b"(" + inner + b"\x88" + value(rng, depth) + b"tR"
    if choice == 1:
        layout = name("torch.serialization", "_get_layout") + text("torch.sparse_coo") + b"\x85R"
        layout = layout if rng.random() < 0.5 else value(rng, depth)
        data = b"(" + inner + _tensor(rng, depth) + name("torch", "Size") + b"(" + _numbers(rng, 2) + b"tR" + b"\x88t"
        return name("torch._utils", "_rebuild_sparse_tensor") + b"(" + layout + data + b"tR"
    if choice == 2:
        parts = name("torch._utils", "_rebuild_parameter") + name("torch", "Tensor") + b"(" + inner + b"\x88Nt"
        parts += value(rng, depth)
        return name("torch._tensor", "_rebuild_from_type_v2") + b"(" + parts + b"tR"
    if choice == 3:
        parts = name("torch", "float32") + _numbers(rng, 2) + _numbers(rng, 2) + b"\x89"
        return name("torch._utils", "_rebuild_meta_tensor_no_storage") + b"(" + parts + b"tR"
    return b"](" + inner + b"h\x00e"


def _numpy(rng: random.Random, depth: int) -> bytes:
    code = rng.choice(["f4", "f4", "i8", "u1", "b1", "O8", "V4", "U2", "M8", "f16", "c8", ""])
    dtype = name("numpy", "dtype") + b"(" + text(code) + b"\x89\x88tR"
    dtype += b"(K\x03" + text(rng.choice(["<", ">", "|", "x"])) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    data = b"C" + bytes([length := rng.choice([0, 4, 8, 16, 1])]) + bytes(length)
    choice = rng.randrange(3)
    if choice == 0:
        return name("numpy._core.multiarray", "scalar") + b"(" + dtype + data + b"tR"
    if choice == 1:
        parts = data + dtype + _numbers(rng, rng.randrange(3)) + text(rng.choice(["C", "F", "x"]))
        return name("numpy._core.numeric", "_frombuffer") + b"(" + parts + b"tR"
    made = name("numpy._core.multiarray", "_reconstruct") + b"(" + name("numpy", "ndarray") + b"K\x00\x85C\x01btR"
    state = b"(K\x01" + _numbers(rng, rng.randrange(3)) + dtype + rng.choice([b"\x88", b"\x89"]) + data + b"tb"
    return made + (state if rng.random() < 0.8 else b"")


def _call(rng: random.Random, depth: int) -> bytes:
    """A call of any allowed or forbidden function, with any arguments."""
    table = rng.choice([list(TABLE), list(TABLE), list(DCP_TABLE), _FORBIDDEN])
    module, attribute = rng.choice(table)
    callee = name(module, attribute)
    args = _tuple(rng, depth) if rng.random() < 0.9 else value(rng, depth)
    how = rng.choice([b"R", b"R", b"R", b"\x81", b"}\x92"])
    state = value(rng, depth) + b"b" if rng.random() < 0.3 else b""
    if rng.random() < 0.1:
        return b"(" + callee + _items(rng, depth) + b"o" + state
    return callee + args + how + state


_MAKERS = [_tuple, _list, _dict, _set, _tensor, _tensor, _of_tensor, _numpy, _call, _call]


def instruction(rng: random.Random) -> bytes:
    """One instruction, which may make no sense where it is inserted."""
    lone = [
        b"(", b"0", b"1", b"2", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"b", b"R", b"\x81", b"\x92", b"\x85",
        b"\x86", b"\x87", b"\x93", b"\x90", b"\x91", b"\x94", b"Q", b"o", b"P1\n", b"ios\nsystem\n", b"\x95" + bytes(8),
        b"\x97", b"\x98", b"\x82\x01", b"r\xff\xff\xff\xff", b"p999999999999999999999\n", b"g0\n", b"j\0\0\0\0",
    ]  # fmt: skip
    choice = rng.random()
    if choice < 0.5:
        return rng.choice(lone)
    return value(rng, 3) if choice < 0.95 else bytes([rng.randrange(256)])


def _bomb(rng: random.Random) -> bytes:
    """A few bytes that expand to many: by repeated references, nesting, or calls that copy."""
    return rng.choice(_BOMBS)(rng, rng.choice([10, 60, 500, 5_000, 50_000]))


def _pairs_of_pairs(rng: random.Random, times: int) -> bytes:
    return value(rng) + b"2\x86" * times


def _list_in_itself(rng: random.Random, times: int) -> bytes:
    return b"]q\x00(" + b"h\x00" * times + b"e"


def _lists_of_one_list(rng: random.Random, times: int) -> bytes:
    return value(rng) + b"q\x01" + b"](h\x01h\x01h\x01h\x01eq\x01" * min(times, 60)


def _keys_of_one_hash(rng: random.Random, times: int) -> bytes:
    """Complex numbers with equal hashes: hash(real) + 1,000,003 · hash(imaginary) is the same for all of them."""
    made = (struct.pack(">d", -1_000_003.0 * one) + b"G" + struct.pack(">d", one) for one in range(times))
    return b"}(" + b"".join(name("builtins", "complex") + b"G" + one + b"\x86RN" for one in made) + b"u"


def _copies(rng: random.Random, times: int) -> bytes:
    numbers = [number(one) for one in range(1000)]
    whole = rng.choice(
        [b"](" + b"".join(numbers) + b"e", b"}(" + b"N".join(numbers) + b"Nu", b"\x8f(" + b"".join(numbers) + b"\x90"]
    )
    kind = name(
        *rng.choice([("builtins", "set"), ("builtins", "list"), ("collections", "Counter"), ("builtins", "bytes")])
    )
    return whole + b"q\x02](" + (kind + b"h\x02\x85R") * min(times, 5000) + b"e"


def _sparse_in_sparse(rng: random.Random, times: int) -> bytes:
    sparse = name("torch._utils", "_rebuild_sparse_tensor")
    return value(rng) + (b"q\x03" + sparse + b"(h\x03h\x03tR") * min(times, 60)


def _expanded(rng: random.Random, times: int) -> bytes:
    """A tensor of one element, expanded to very many."""
    wide = number(1 << rng.choice([10, 15, 17, 20]))
    parts = _storage(rng) + b"K\x00(" + wide + wide + b"t(K\x00K\x00t\x89" + name("collections", "OrderedDict") + b")R"
    return b"}(" + text("wide") + name("torch._utils", "_rebuild_tensor_v2") + b"(" + parts + b"tRu"


def _deep(rng: random.Random, times: int) -> bytes:
    opens, closes = rng.choice([(b"]", b"a"), (b"}K\x01", b"s"), (b"(", b"t")])
    return opens * times + b"N" + closes * times


_BOMBS = [
    _pairs_of_pairs, _list_in_itself, _lists_of_one_list, _keys_of_one_hash, _copies, _sparse_in_sparse, _expanded,
    _expanded, _expanded, _deep,
]  # fmt: skip


# -- the metadata of distributed checkpoints ---------------------------------------------------------------

_META = "torch.distributed.checkpoint.metadata"


def _record(kind: str, rng: random.Random, state: list[tuple[str, bytes]], module: str = _META) -> bytes:
    if rng.random() < 0.03 and state:
        state = [*state]
        state[rng.randrange(len(state))] = (state[0][0], value(rng, 3))
    return name(module, kind) + b")\x81}(" + b"".join(text(key) + made for key, made in state) + b"ub"


def _size(rng: random.Random, sizes: tuple[int, ...]) -> bytes:
    sizes = tuple(rng.choice([*_LARGE, 0, 1, size + 1]) if rng.random() < 0.02 else size for size in sizes)
    return name("torch", "Size") + b"((" + b"".join(map(number, sizes)) + b"ttR"


def distributed(rng: random.Random) -> bytes:
    """A `.metadata` file that lists tensors in pieces: with holes, overlaps, or very many pieces."""
    tensors, places = b"", b""
    for which in range(rng.choice([1, 1, 2, 4])):
        shape = tuple(rng.randrange(5) for _ in range(rng.choice([0, 1, 2, 2, 3])))
        pieces = _cut_up(rng, shape)
        key = text(rng.choice(["0.weight", "0.bias", "1.weight", "count", f"t{which}"]))
        dtype = name("torch", rng.choice(["float32", "float32", "float16", "int64", "uint16"]))
        properties = name(_META, "TensorProperties") + b")\x81(" + dtype + b"NN\x89\x89tb"
        chunks = b"".join(
            _record("ChunkStorageMetadata", rng, [("offsets", _size(rng, at)), ("sizes", _size(rng, size))])
            for at, size in pieces
        )
        facts = [("properties", properties), ("size", _size(rng, shape)), ("chunks", b"](" + chunks + b"e")]
        tensors += key + _record("TensorStorageMetadata", rng, facts)
        for at, _ in pieces:
            index = [("fqn", key), ("offset", rng.choice([_size(rng, at), b"N"])), ("index", b"K\x00")]
            file = text(rng.choice(["__0_0.distcp"] * 8 + ["../x", "", ".metadata"]))
            length = number(rng.choice([1256, 10, *_LARGE]))
            info = [("relative_path", file), ("offset", _count(rng)), ("length", length)]
            places += _record("MetadataIndex", rng, index)
            places += _record("_StorageInfo", rng, info, "torch.distributed.checkpoint.filesystem")
    facts = [("state_dict_metadata", b"}(" + tensors + b"u"), ("storage_data", b"}(" + places + b"u")]
    return b"\x80\x02" + _record("Metadata", rng, facts) + b"."


Box = tuple[tuple[int, ...], tuple[int, ...]]


def _cut_up(rng: random.Random, shape: tuple[int, ...]) -> list[Box]:
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(rng.choice([0, 1, 1, 3])):
        at, size = boxes.pop(rng.randrange(len(boxes)))
        axis = rng.randrange(len(shape)) if shape else None
        if axis is None or size[axis] < 2:
            boxes.append((at, size))
            continue
        first = rng.randrange(1, size[axis])
        middle = (*at[:axis], at[axis] + first, *at[axis + 1 :])
        boxes.append((at, (*size[:axis], first, *size[axis + 1 :])))
        boxes.append((middle, (*size[:axis], size[axis] - first, *size[axis + 1 :])))
    if rng.random() < 0.2:
        boxes.append(rng.choice(boxes))
    if rng.random() < 0.2:
        boxes.pop()
    return boxes
