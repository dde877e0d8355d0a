"""Safetensors: eight bytes with the length of a JSON header, the header, then the arrays back to back."""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from math import prod
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.files.arrays.slices import is_shape
from leafwise.files.arrays.stored import Coded, Placed, Storage, Stored, Strided, unpacked
from leafwise.files.checksums import checksum
from leafwise.files.limits import GROUP, LISTED, LimitError, header_cost, json_cost, names_cost
from leafwise.files.record import KEY, TENSORS, add_ties, is_sealed, is_trusted, read_record
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import ListedFile, StoredFile

MAX_HEADER = 100_000_000  # bytes; other readers have the same limit
_ARRAY = 500  # bytes of memory for an array, including its place in the tree
_STEPS = 20  # steps of work for an array
LONG = 200_000  # bytes; a shorter header is read in less time than it takes to load the C code

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float6_e3m2fn": "F6_E3M2",
    "float6_e2m3fn": "F6_E2M3", "float4_e2m1fn": "F4", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_BY_CODE = {code: DTYPES[name] for name, code in _CODES.items()}
CODES = {name: code for name, code in _CODES.items() if not DTYPES[name].is_packed}  # only dtypes that can be written


def rows_of(arrays: "Iterable[tuple[str, str, tuple[int, ...], int]]") -> dict[str, Any]:
    """The rows of a header, by name, for arrays that are stored one after the other: dtype, shape and offsets.

    >>> rows_of([("a", "float32", (2,), 8), ("b", "uint8", (), 1)])["b"]
    {'dtype': 'U8', 'shape': (), 'data_offsets': (8, 9)}
    """
    rows, at = {}, 0
    for name, dtype, shape, nbytes in arrays:
        rows[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": (at, at + nbytes)}
        at += nbytes
    return rows


def begins(start: bytes, size: int) -> bool:
    """Whether a file that starts like this is safetensors: a length that fits into the file, then JSON."""
    length = int.from_bytes(start[:8], "little")
    fits = 8 + length <= size and length <= MAX_HEADER
    return fits and (start[8:9] == b"{" or is_sealed(start, TENSORS, 8))


def read(source: Source) -> StoredFile:
    """Reads the header and checks it against the size of the file."""
    total = source.size
    if total < 8:
        raise source.error(
            0, f"the file has only {total} bytes, and a safetensors file has at least 8; was the download cut off?"
        )
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise source.error(
            0, f"leafwise does not recognize this file format (as safetensors, its header would have {length:,} bytes)"
        )
    if 8 + length > total:
        raise source.error(
            8, f"the header should have {length:,} bytes, but the file has {total:,}; was the download cut off?"
        )
    lead = bytes(source.read(0, 8 + length))
    limits = source.limits
    if length >= LONG and not is_sealed(lead, TENSORS, 8) and (listed := _listed(source, lead)) is not None:
        return listed
    limits.spend_bytes(json_cost(lead[8:]))  # without the eight bytes of the length, which are not text
    ours = is_trusted(lead, TENSORS, 8, source)
    seal = checksum(lead) if ours else ""
    header = _parse(source, lead[8:])
    del lead
    metadata = header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # MLX writes null if there is none
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise source.error(8, "__metadata__ is not a JSON object of strings")
    limits.spend_bytes((_ARRAY - LISTED) * len(header) + names_cost(header, limits.bytes))
    limits.spend_steps(_STEPS * len(header))
    arrays = _arrays(source, header, 8 + length, total)
    stored = StoredFile(source, "safetensors", arrays, metadata)
    entry = metadata.pop(KEY, "") if isinstance(metadata.get(KEY), str) else ""
    if ours and entry:
        stored.seal = seal
        in_order = dict(sorted(arrays.items(), key=lambda item: item[1].storage.start))  # type: ignore[attr-defined]
        stored.record = read_record(entry, in_order, source)
        add_ties(arrays, stored.record.ties, source)
    return stored


def _listed(source: Source, lead: bytes) -> StoredFile | None:
    """The file, with a header that C code reads, in a tenth of the time. It costs the same as below. None if there is
    no C code, or anything in the header is unusual: then it is read below, or refused."""
    from leafwise.kernels.listing import dotted_names, header_rows

    limits, length = source.limits, len(lead) - 8
    if 4 * length > limits.bytes:
        return None
    rows = header_rows(lead, 8)
    if rows is None or rows.end != source.size:
        return None
    kept = lead[slice(*rows.metadata)] if rows.metadata else b""
    # These words are what `_parse` looks for.
    if any(word in kept for word in (b"\\u", b'"dtype"', b'"data_offsets"')):
        return None
    try:
        metadata = json.loads(kept) if kept else {}
    except (ValueError, RecursionError):
        return None
    usual = [_usual_spec(dtype, int(nbytes), tuple(map(int, sizes))) for dtype, nbytes, *sizes in rows.specs]
    specs = [spec for spec in usual if spec is not None]
    count = len(rows.starts)
    names = dotted_names(rows.names, count, limits.bytes // GROUP)
    if names is None or len(specs) < len(usual) or not all(isinstance(value, str) for value in metadata.values()):
        return None
    limits.spend_bytes(header_cost(length, count, rows.shape_commas, kept))
    limits.spend_bytes(_ARRAY * count + GROUP * names.nodes + 2 * names.prefix_length)
    limits.spend_steps(_STEPS * count)
    arrays = list(map(Placed, repeat(source), map(specs.__getitem__, rows.spec_numbers), rows.starts))
    return ListedFile(source, "safetensors", names, arrays, metadata)


def _usual_spec(dtype: str, nbytes: int, shape: tuple[int, ...]) -> Spec | None:
    known = _BY_CODE.get(dtype)
    if known is None or known.is_packed or not is_shape(shape) or prod(shape) * known.bits != nbytes * 8:
        return None
    return Spec(shape, known.name, "file", prod(shape), nbytes)


def _arrays(source: Source, header: dict[str, Any], data: int, total: int) -> dict[str, Stored]:
    """The arrays, checked. Usually each array begins where the one before it ends, which has a fast path. Models repeat
    a few shapes, so specs are made once for each dtype and shape."""
    arrays: dict[str, Stored] = {}
    specs: dict[tuple[str, tuple[int, ...]], Spec] = {}
    reached = 0
    in_order = True
    for key, row in header.items():
        try:
            start, stop = row["data_offsets"]
            spec = specs[row["dtype"], tuple(row["shape"])]
            if start == reached and stop - start == spec.nbytes and len(row) == 3 and type(stop) is type(start) is int:
                arrays[key] = Strided(spec, Storage(source, data + start, spec.nbytes, shared=False))
                reached = stop
                continue
        except (TypeError, KeyError, ValueError):
            pass
        array = arrays[key] = _array(source, key, row, data)
        in_order &= array.storage.start == data + reached  # type: ignore[attr-defined]
        reached = row["data_offsets"][1]
        if isinstance(array, Strided):
            specs[row["dtype"], tuple(row["shape"])] = array.spec
    if not in_order or data + reached != total:
        _check_layout(source, arrays, data, total)
    return arrays


def _parse(source: Source, raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError("the header is not a JSON object")
        header: dict[str, Any] = parsed
        # A dict drops names that occur twice; then the text has more rows than the dict.
        rows = [row for row in header.values() if isinstance(row, dict)]
        arrays = len(rows) - ("__metadata__" in header)
        if (
            len(rows) != len(header)
            or "\\u" in text
            or any(text.count(f'"{word}"') != arrays for word in ("data_offsets", "dtype"))
        ):
            del header, rows
            source.limits.spend_bytes(json_cost(raw) // 2)  # the hook below also builds lists of pairs
            header = json.loads(text, object_pairs_hook=without_duplicates)
        return header
    except UnicodeDecodeError as error:
        raise source.error(8 + error.start, "the header is not UTF-8 text; this is not a safetensors file") from error
    except json.JSONDecodeError as error:
        raise source.error(8 + error.pos, f"the header is not JSON ({error.msg})") from error
    except LimitError:
        raise
    except (ValueError, RecursionError) as error:
        raise source.error(8, str(error) or "the header is nested too deeply") from error


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {twice!a} occurs twice")
    return mapping


def _array(source: Source, key: str, row: Any, data: int) -> Stored:
    try:
        dtype, shape, (start, stop) = row["dtype"], row["shape"], row["data_offsets"]
        sound = isinstance(dtype, str) and is_shape(shape)
        sound = sound and all(type(offset) is int and 0 <= offset < 1 << 63 for offset in (start, stop))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise source.error(8, f"{key!a} needs dtype, shape and two data_offsets, not {ascii(row)[:200]}")
    if dtype not in _BY_CODE:
        raise source.error(8, f"{key!a} has the unknown dtype {ascii(dtype)[:80]}")
    known = _BY_CODE[dtype]
    plain, bits = known.name, known.bits
    size = prod(shape)
    if stop < start or (stop - start) * 8 != size * bits:
        raise source.error(
            data + start,
            f"{key!a} of shape {shape} in {plain} needs {size * bits // 8:,} bytes but has {stop - start:,}",
        )
    spec = Spec(tuple(shape), plain, "file", size, stop - start)
    storage = Storage(source, data + start, stop - start, shared=False)
    return Strided(spec, storage) if not known.is_packed else Coded(spec, storage, unpacked(bits, plain))


def _check_layout(source: Source, arrays: dict[str, Any], data: int, total: int) -> None:
    """Raises unless the arrays fill the rest of the file without gaps or overlaps."""
    reached = data
    places = sorted((array.storage.start, array.storage.nbytes, key) for key, array in arrays.items())
    for start, length, key in places:
        if start < reached:
            raise source.error(start, f"{key!a} overlaps the array before it")
        if start > reached:
            raise source.error(reached, f"there is a gap before {key!a}, which begins at byte {start:,}")
        reached = start + length
    if reached > total:
        raise source.error(
            total, f"the arrays should end at byte {reached:,}, and the file has {total:,}; was it cut off?"
        )
    if reached < total:
        raise source.error(reached, f"{total - reached:,} bytes follow the last array, where the file should end")
