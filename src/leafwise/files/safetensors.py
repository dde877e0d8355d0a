"""Safetensors: eight bytes with the length of a JSON header, the header, then the arrays back to back."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any, BinaryIO

from leafwise.core.home import Spec
from leafwise.errors import FileError
from leafwise.files.home import StoredArray, StoredFile

MAX_HEADER = 100_000_000  # what other readers refuse too
MAX_AXES = 64  # what arrays have at most, in PyTorch and in NumPy

# The format's name of a dtype → the plain name, and the bits of an element.
DTYPES = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F4": ("float4_e2m1fn", 4),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
    "C64": ("complex64", 64),
}


def read(name: str, file: BinaryIO) -> StoredFile:
    """Reads the header and checks it against the size of the file."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    if total < 8:
        raise _error(
            name, 0, f"the file has {total} bytes, and a safetensors file at least 8; was the download cut off?"
        )
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise _error(name, 0, f"a header of {length:,} bytes cannot be; this is no safetensors file")
    if 8 + length > total:
        raise _error(name, 8, f"the header has {length:,} bytes and the file {total:,}; was the download cut off?")
    header = _parse(name, file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _error(name, 8, "__metadata__ is no object of strings")
    arrays = {key: _array(name, key, row, 8 + length) for key, row in header.items()}
    _check_layout(name, arrays, 8 + length, total)
    return StoredFile(name, "safetensors", arrays, metadata)


def _parse(name: str, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError as error:
        raise _error(name, 8 + error.start, "the header is no UTF-8 text; this is no safetensors file") from error
    except json.JSONDecodeError as error:
        raise _error(name, 8 + error.pos, f"the header is no JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise _error(name, 8, str(error) or "the header is nested too deep") from error
    if not isinstance(header, dict):
        raise _error(name, 8, "the header is no JSON object")
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {twice!a} stands in the header twice")
    return found


def _array(name: str, key: str, row: Any, data: int) -> StoredArray:
    try:
        dtype, shape, (start, stop) = row["dtype"], row["shape"], row["data_offsets"]
        sound = isinstance(dtype, str) and isinstance(shape, list) and _are_counts([start, stop, *shape])
        sound = sound and len(shape) <= MAX_AXES
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise _error(name, 8, f"{key!a} needs dtype, shape and two data_offsets, not {ascii(row)[:200]}")
    if dtype not in DTYPES:
        raise _error(name, 8, f"{key!a} has the unknown dtype {ascii(dtype)[:80]}")
    plain, bits = DTYPES[dtype]
    size = prod(shape)
    if stop < start or (stop - start) * 8 != size * bits:
        raise _error(
            name,
            data + start,
            f"{key!a} of shape {shape} in {plain} needs {size * bits // 8:,} bytes and has {stop - start:,}",
        )
    return StoredArray(Spec(tuple(shape), plain, "file", size, stop - start), data + start, data + stop)


def _are_counts(numbers: Iterable[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _check_layout(name: str, arrays: dict[str, StoredArray], data: int, total: int) -> None:
    """The arrays must fill the rest of the file, each byte once."""
    reached = data
    for key, array in sorted(arrays.items(), key=lambda item: (item[1].start, item[1].stop)):
        if array.start < reached:
            raise _error(name, array.start, f"{key!a} overlaps what comes before it")
        if array.start > reached:
            raise _error(name, reached, f"a hole of {array.start - reached:,} bytes before {key!a}")
        reached = array.stop
    if reached > total:
        raise _error(name, total, f"the arrays need {reached:,} bytes and the file has {total:,}; was it cut off?")
    if reached < total:
        raise _error(name, reached, f"{total - reached:,} bytes follow after the last array")


def _error(name: str, offset: int, cause: str) -> FileError:
    return FileError(f"{name!r} at byte {offset:,}: {cause}")
