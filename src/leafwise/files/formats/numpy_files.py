"""NumPy's files: `.npy`, a header that is a Python literal followed by an array, and `.npz`, a zip of `.npy` files."""

import ast
import re
import zipfile
import zlib
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import ITEM_BYTES, Inflated, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.checksums import Crc32
from leafwise.files.formats.inner_files import read_pickle
from leafwise.files.formats.torch_zip import has_checksums, opened_zip, start_of
from leafwise.files.limits import names_cost
from leafwise.files.pickles.numpy_objects import fortran_strides
from leafwise.files.sources.source import BytesSource, InflatedSource, Source
from leafwise.files.stored_file import StoredFile

if TYPE_CHECKING:
    from leafwise.core.work.progress import Count
    from leafwise.files.writing.item_writer import Item
    from leafwise.files.writing.output import Output

MAGIC = b"\x93NUMPY"
CODES = {name: dtype.numpy for name, dtype in DTYPES.items() if dtype.is_native}
_MAX_HEADER = 10_000  # bytes; NumPy has the same limit
_STEPS = 150  # steps of work for an entry and its header
_ARRAY = 800  # bytes of memory for an entry
_NAMES = {dtype.numpy: name for name, dtype in DTYPES.items() if dtype.numpy}
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "V": "void"}


class ObjectArray(Unreadable):
    """An array of Python objects: its bytes are a pickle."""

    __slots__ = ()


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    fortran: bool  # whether the first axis is the fastest
    big_endian: bool
    has_objects: bool = False  # whether it may contain Python objects, which NumPy reads with pickle


def read_npy(source: Source) -> StoredFile:
    """Opens a `.npy`; only its header is read."""
    head = _head(source, 0, source.size)
    array = _array(source, head, 0, source.size)
    opened = StoredFile(source, "npy", {"array": array})
    opened.unread_objects.append(partial(_read_objects, [array], source))
    return opened


def read_npz(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> StoredFile:
    """Opens a `.npz`; reads the directory and the header of each array."""
    arrays: dict[str, Any] = {}
    source.limits.spend_steps(_STEPS * len(zip_entries))
    source.limits.spend_bytes(_ARRAY * len(zip_entries) + names_cost(zip_entries, source.limits.bytes))
    checked = has_checksums(zip_entries)
    for name, info in zip_entries.items():
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise source.error(
                info.header_offset,
                f"the entry {name!a} is encrypted, or compressed by a method that NumPy does not use",
            )
        start = start_of(source, info)
        if info.compress_type == zipfile.ZIP_STORED:
            head = _head(source, start, start + info.file_size)
            array = _array(source, head, start, start + info.file_size)
            for storage in array.storages() if checked else ():
                storage.checksums = Crc32(info.CRC, head[: storage.start - start])
        else:
            array = _deflated(source, info, start)
        arrays[name.removesuffix(".npy")] = array
    opened = opened_zip(source, "npz", arrays, zip_entries, zip_entries)
    opened.unread_objects.append(partial(_read_objects, list(arrays.values()), source))
    return opened


def _read_objects(arrays: list[Stored], source: Source) -> None:
    """Reads the pickles of arrays of Python objects, to add what they refer to to the names of `source`."""
    for array in arrays:
        if isinstance(array, ObjectArray) and array.storage is not None:
            read_pickle(array.storage, source, "an array of Python objects")


def _head(source: Source, start: int, stop: int) -> bytes:
    """The header and some bytes after it. A second read is needed only if the header is unusually long."""
    head = bytes(source.read(start, min(start + 256, stop)))
    width = 2 if head[6:7] == b"\x01" else 4
    length = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    return head if length <= len(head) else bytes(source.read(start, min(start + min(length, _MAX_HEADER), stop)))


def _array(source: Source, head: bytes, start: int, stop: int) -> Stored:
    header, length = _header(source, head, start)
    storage = Storage(source, start + length, stop - start - length)
    return _stored(source, start + length, "an array", header, storage, storage.nbytes)


def _deflated(source: Source, info: zipfile.ZipInfo, start: int) -> Stored:
    """A compressed array. The zip may not unpack to more bytes than the array's own header says."""
    stop = start + info.compress_size
    packed = bytes(source.read(start, min(start + _MAX_HEADER, stop)))
    try:
        head = zlib.decompressobj(-15).decompress(packed, _MAX_HEADER)
    except zlib.error as error:
        raise source.error(start, f"the entry {info.orig_filename!a} cannot be unpacked ({error})") from error
    header, length = _header(BytesSource(source.name, head), head, 0)
    unpacked = InflatedSource(source, start, stop, info.file_size, info.CRC, info.orig_filename)
    have = info.file_size - length
    storage = Storage(unpacked, length, max(have, 0), shared=False)
    return _stored(source, start, ascii(info.orig_filename), header, storage, have, Inflated)


def _stored(
    source: Source, at: int, label: str, header: _Header, storage: Storage, have: int, kind: type[Strided] = Strided
) -> Stored:
    """The array with this header, whose values take `have` bytes. Errors refer to it as `label`."""
    shape, dtype, fortran, big_endian, _ = header
    if dtype not in ITEM_BYTES:
        spec = Spec(shape, dtype, "file", prod(shape), storage.nbytes)
        unreadable = ObjectArray if header.has_objects else Unreadable
        return unreadable(spec, f"its dtype is {dtype}; leafwise reads only arrays of plain numbers", storage)
    need = prod(shape) * ITEM_BYTES[dtype]
    if need != have:
        raise source.error(at, f"{label} of shape {shape} in {dtype} needs {need:,} bytes but has {have:,}")
    strides = fortran_strides(shape, ITEM_BYTES[dtype]) if fortran else None
    return kind(spec_of(shape, dtype), storage, 0, strides, big_endian)


def _header(source: Source, head: bytes, at: int) -> tuple[_Header, int]:
    """The header, and its length."""
    if head[:6] != MAGIC or len(head) < 10:
        raise source.error(at, "a .npy header should begin here")
    width = 2 if head[6] == 1 else 4
    length = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    if head[6] not in (1, 2, 3) or length > len(head):
        raise source.error(
            at + 8, f"the .npy header cannot be read (version {head[6]}, {length:,} bytes); was the file cut off?"
        )
    try:
        header = ast.literal_eval(head[8 + width : length].decode("utf-8" if head[6] == 3 else "latin-1").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError, UnicodeDecodeError) as error:
        raise source.error(at + 10, "the header is not a dict with descr, fortran_order and shape") from error
    shape = counts(shape, source, at + 10, "the shape")
    if not isinstance(fortran, bool):
        raise source.error(at + 10, "fortran_order is not True or False")
    has_objects = not _is_plain(descr)
    if not isinstance(descr, str):
        return _Header(shape, "structured", fortran, False, has_objects), length
    order, kind, size = descr[:1], descr[1:2], descr[2:]
    if order not in "<>|=" or kind not in "fiucbV" or not size.isdecimal() or len(size) > 4:
        text = "object" if descr == "|O" else ascii(descr)[1:-1][:20]
        return _Header(shape, text, fortran, False, has_objects), length
    name = _NAMES.get(f"{kind}{int(size)}", f"{_KINDS[kind]}{int(size) * 8}")
    return _Header(shape, name, fortran, order == ">"), length


_PLAIN = re.compile(r"[<>|=]?[fiucbVSUMm]\d*(\[\w+\])?")  # the code of a dtype


def _is_plain(descr: Any) -> bool:
    """Whether a dtype certainly has no Python objects: a code, or a list of fields with their dtypes and shapes."""
    if isinstance(descr, str):
        return _PLAIN.fullmatch(descr) is not None
    if isinstance(descr, tuple) and len(descr) == 2:
        return _is_plain(descr[0])  # a dtype and a shape
    return isinstance(descr, list) and all(
        isinstance(field, tuple) and len(field) in (2, 3) and _is_plain(field[1]) for field in descr
    )


# -- writing -------------------------------------------------------------------------------------------------


def write_npz(items: "list[Item]", path: str, progress: "Count") -> None:
    """Writes the arrays durably, without compression. Values that have checksums are compared with them first."""
    from leafwise.files.formats.array_files import write_file, write_values  # late, because most files are only read

    def fill(output: "Output", count: "Count") -> None:
        sink: Any = _Sink(output)
        with zipfile.ZipFile(sink, "w") as archive:
            for item in items:
                with archive.open(zipfile.ZipInfo(item.name + ".npy"), "w", force_zip64=True) as file:
                    file.write(npy_header(item))
                    write_values(item, file.write, count)

    write_file(items, path, progress, fill)


class _Sink:
    """The file that `zipfile` writes to: it supports neither reading nor seeking."""

    def __init__(self, output: "Output") -> None:
        self._output = output

    def write(self, data: Any) -> int:
        return self._output.write(data)

    def flush(self) -> None:
        pass


def npy_header(item: "Item") -> bytes:
    dtype = DTYPES[item.dtype]
    descr = f"{'|' if dtype.itemsize == 1 else '<'}{dtype.numpy}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(item.shape)}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
