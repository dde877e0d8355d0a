"""Makes damaged files from sound ones. Bytes are changed anywhere; in structures (JSON, zip, pickles) the lengths and
checksums are corrected after a change, so that readers get past those and into the content."""

import io
import itertools
import json
import pickletools
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from tools import fuzz_pickles

from leafwise.files import record

Files = dict[str, bytes]

BOUNDARIES = [
    0, 1, 2, 3, 7, 8, 63, 64, 255, 256, 65_535, 1 << 20, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    1 << 40, (1 << 53) + 1, 1 << 58, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 31), -(1 << 63),
]  # fmt: skip
NAMES = ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0b", "a\x1b[31mb", "\u202ex", "\ud800", "x" * 300, "a.b.c",
         "é", "__metadata__", "0", "a\nb", "<b>", "'", '"', "0.weight", "nul", "x:y", "a\\b"]  # fmt: skip


class Mutant(NamedTuple):
    """The files of a case, and how they were made. `forged`: the checksums match the changed content, so other values
    are not an error. `one_bit`: it differs in one bit, which every checksum must detect."""

    files: Files
    how: str
    forged: bool = False
    one_bit: bool = False
    in_data: bool = False  # this bit belongs to an array


def mutate(name: str, files: Files, others: dict[str, Files], stale: Files, rng: random.Random) -> Mutant:
    """Makes one case: changes a file of a checkpoint in one way or, sometimes, in several."""
    for _ in range(20):
        found = _mutate(name, files, others, stale, rng)
        if found.files != files and found.files not in others.values():
            return found
    # Nothing changed in 20 attempts; flipping a bit always changes something.
    return _flip(files, next(iter(files)), rng)


def _mutate(name: str, files: Files, others: dict[str, Files], stale: Files, rng: random.Random) -> Mutant:
    which = rng.choice([*files, *(name for name in files if name.startswith(".") or name.endswith(".json"))])
    structured = _structured(name, which, files[which])
    choice = rng.random()
    if choice < 0.12:
        return _flip(files, which, rng)
    if stale and choice < 0.17:
        return _swap(files, stale, rng)
    if choice < 0.55 and structured:
        how = rng.choice(structured)
        data, forged = how(files[which], rng)
        label = f"{how.__name__.strip('_')} in {which}"
    else:
        data, label, forged = files[which], "", False
        for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
            change = rng.choice(_CHANGES)
            data = change(data, rng)
            label += f"{change.__name__.strip('_')} "
        if rng.random() < 0.1:
            other = rng.choice(list(others.values()))
            data, label = _splice(data, rng.choice(list(other.values())), rng), label + "splice "
        label += f"in {which}"
    changed = {**files, which: data}
    if len(files) > 1 and rng.random() < 0.05:
        gone = rng.choice(list(files))
        changed.pop(gone)
        label += f", without {gone}"
    return Mutant(changed, label, forged)


# -- bytes -------------------------------------------------------------------------------------------------


def _place(data: bytes, rng: random.Random) -> int:
    """Somewhere in a file; more often near its ends, where headers and directories are."""
    near = rng.random()
    if near < 0.3:
        return rng.randrange(min(len(data), 64) + 1)
    if near < 0.5:
        return rng.randrange(min(len(data), 1024) + 1)
    return len(data) - rng.randrange(min(len(data), 300) + 1) if near < 0.7 else rng.randrange(len(data) + 1)


def _flip(files: Files, which: str, rng: random.Random) -> Mutant:
    data = bytearray(files[which])
    ranges = _array_bytes(files[which])
    if ranges and rng.random() < 0.6:
        start, stop = rng.choice(ranges)
        at = rng.randrange(start, stop)
    else:
        at = min(_place(data, rng), len(data) - 1)
    data[at] ^= 1 << rng.randrange(8)
    in_data = any(start <= at < stop for start, stop in ranges) and not _holds_the_same(bytes(data), files[which])
    return Mutant({**files, which: bytes(data)}, f"bit of byte {at} of {which}", one_bit=True, in_data=in_data)


def _swap(files: Files, stale: Files, rng: random.Random) -> Mutant:
    """Replaces a shard by the same shard of another save, with the same shapes."""
    names = [name for name in files if name in stale and name.endswith(".safetensors")]
    which = rng.choice(names)
    return Mutant({**files, which: stale[which]}, f"{which} of another save")


def _set_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = _place(data, rng)
        changed[at : at + 1] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice([1, 2, 8, 40])) + data[at:]


def _remove(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice([1, 4, 8, 64]) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, length = _place(data, rng), rng.choice([1, 8, 32, 200])
    return data[:start] + data[start : start + length] * rng.choice([2, 3, 50]) + data[start + length :]


def _move(data: bytes, rng: random.Random) -> bytes:
    start, to, length = _place(data, rng), _place(data, rng), rng.choice([4, 16, 64])
    changed = bytearray(data)
    changed[to : to + length] = data[start : start + length]
    return bytes(changed)


def _set_number(data: bytes, rng: random.Random) -> bytes:
    """Sets a field to a boundary value, or changes it a little."""
    width = rng.choice([1, 2, 4, 4, 8, 8])
    at = _place(data, rng)
    if rng.random() < 0.7:
        at -= at % width
    if at + width > len(data):
        return data + b"\0"
    old = int.from_bytes(data[at : at + width], "little")
    new = rng.choice([rng.choice(BOUNDARIES), old + rng.choice([-8, -1, 1, 8]), len(data), old * 2])
    return data[:at] + (new % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]


def _splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return data[: max(1, _place(data, rng))] + other[_place(other, rng) :]


_CHANGES = [_set_bytes, _set_bytes, _cut, _insert, _remove, _repeat, _move, _set_number, _set_number, _set_number]


# -- structures --------------------------------------------------------------------------------------------

Structured = Callable[[bytes, random.Random], tuple[bytes, bool]]


def _structured(name: str, which: str, data: bytes) -> list[Structured]:
    """The changes that somebody who knows the format could make to a file."""
    if which.endswith(".json"):
        return [_json_index]
    if which == ".metadata":
        return [_distributed_program, _opcodes, _opcodes]
    if which.endswith(".safetensors"):
        return [_json_header, _json_header, _resealed] if name.startswith("leafwise") else [_json_header]
    if data[:2] == b"PK":
        has_pickle = any(entry.endswith("/data.pkl") for entry in _unzipped(data))
        inside = _torch_program if has_pickle else _zip_entry
        return [_zip_fields, _zip_entry, inside, inside]
    if data[:6] == b"\x93NUMPY":
        return [_header]
    if data[:3] == b"\x80\x02\x8a":
        return [_legacy_program, _opcodes]
    return [_bare_program, _opcodes] if data[:1] == b"\x80" else []


def _json_header(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    length = int.from_bytes(data[:8], "little")
    text = _json_text(json.loads(data[8 : 8 + length]), rng)
    return len(text).to_bytes(8, "little") + text + data[8 + length :], True


def _json_index(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    return _json_text(json.loads(data), rng), True


def _json_text(value: Any, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 2, 5])):
        value = _json_changed(value, rng)
    text = _deepened(json.dumps(value, ensure_ascii=rng.random() < 0.5), rng).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:  # a name that occurs twice
        text = re.sub(rb'("[^"]+"): ([^,{}]+),', rb"\1: \2, \1: \2,", text, count=rng.choice([1, 3]))
    if rng.random() < 0.05:
        text = text.replace(b"1", rng.choice([b"1e400", b"NaN", b"-0", b"1.0", b"9" * 5000]), 1)
    return text


_DEEP = "nested deep"  # a placeholder for nesting that json.dumps could not write


def _deepened(text: str, rng: random.Random) -> str:
    depth = rng.choice([1, 5, 200, 2000, 100_000])
    opens, closes = rng.choice([("[", "]"), ('{"a":', "}")])
    return text.replace(f'"{_DEEP}"', opens * depth + "0" + closes * depth)


def _json_changed(value: Any, rng: random.Random) -> Any:
    """A copy in which some value inside is replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {(rng.choice(NAMES) if one == key else one): inner for one, inner in value.items()}
        if rng.random() < 0.05:
            return {one: inner for one, inner in value.items() if one != key}
        return {**value, key: _json_changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at:] * rng.choice([0, 2, 40])
        return [*value[:at], _json_changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.3 and value.startswith(("{", "[", "leafwise/")):
        return value[: rng.randrange(len(value))]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice([-8, -4, -1, 1, 4, 8])
    words = ["F64", "F32", "F16", "BF16", "F4", "F6_E2M3", "F8_E8M0", "I64", "U8", "BOOL", "C64", "X"]
    others = [None, True, 1.5, [], {}, _DEEP, [0] * 70, "x" * 9]
    return rng.choice([rng.choice(BOUNDARIES), rng.choice(words), rng.choice(NAMES), *others])


def _resealed(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Changes leafwise's entry in a header, as somebody could who recomputes its checksums."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entry = header["__metadata__"].pop(record.KEY)
    said = json.loads(entry.split(" ", 2)[2])
    if rng.random() < 0.7:
        said = _json_changed(said, rng)
    else:
        header = _json_changed(header, rng)
    if not isinstance(header, dict):
        header = {"a": header}
    more = header.pop("__metadata__", {})
    more = more if isinstance(more, dict) else {"a": more}
    rest = _deepened(json.dumps(said), rng)
    tail = _deepened(json.dumps(header), rng)[1:]
    others = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items())
    text = f' {json.dumps(rest)[1:-1]}"{others}}}{", " if header else ""}{tail}'
    return record.sealed(text, record.TENSORS, lead=8, multiple=8) + data[8 + length :], True


def _header(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    return _npy_header(data, rng), True


def _npy_header(data: bytes, rng: random.Random) -> bytes:
    width = 2 if data[6] == 1 else 4
    length = int.from_bytes(data[8 : 8 + width], "little")
    text = data[8 + width : 8 + width + length].decode("latin-1")
    numbers = [match.span() for match in re.finditer(r"\d+", text)]
    if numbers and rng.random() < 0.5:
        start, stop = rng.choice(numbers)
        text = text[:start] + str(rng.choice(BOUNDARIES)) + text[stop:]
    else:
        old, new = rng.choice(
            [("'<f4'", "'>f4'"), ("'<f4'", "'|O'"), ("'<f4'", "[('a','<f4')]"), ("'<f4'", "'<U4'"), ("False", "True"),
             ("'<f4'", "'<f16'"), ("(", "(" * rng.choice([1, 90, 4000])), ("'descr'", "'dscr'"), ("{", "{'x': 1, "),
             ("'<f4'", "'<M8[s]'"), ("'<f4'", "'V4'"), ("}", "} if 1 else 2"), ("4", "4.0"), ("4", "-4"), ("4", "4j"),
             ("'<f4'", "'<i4'"), ("(", "[")]
        )  # fmt: skip
        text = text.replace(old, new)
    raw = text.encode("latin-1")
    if len(raw) >= 1 << 8 * width:
        return data
    return data[:8] + len(raw).to_bytes(width, "little") + raw + data[8 + width + length :]


# -- zip files ---------------------------------------------------------------------------------------------

# Offset and width of the fields in a local header, a directory entry and the end of the directory.
_ZIP_FIELDS = {
    b"PK\3\4": [(4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)],
    b"PK\1\2": [(6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)],
    b"PK\5\6": [(4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)],
    b"PK\6\6": [(4, 8), (24, 8), (32, 8), (40, 8), (48, 8)],
    b"PK\6\7": [(4, 4), (8, 8), (16, 4)],
}


def _zip_fields(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Changes a number in the headers or the directory of a zip file."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2])):
        mark = rng.choice([mark for mark in _ZIP_FIELDS if mark in data])
        starts = [match.start() for match in re.finditer(re.escape(mark), data)]
        offset, width = rng.choice(_ZIP_FIELDS[mark])
        at = rng.choice(starts) + offset
        old = int.from_bytes(data[at : at + width], "little")
        new = rng.choice([rng.choice(BOUNDARIES), old + rng.choice([-1, 1, 64]), 8, 9, 12, 99])
        changed[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(changed), False


def _zip_entry(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Changes the content of a zip entry, and its CRC-32 to match."""
    entries = _unzipped(data)
    which = rng.choice(list(entries))
    content = entries[which]
    if content[:6] == b"\x93NUMPY" and rng.random() < 0.6:
        entries[which] = _npy_header(content, rng)
    elif which.endswith("data.pkl") and rng.random() < 0.7:
        entries[which] = _opcodes(content, rng)[0]
    elif rng.random() < 0.2:
        entries[rng.choice(NAMES) or "x"] = entries.pop(which)
    else:
        entries[which] = rng.choice(_CHANGES)(content, rng) if content else b"x"
    return _zipped(entries, rng), True


def _unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zipped(entries: dict[str, bytes], rng: random.Random) -> bytes:
    file = io.BytesIO()
    how = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name.encode("utf-8", "replace").decode()), content, how)
    return file.getvalue()


def _holds_the_same(data: bytes, other: bytes) -> bool:
    """Whether two zip files have the same content: the last byte of a compressed entry has unused bits."""
    try:
        return _unzipped(data) == _unzipped(other)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return False


def _array_bytes(data: bytes) -> list[tuple[int, int]]:
    """Where the arrays are in a sound zip file: the bytes that their CRC-32 covers, without the header of a `.npy`."""
    if data[:2] != b"PK":
        return []
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            name = info.filename
            if name.endswith(".npy") or re.search(r"(^|/)data/\d+$", name):
                lengths = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
                start = info.header_offset + 30 + sum(lengths)
                head = 128 if name.endswith(".npy") and info.compress_type == zipfile.ZIP_STORED else 0
                if info.compress_size > head:
                    found.append((start + head, start + info.compress_size))
    return found


# -- pickles -----------------------------------------------------------------------------------------------


def _torch_program(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    entries = _unzipped(data)
    which = next(name for name in entries if name.endswith("data.pkl"))
    entries[which] = fuzz_pickles.program(rng)
    for key, size in fuzz_pickles.STORAGES_HELD.items():
        entries[which.removesuffix("data.pkl") + f"data/{key}"] = bytes(range(size))
    return _zipped(entries, rng), True


def _legacy_program(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Replaces the third pickle of the older format, which is the content, and the list of storages after it."""
    return data[: _ends(data)[2]] + fuzz_pickles.legacy_program(rng), True


def _bare_program(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    return fuzz_pickles.program(rng), True


def _distributed_program(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    return fuzz_pickles.distributed(rng), True


def _ends(data: bytes) -> list[int]:
    """The start of each of the pickles at the beginning of a file."""
    at, starts = 0, [0]
    while len(starts) < 5:
        file = io.BytesIO(data[at:])
        for _ in pickletools.genops(file):
            pass
        at += file.tell()
        starts.append(at)
    return starts


def _opcodes(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """A real pickle with some instructions removed, repeated, swapped or given another argument."""
    rest = b""
    if data[:2] == b"\x80\x02" and data[2:3] == b"\x8a":  # the older format: five pickles, then storages
        ends = _ends(data)
        at = rng.choice([1, 2, 2, 2, 2, 3])
        before, data, rest = data[: ends[at]], data[ends[at] : ends[at + 1]], data[ends[at + 1] :]
    else:
        before = b""
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    places.append(len(data))
    parts = [data[start:stop] for start, stop in itertools.pairwise(places)]
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(parts))
        choice = rng.randrange(6)
        if choice == 0:
            parts[at] = b""
        elif choice == 1:
            parts[at] *= rng.choice([2, 2, 100])
        elif choice == 2:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif choice == 3:
            parts.insert(at, fuzz_pickles.value(rng))
        elif choice == 4 and parts[at][:1] in b"KMJ\x8a" and parts[at]:
            parts[at] = fuzz_pickles.number(rng.choice(BOUNDARIES))
        else:
            parts[at] = fuzz_pickles.instruction(rng)
    return before + b"".join(parts) + rest, True
