"""Writes arrays as an uncompressed npz file, a chunk at a time."""

import zipfile
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.files.formats.array_files import write_file, write_values
from leafwise.files.writing.item_writer import Item
from leafwise.files.writing.output import Output, Progress


def cannot_store(dtype: str) -> str:
    """Why npz cannot store arrays of a dtype; empty if it can."""
    return "" if DTYPES[dtype].is_native else f"npz has no dtype {dtype}; cast it to another"


def write(items: list[Item], path: str, progress: Progress) -> None:
    """Writes the arrays durably. Values that have checksums are compared with them first."""

    def fill(output: Output, count: Progress) -> None:
        sink: Any = _Sink(output)
        with zipfile.ZipFile(sink, "w") as archive:
            for item in items:
                with archive.open(zipfile.ZipInfo(item.name + ".npy"), "w", force_zip64=True) as file:
                    file.write(npy_header(item))
                    write_values(item, file.write, count)

    write_file(items, path, progress, fill)


class _Sink:
    """The file that `zipfile` writes to: it supports neither reading nor seeking."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, data: Any) -> int:
        return self._output.write(data)

    def flush(self) -> None:
        pass


def npy_header(item: Item) -> bytes:
    dtype = DTYPES[item.dtype]
    descr = f"{'|' if dtype.itemsize == 1 else '<'}{dtype.numpy}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(item.shape)}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
