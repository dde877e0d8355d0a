"""GGUF files: values about the model, then the list of tensors, many of them quantized in blocks."""

import struct
from bisect import bisect_right
from functools import partial
from math import prod
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.errors import Unsupported
from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import Coded, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.limits import names_cost
from leafwise.files.sources.source import Cursor, Source
from leafwise.files.stored_file import StoredFile

_MAX_COUNT = 50_000_000  # the most elements that an array of values may have
_VALUE = 250  # bytes of memory for a value, including its place in the tree
_ARRAY = 800  # bytes of memory for an array while the header is read
_LONG = 64  # for longer arrays of values, only the length is shown

_PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
# Number of a type → its name, elements per block and bytes per block: the quantized types, and the plain dtypes.
TYPES: dict[int, tuple[str, int, int]] = {
    2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 29: ("iq1_m", 256, 56),
    34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
    **{number: (name, 1, DTYPES[name].itemsize) for number, name in _PLAIN.items()},
}  # fmt: skip

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def read(source: Source) -> StoredFile:
    """Opens the file; reads the values and the list of tensors."""
    cursor = Cursor(source, 4, block=1 << 16)
    version = cursor.unsigned(4)
    if version not in (2, 3):
        raise source.error(4, f"GGUF version {version} is not supported (2 and 3 are); is the file big-endian?")
    tensors, values = cursor.unsigned(8), cursor.unsigned(8)
    # Each tensor takes at least 24 bytes of the file, and each value 13.
    if tensors * 24 > source.size or values * 13 > source.size:
        raise source.error(
            8,
            f"the header lists {tensors:,} tensors and {values:,} values, which do not fit into {source.size:,} bytes",
        )
    metadata: dict[str, Any] = {}
    for _ in range(values):
        at = cursor.at
        source.limits.spend_bytes(_VALUE)
        source.limits.spend_steps(20)
        key = cursor.text()
        if key in metadata:
            raise source.error(at, f"the header contains the value {key!a} twice")
        metadata[key] = _value(cursor, cursor.unsigned(4))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 16:
        raise source.error(
            cursor.at, f"general.alignment must be a number from 1 to 65,536, not {ascii(alignment)[:40]}"
        )
    source.limits.spend_bytes(_ARRAY * tensors)
    source.limits.spend_steps(40 * tensors)
    listed = [_tensor(cursor) for _ in range(tensors)]
    source.limits.spend_bytes(names_cost((name for _, name, *_ in listed), source.limits.bytes))
    data = -(-cursor.at // alignment) * alignment
    arrays: dict[str, Any] = {}
    starts = sorted({data + offset for *_, offset in listed})
    for at, name, shape, kind, offset in listed:
        if name in arrays:
            raise source.error(at, f"the header contains the tensor {name!a} twice")
        if offset % alignment:
            raise source.error(at, f"the tensor {name!a} does not start at a multiple of {alignment} bytes")
        following = bisect_right(starts, data + offset)
        end = starts[following] if following < len(starts) else source.size
        arrays[name] = _array(source, at, name, shape, kind, data + offset, end)
    _check_overlaps(source, arrays)
    return StoredFile(source, "GGUF", arrays, metadata=metadata)


def _tensor(cursor: Cursor) -> tuple[int, str, tuple[int, ...], int, int]:
    at = cursor.at
    name = cursor.text()
    axes = cursor.unsigned(4)
    if axes > 8:
        raise cursor.source.error(at, f"the tensor {name!a} has {axes} axes; leafwise reads at most 8")
    # GGUF lists the fastest axis first.
    shape = tuple(reversed([cursor.unsigned(8) for _ in range(axes)]))
    return at, name, counts(shape, cursor.source, at, f"the shape of {name!a}"), cursor.unsigned(4), cursor.unsigned(8)


def _array(source: Source, at: int, name: str, shape: tuple[int, ...], kind: int, start: int, end: int) -> Stored:
    """A tensor that starts at an offset. One of a type that leafwise does not know cannot be read, and takes the bytes
    up to where the next one starts, at most."""
    if kind not in TYPES:
        if start > source.size:
            raise source.error(at, f"the tensor {name!a} should start at byte {start:,}, after the end of the file")
        storage = Storage(source, start, max(end - start, 0))
        spec = Spec(shape, f"type{kind}", "file", prod(shape), storage.nbytes)
        return Unreadable(spec, f"GGUF type {kind} is not known to this version of leafwise", storage)
    dtype, block, size = TYPES[kind]
    count = prod(shape)
    if count % block or (shape and shape[-1] % block):
        raise source.error(at, f"the tensor {name!a} of shape {shape} cannot be divided into blocks of {block}")
    nbytes = count // block * size
    if start + nbytes > source.size:
        raise source.error(
            min(start, source.size),
            f"the tensor {name!a} should end at byte {start + nbytes:,}, and the file has {source.size:,}; "
            "was it cut off?",
        )
    storage = Storage(source, start, nbytes)
    if block == 1:
        return Strided(spec_of(shape, dtype), storage)
    return Coded(Spec(shape, dtype, "file", count, nbytes), storage, partial(_dequantized, kind, dtype))


def _dequantized(kind: int, dtype: str, data: Any, shape: tuple[int, ...]) -> Any:
    try:
        import gguf
        import numpy as np

        flat = gguf.quants.dequantize(np.frombuffer(data, np.uint8), gguf.GGMLQuantizationType(kind))
    except ImportError as error:
        why = f"{dtype} needs the gguf package: pip install 'leafwise[gguf]'"
        raise Unsupported("a file", "provide these values", why) from error
    except (NotImplementedError, ValueError, KeyError) as error:
        raise Unsupported("a file", "provide these values", f"the gguf package cannot dequantize {dtype}") from error
    return flat.reshape(shape)


def _check_overlaps(source: Source, arrays: dict[str, Any]) -> None:
    reached, before = 0, ""
    for name, array in sorted(arrays.items(), key=lambda item: item[1].storage.start):
        if array.storage.nbytes and array.storage.start < reached:
            raise source.error(array.storage.start, f"the tensor {name!a} overlaps {before!a}")
        reached, before = max(reached, array.storage.start + array.storage.nbytes), name


def _value(cursor: Cursor, kind: int, depth: int = 0) -> Any:
    if kind == 8:
        return cursor.text()
    if kind in _SCALARS:
        form = _SCALARS[kind]
        return struct.unpack(form, cursor.take(struct.calcsize(form)))[0]
    if kind != 9 or depth > 4:
        raise cursor.error(
            "arrays of values are nested too deeply" if kind == 9 else f"a value has the unknown type {kind}"
        )
    inner, count = cursor.unsigned(4), cursor.unsigned(8)
    if count > _MAX_COUNT:
        raise cursor.error(f"an array has {count:,} values; leafwise reads at most {_MAX_COUNT:,}")
    if inner in _SCALARS:
        size = struct.calcsize(_SCALARS[inner])
        if count > _LONG:
            cursor.skip(count * size)
            return f"<{count:,} values>"
        return [_value(cursor, inner) for _ in range(count)]
    if count > _LONG and inner == 8:
        cursor.source.limits.spend_steps(6 * count)
        for _ in range(count):
            cursor.skip(cursor.unsigned(8))
        return f"<{count:,} strings>"
    cursor.source.limits.spend_bytes(_VALUE * count)
    cursor.source.limits.spend_steps(10 * count)
    if count * 8 > cursor.source.size:
        raise cursor.error(f"an array of {count:,} values does not fit into the file")
    return [_value(cursor, inner, depth + 1) for _ in range(count)]
