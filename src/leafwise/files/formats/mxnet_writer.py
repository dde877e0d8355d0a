"""Writes arrays as MXNet's `.params` list format, which MXNet 1.x and 2.x read."""

from leafwise.core.dtypes import DTYPES
from leafwise.files.formats.array_files import write_file, write_values
from leafwise.files.writing.item_writer import Item
from leafwise.files.writing.output import Output, Progress

_LIST, _V2, _V3 = 0x112, 0xF993FAC9, 0xF993FACA
_CPU = 1  # the device that the arrays are said to be on


def cannot_store(dtype: str) -> str:
    """Why the format cannot store arrays of a dtype; empty if it can."""
    return "" if DTYPES[dtype].mxnet is not None else f"MXNet has no dtype {dtype}; cast it to another"


def write(
    items: list[Item], path: str, progress: Progress, named: bool = True, numpy_shapes: bool | None = None
) -> None:
    """Writes the arrays durably, with or without their names.

    MXNet reads version 2 of the format outside of NumPy mode, and version 3 (`numpy_shapes`) in NumPy mode; its
    `load_parameters` reads both. Only version 3 has scalars and empty arrays, so if the caller does not choose, it is
    used if there are any, and then for all arrays: MXNet refuses files that mix versions.
    """
    if numpy_shapes is None:
        numpy_shapes = not all(item.shape and all(item.shape) for item in items)
    magic = _V3 if numpy_shapes else _V2

    def fill(output: Output, count: Progress) -> None:
        output.write(_unsigned(_LIST) + _unsigned(0) + _unsigned(len(items)))
        for item in items:
            output.write(_array_header(item, magic))
            write_values(item, output.write, count)
        names = [item.name.encode() for item in items] if named else []
        output.write(_unsigned(len(names)) + b"".join(_unsigned(len(name)) + name for name in names))

    write_file(items, path, progress, fill)


def _array_header(item: Item, magic: int) -> bytes:
    shape = _signed(len(item.shape), 4) + b"".join(_signed(size, 8) for size in item.shape)
    number = DTYPES[item.dtype].mxnet
    assert number is not None, item.dtype
    device = _signed(_CPU, 4) + _signed(0, 4)
    return _unsigned(magic, 4) + _signed(0, 4) + shape + device + _signed(number, 4)


def _unsigned(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "little")


def _signed(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=True)
