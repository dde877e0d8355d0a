"""MXNet's `.params` files: a list of arrays, each with a header in one of four versions, then their names.

All versions are read; versions 2 and 3 are written.
"""

from math import prod
from typing import TYPE_CHECKING, Any

from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import ITEM_BYTES, InMemory, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.limits import ALLOW_MORE, names_cost
from leafwise.files.sources.source import Cursor, Source
from leafwise.files.stored_file import StoredFile

if TYPE_CHECKING:
    from leafwise.core.work.progress import Count
    from leafwise.files.writing.item_writer import Item
    from leafwise.files.writing.output import Output

_LIST, _V1, _V2, _V3 = 0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_CPU = 1  # the device that written arrays are said to be on
CODES = {
    "float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7, "int16": 8,
    "uint16": 9, "uint32": 10, "uint64": 11, "bfloat16": 12,
}  # fmt: skip
_BY_NUMBER = {number: dtype for dtype, number in CODES.items()}
_DENSE, _ROWS, _CSR = 0, 1, 2
_ARRAY = 700  # bytes of memory for an array while its header is read


def read(source: Source) -> StoredFile:
    """Opens the file; reads the header of each array, and skips its data."""
    cursor = Cursor(source, 16, block=256)
    count = cursor.unsigned(8)
    if count * 4 > source.size:
        raise source.error(16, f"the header lists {count:,} arrays, which do not fit into {source.size:,} bytes")
    source.limits.spend_bytes(_ARRAY * count)
    source.limits.spend_steps(40 * count)
    arrays = [_array(cursor) for _ in range(count)]
    at = cursor.at
    named = cursor.unsigned(8)
    if named not in (0, count):
        raise source.error(at, f"the file has {named:,} names for {count:,} arrays")
    names = [cursor.text() for _ in range(named)] or [str(number) for number in range(count)]
    if cursor.at != source.size:
        raise source.error(
            cursor.at, f"{source.size - cursor.at:,} bytes follow the last name, where the file should end"
        )
    source.limits.spend_bytes(names_cost(names, source.limits.bytes))
    content: dict[str, Any] = {}
    for name, array in zip(names, arrays, strict=True):
        if name in content:
            raise source.error(at, f"the file contains the name {name!a} twice")
        if array is not None:
            content[name] = array
    opened = StoredFile(source, "MXNet params", content)
    opened.is_numbered = not named
    return opened


def _array(cursor: Cursor) -> Stored | None:
    at = cursor.at
    magic = cursor.unsigned(4)
    kind = _DENSE
    shape: Any
    stored_shape: Any = ()
    if magic in (_V2, _V3):
        kind = cursor.signed(4)
        if kind not in (_DENSE, _ROWS, _CSR):
            raise cursor.source.error(at, f"an array has the unknown storage type {kind}")
        if kind != _DENSE:
            stored_shape = _shape(cursor, at)
        shape = _shape(cursor, at, unknown=magic == _V3)
    elif magic == _V1:
        shape = _shape(cursor, at)
    else:
        if magic > 32:
            raise cursor.source.error(at, f"an array should begin here, but none begins with {magic:#x}")
        shape = counts([cursor.unsigned(4) for _ in range(magic)], cursor.source, at, "the shape")
    if shape is None or (magic != _V3 and not shape):
        return None  # an array that was never initialized
    cursor.skip(8)  # the device it was on
    dtype = _dtype(cursor)
    if kind == _DENSE:
        return _stored(cursor, shape, dtype)
    index_types = [(_dtype(cursor), _shape(cursor, at)) for _ in range(1 if kind == _ROWS else 2)]
    data = _stored(cursor, stored_shape, dtype)
    index_arrays = [_stored(cursor, index_shape, index_dtype) for index_dtype, index_shape in index_types]
    return _sparse(cursor.source, at, kind, shape, data, index_arrays)


def _dtype(cursor: Cursor) -> str:
    number = cursor.signed(4)
    if number not in _BY_NUMBER:
        raise cursor.error(f"an array has the unknown dtype number {number}")
    return _BY_NUMBER[number]


def _shape(cursor: Cursor, at: int, unknown: bool = False) -> Any:
    axes = cursor.signed(4)
    if unknown and axes < 0:
        return None
    if not 0 <= axes <= 32:
        raise cursor.source.error(at, f"an array has {axes} axes; leafwise reads 0 to 32")
    numbers = [cursor.signed(8) for _ in range(axes)]
    if unknown and any(number < 0 for number in numbers):
        return None
    return counts(numbers, cursor.source, at, "the shape")


def _stored(cursor: Cursor, shape: tuple[int, ...], dtype: str) -> Strided:
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    return Strided(spec_of(shape, dtype), Storage(cursor.source, cursor.skip(nbytes), nbytes))


def _inside(indices: Any, size: int) -> bool:
    return not indices.size or bool(indices.min() >= 0 and indices.max() < size)


def _sparse(
    source: Source, at: int, kind: int, shape: tuple[int, ...], data: Strided, index_arrays: list[Strided]
) -> Stored:
    """A sparse array, which becomes dense when it is read."""
    stored = data.spec.nbytes + sum(array.spec.nbytes for array in index_arrays)
    spec = spec_of(shape, data.spec.dtype, nbytes=stored)

    def dense() -> Any:
        import numpy as np

        values, first = data.read(), index_arrays[0].read()
        if kind == _ROWS:
            sound = first.ndim == 1 and values.shape == (len(first), *shape[1:]) and _inside(first, shape[0])
        else:
            columns = index_arrays[1].read()
            steps = np.diff(first.astype(np.int64))
            sound = len(shape) == 2 and first.shape == (shape[0] + 1,) and values.shape == columns.shape
            sound = sound and values.ndim == 1 and first[0] == 0 and first[-1] == len(values)
            sound = sound and bool((steps >= 0).all()) and _inside(columns, shape[1])
        if not sound:
            raise source.error(at, f"the indices of a sparse array do not match its shape {shape}")
        try:
            full = np.zeros(shape, values.dtype)
        except (MemoryError, ValueError) as error:
            raise source.error(at, f"a sparse array of shape {shape} is too large to be made dense") from error
        if kind == _ROWS:
            full[first] = values
        else:
            full[np.repeat(np.arange(shape[0]), steps), columns] = values
        return full

    size = prod(shape) * ITEM_BYTES[data.spec.dtype]
    if not source.limits.allows_repeats(size - stored):
        why = f"it is sparse: {stored:,} bytes are stored, and as a dense array it would take {size:,}"
        return Unreadable(spec, f"{why}; {ALLOW_MORE}")
    return InMemory(spec, dense)


# -- writing -------------------------------------------------------------------------------------------------


def write(
    items: "list[Item]", path: str, progress: "Count", named: bool = True, numpy_shapes: bool | None = None
) -> None:
    """Writes the arrays durably, with or without their names.

    MXNet reads version 2 of the format outside of NumPy mode, and version 3 (`numpy_shapes`) in NumPy mode; its
    `load_parameters` reads both. Only version 3 has scalars and empty arrays, so if the caller does not choose, it is
    used if there are any, and then for all arrays: MXNet refuses files that mix versions.
    """
    from leafwise.files.formats.array_files import write_file, write_values  # late, because most files are only read

    if numpy_shapes is None:
        numpy_shapes = not all(item.shape and all(item.shape) for item in items)
    magic = _V3 if numpy_shapes else _V2

    def fill(output: "Output", count: "Count") -> None:
        output.write(_unsigned(_LIST) + _unsigned(0) + _unsigned(len(items)))
        for item in items:
            output.write(_array_header(item, magic))
            write_values(item, output.write, count)
        names = [item.name.encode() for item in items] if named else []
        output.write(_unsigned(len(names)) + b"".join(_unsigned(len(name)) + name for name in names))

    write_file(items, path, progress, fill)


def _array_header(item: "Item", magic: int) -> bytes:
    shape = _signed(len(item.shape), 4) + b"".join(_signed(size, 8) for size in item.shape)
    device = _signed(_CPU, 4) + _signed(0, 4)
    return _unsigned(magic, 4) + _signed(0, 4) + shape + device + _signed(CODES[item.dtype], 4)


def _unsigned(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "little")


def _signed(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=True)
