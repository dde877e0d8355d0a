"""Converts any format that can be read to safetensors or npz, a chunk at a time."""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from leafwise.core.dtypes import DTYPES, is_float
from leafwise.core.path import escape
from leafwise.errors import FileError, WriteError
from leafwise.files import reader
from leafwise.files.arrays import ITEM_BYTES, Stored, as_bytes
from leafwise.files.casts import cast_to
from leafwise.files.readback import check_readable
from leafwise.files.safetensors import CODES, rows_of
from leafwise.files.writer import Output, durable


class ConvertedArray(NamedTuple):
    """An array to convert: its new name, where its values come from, and the dtype to write."""

    name: str
    array: Stored
    dtype: str
    saturate: bool = False  # whether values that do not fit become the nearest that do

    @property
    def nbytes(self) -> int:
        return self.array.spec.size * ITEM_BYTES[self.dtype]


Progress = Callable[[int], None]


def write_safetensors(entries: list[ConvertedArray], path: str, metadata: dict[str, str], progress: Progress) -> None:
    """Writes a plain safetensors file, with no more than a chunk in memory."""
    # The widest elements first, so that the offset of every array is a multiple of its element size.
    entries = sorted(entries, key=lambda entry: -ITEM_BYTES[entry.dtype])
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for entry in entries:
        if entry.dtype not in CODES:
            raise FileError(
                f"cannot convert {entry.name!r}: safetensors has no dtype {entry.dtype}; choose another with --dtype"
            )
    header |= rows_of((entry.name, entry.dtype, entry.array.spec.shape or (), entry.nbytes) for entry in entries)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with durable(path, partial(_check_staged, entries, path)) as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            _write_values(entry, output, progress)


def write_npz(entries: list[ConvertedArray], path: str, metadata: dict[str, str], progress: Progress) -> None:
    """Writes an uncompressed npz file."""
    sink: Any
    with durable(path, partial(_check_staged, entries, path)) as output:
        sink = _Sink(output)
        with zipfile.ZipFile(sink, "w") as archive:
            _write_arrays(archive, entries, progress)


def _check_staged(entries: list[ConvertedArray], path: str, staged: dict[str, Output]) -> None:
    check_readable(os.path.realpath(path), staged, {entry.name for entry in entries})


def _write_arrays(archive: zipfile.ZipFile, entries: list[ConvertedArray], progress: Progress) -> None:
    for entry in entries:
        info = zipfile.ZipInfo(entry.name + ".npy")
        with archive.open(info, "w", force_zip64=True) as file:
            file.write(_npy_header(entry))
            for chunk in _chunks(entry):
                file.write(chunk)
                progress(len(chunk))


class _Sink:
    """The file that `zipfile` writes to: it supports neither reading nor seeking."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, data: Any) -> int:
        return self._output.write(data)

    def flush(self) -> None:
        pass


def _npy_header(entry: ConvertedArray) -> bytes:
    dtype = DTYPES[entry.dtype]
    if not dtype.is_native:
        raise FileError(f"cannot convert {entry.name!r}: npz has no dtype {entry.dtype}; choose another with --dtype")
    descr = f"{'|' if dtype.itemsize == 1 else '<'}{dtype.numpy}"
    shape = tuple(entry.array.spec.shape or ())
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _write_values(entry: ConvertedArray, output: Output, progress: Progress) -> None:
    run = entry.array.plain_run() if entry.dtype == entry.array.spec.dtype else None
    if run is not None and run[0].checksums is None:
        storage, start, stop = run
        while start < stop:
            part = min(start + (1 << 26), stop)
            output.copy(storage.source, storage.start + start, storage.start + part)
            progress(part - start)
            start = part
        return
    for chunk in _chunks(entry):
        output.write(chunk)
        progress(memoryview(chunk).nbytes)


def _chunks(entry: ConvertedArray) -> Iterator[Any]:
    """The values as bytes in the dtype to write; checksums are compared on the way."""
    if entry.dtype == entry.array.spec.dtype:
        for chunk in reader.checked_chunks(entry.name, entry.array):
            yield memoryview(chunk).cast("B")
        return
    if not entry.array.checks_itself:
        reader.verify_arrays([(entry.name, entry.array)])
    try:
        for part in entry.array.parts():
            yield as_bytes(cast_to(part, entry.dtype, entry.saturate))
    except WriteError as error:
        raise FileError(
            f"cannot convert {escape(entry.name)}: {error}; --cast saturate uses the nearest value that fits"
        ) from error


def dtype_for(array: Stored, requested: str | None) -> str:
    """The dtype to write an array in: the requested one for floating-point values, otherwise its own."""
    own = array.spec.dtype
    fractional = is_float(own) or own not in ITEM_BYTES
    if requested is not None and fractional:
        return requested
    return own if own in ITEM_BYTES else "float32"  # quantized values are dequantized
