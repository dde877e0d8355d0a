"""Flax's msgpack files, as `flax.serialization.to_bytes` writes them: maps of names to maps, arrays and plain values.

An array is an extension of msgpack that contains its shape, its dtype and its bytes. The bytes stay in the file, for
which the msgpack package has no way: its reader puts each of them into memory. Arrays of more than a gigabyte are
stored in chunks. All of leafwise that knows of this format is in this module.
"""

import struct
from codecs import getincrementaldecoder
from math import prod
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.roles.recipes import Joined, Reshaped, Taken
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.formats.format import Format
from leafwise.files.sources.source import Cursor, Source
from leafwise.files.stored_file import StoredFile

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # Flax's extensions
_CHUNKED = "__msgpack_chunked_array__"
_MOST_LEVELS = 100  # maps and lists inside each other
_VALUE = 300  # bytes of memory for a value, including its place in the tree
_LEAF = 800  # bytes of memory for an array, including its place in the tree

_LENGTHS = {  # the first byte of what has a length → its kind, and the bytes of the length
    0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4), 0xC7: ("ext", 1), 0xC8: ("ext", 2), 0xC9: ("ext", 4),
    0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4), 0xDC: ("list", 2), 0xDD: ("list", 4), 0xDE: ("map", 2),
    0xDF: ("map", 4),
}  # fmt: skip
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def recognizes(start: bytes, size: int) -> bool:
    """Whether a file begins with a map whose first key is a text that can be printed."""
    at = 1 if 0x81 <= start[0] <= 0x8F else {0xDE: 3, 0xDF: 5}.get(start[0], len(start))
    first = start[at : at + 1]
    if first in (b"\xd9", b"\xda", b"\xdb"):
        key = start[at + 1 + (1 << (first[0] - 0xD9)) :]
    else:
        key = start[at + 1 : at + 1 + (first[0] & 0x1F)] if first and 0xA1 <= first[0] <= 0xBF else b""
    try:
        text = getincrementaldecoder("utf-8")().decode(key)  # the last character may be cut off
    except UnicodeDecodeError:
        return False
    return bool(text) and text.isprintable()


def read(source: Source) -> StoredFile:
    """Opens the file: reads all names and plain values, and skips the bytes of the arrays."""
    cursor = Cursor(source, 0, block=1 << 12)
    content = _value(cursor, 0)
    if cursor.at != source.size:
        raise source.error(cursor.at, f"{source.size - cursor.at:,} bytes follow the end of the content")
    return StoredFile(source, FORMAT.name, content)


def _value(cursor: Cursor, depth: int) -> Any:
    at = cursor.at
    cursor.source.limits.spend_steps(20)
    cursor.source.limits.spend_bytes(_VALUE)
    first = cursor.unsigned(1)
    if first <= 0x7F:
        return first
    if first >= 0xE0:
        return first - 256
    if first in _CONSTANTS:
        return _CONSTANTS[first]
    if first in _NUMBERS:
        (number,) = struct.unpack(_NUMBERS[first], cursor.take(struct.calcsize(_NUMBERS[first])))
        return number
    kind, length = _kind(cursor, first)
    if kind in ("map", "list"):
        if depth == _MOST_LEVELS:
            raise cursor.source.error(at, f"more than {_MOST_LEVELS} maps and lists are inside each other")
        if length > cursor.source.size - cursor.at:
            raise cursor.source.error(at, f"{length:,} values should follow, which do not fit into the file")
        return _map(cursor, length, depth) if kind == "map" else [_value(cursor, depth + 1) for _ in range(length)]
    if kind == "ext":
        return _extension(cursor, at, length)
    cursor.source.limits.spend_bytes(5 * length)
    data = cursor.take(length)
    return data if kind == "bin" else _text(cursor, at, data)


def _kind(cursor: Cursor, first: int) -> tuple[str, int]:
    """Map, list, str, bin or ext, and its length."""
    if first <= 0x8F:
        return "map", first & 0xF
    if first <= 0x9F:
        return "list", first & 0xF
    if first <= 0xBF:
        return "str", first & 0x1F
    if 0xD4 <= first <= 0xD8:
        return "ext", 1 << (first - 0xD4)
    if first not in _LENGTHS:
        raise cursor.source.error(cursor.at - 1, f"a value should begin here, but none begins with {first:#x}")
    kind, width = _LENGTHS[first]
    return kind, int.from_bytes(cursor.take(width), "big")


def _text(cursor: Cursor, at: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise cursor.source.error(at, "a text is not UTF-8") from None


def _map(cursor: Cursor, length: int, depth: int) -> Any:
    start = cursor.at
    values: dict[Any, Any] = {}
    for _ in range(length):
        at = cursor.at
        key = _value(cursor, depth + 1)
        if type(key) not in (str, int):
            raise cursor.source.error(at, f"a key is a {type(key).__name__}, where Flax writes text and whole numbers")
        if key in values:
            raise cursor.source.error(at, f"a map contains the key {key!a} twice")
        values[key] = _value(cursor, depth + 1)
    return _joined(cursor.source, start, values) if _CHUNKED in values else values


def _joined(source: Source, at: int, values: dict[Any, Any]) -> Stored:
    """An array that is stored in chunks."""
    shape, chunks = values.get("shape"), values.get("chunks")
    if not isinstance(shape, dict) or not isinstance(chunks, dict) or not chunks:
        raise source.error(at, "an array in chunks has no shape, or no chunks")
    sizes = counts([shape.get(str(axis)) for axis in range(len(shape))], source, at, "the shape of an array in chunks")
    parts = {str(number): chunks.get(str(number)) for number in range(len(chunks))}
    arrays = {
        name: part for name, part in parts.items() if isinstance(part, Strided) and len(part.spec.shape or ()) == 1
    }
    dtypes = {part.spec.dtype for part in arrays.values()}
    if len(arrays) != len(chunks) or len(dtypes) != 1 or sum(part.spec.size for part in arrays.values()) != prod(sizes):
        raise source.error(at, f"the chunks of an array of shape {sizes} do not make up such an array")
    taken = tuple(Taken(name, part.spec.shape or ()) for name, part in arrays.items())
    return Assembled(Reshaped(Joined(taken, 0, False), sizes), arrays)


def _extension(cursor: Cursor, at: int, length: int) -> Any:
    source, code = cursor.source, cursor.signed(1)
    end = cursor.at + length
    if end > source.size:
        raise source.error(at, f"{length:,} bytes should follow, where the file ends; was it cut off?")
    if code in (_ARRAY, _SCALAR):
        value: Any = _array(cursor, at, end)
    elif code == _COMPLEX:
        pair = _value(cursor, _MOST_LEVELS - 1)
        if not isinstance(pair, list) or [type(part) for part in pair] != [float, float]:
            raise source.error(at, "a complex number does not consist of two numbers")
        value = complex(*pair)
    else:
        raise source.error(at, f"an extension of msgpack that Flax does not have ({code})")
    if cursor.at != end:
        raise source.error(at, f"an extension of {length:,} bytes ends at byte {cursor.at:,}, not {end:,}")
    return value


def _array(cursor: Cursor, at: int, end: int) -> Stored:
    source = cursor.source
    source.limits.spend_bytes(_LEAF)
    if cursor.take(1) != b"\x93":
        raise source.error(at, "an array does not consist of a shape, a dtype and its bytes")
    shape = counts(_value(cursor, _MOST_LEVELS - 1), source, at, "the shape of an array")
    dtype = _value(cursor, _MOST_LEVELS - 1)
    kind, nbytes = _kind(cursor, cursor.unsigned(1))
    if not isinstance(dtype, str) or kind != "bin" or cursor.at + nbytes > end:
        raise source.error(at, "an array does not consist of a shape, a dtype and its bytes")
    storage = Storage(source, cursor.skip(nbytes), nbytes)
    known = DTYPES.get(dtype)
    if known is None or not known.is_stored:
        spec = spec_of(shape, "uint8", nbytes)._replace(dtype=dtype[:40])
        return Unreadable(spec, f"leafwise does not read its dtype, {dtype[:40]!a}", storage)
    if prod(shape) * known.itemsize != nbytes:
        raise source.error(at, f"an array of shape {shape} in {dtype} has {nbytes:,} bytes")
    return Strided(spec_of(shape, dtype), storage)


FORMAT = Format("Flax msgpack", "Flax", read, recognizes=recognizes, suffixes=(".msgpack",), is_general=True)
