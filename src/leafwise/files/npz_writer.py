"""Writes arrays as an uncompressed npz file, a chunk at a time."""

import zipfile
from functools import partial
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.path import escape
from leafwise.errors import FileError, WriteError
from leafwise.files import reader
from leafwise.files.destination import destination
from leafwise.files.item_writer import Item
from leafwise.files.output import Output, Progress
from leafwise.files.readback import check_readable


def cannot_store(dtype: str) -> str:
    """Why npz cannot store arrays of a dtype; empty if it can."""
    return "" if DTYPES[dtype].is_native else f"npz has no dtype {dtype}; cast it to another"


def write(items: list[Item], path: str, progress: Progress) -> None:
    """Writes the arrays durably. Values that have checksums are compared with them first."""
    arrays = [(item.name, item.array) for item in items if item.array is not None]
    reader.verify_arrays(arrays)
    sink: Any
    place = destination(path)
    # All of the file is needed to check it: the list of its entries is at the end.
    with place.transaction(None, partial(_check_staged, items, place.whole), reads_back=True) as transaction:
        output = transaction.open(path)
        progress = output.counted(progress)
        sink = _Sink(output)
        with zipfile.ZipFile(sink, "w") as archive:
            for item in items:
                _write_array(archive, item, progress)
        _check_sources(array for _, array in arrays)


def _check_sources(arrays: Any) -> None:
    reader.unchanged({id(storage.source): storage.source for array in arrays for storage in array.storages()}.values())


def _check_staged(items: list[Item], path: str, staged: dict[str, Output]) -> None:
    check_readable(path, staged, {item.name for item in items})


def _write_array(archive: zipfile.ZipFile, item: Item, progress: Progress) -> None:
    info = zipfile.ZipInfo(item.name + ".npy")
    with archive.open(info, "w", force_zip64=True) as file:
        file.write(_npy_header(item))
        written = 0
        try:
            for chunk in item.pieces():
                view = memoryview(chunk).cast("B")
                file.write(view)
                progress(len(view))
                written += len(view)
        except WriteError as error:
            raise WriteError(f"cannot write {escape(item.name)}: {error}") from error
    if written != item.nbytes:
        raise FileError(
            f"cannot write {escape(item.name)}: it should have {item.nbytes:,} bytes but has {written:,}; "
            "nothing was written"
        )


class _Sink:
    """The file that `zipfile` writes to: it supports neither reading nor seeking."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, data: Any) -> int:
        return self._output.write(data)

    def flush(self) -> None:
        pass


def _npy_header(item: Item) -> bytes:
    dtype = DTYPES[item.dtype]
    descr = f"{'|' if dtype.itemsize == 1 else '<'}{dtype.numpy}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(item.shape)}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
