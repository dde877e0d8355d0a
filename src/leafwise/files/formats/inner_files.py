"""Pickles in files that opening them does not read: arrays of objects, other entries of a zip, zips in zips.

They are read only to know what other programs would call, for `lw.check`. One that cannot be read to its end could do
anything.
"""

import re
import zipfile
import zlib
from collections.abc import Collection
from typing import Any

from leafwise.core.opaque import Opaque
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Storage
from leafwise.files.formats.format import FIRST_BYTES, PICKLE
from leafwise.files.limits import LimitError
from leafwise.files.pickles.numpy_objects import JOBLIB_TABLE
from leafwise.files.pickles.pickle_objects import TruncatedPickleError, Usage, pickled_object
from leafwise.files.pickles.torch_objects import TABLE
from leafwise.files.pickles.unpickler import Unpickler
from leafwise.files.sources.source import BytesSource, PartSource, Source

_MOST_ZIPS = 3  # inside each other
# Names of entries with the bytes of tensors.
_RAW = re.compile(r"(?:.*/)?(?:\d+|(?:weight|tensor|buffer|constant)_\d+)")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SUFFIXES = (".pkl", ".pickle")
_PACKAGE = ".data/extern_modules"  # the list of modules that an archive of torch.package needs


def read_pickle(place: Storage, source: Source, label: str) -> None:
    """Reads pickles that follow each other, to add what they refer to to the names of `source`."""
    _read(PartSource(place.source, place.start, place.start + place.nbytes), source, label)


def _read(part: Source, source: Source, label: str) -> None:
    from leafwise.files.formats.torch_script import TABLE as TORCH_SCRIPT_TABLE  # which uses this module

    # Tensors stay descriptions: their storages may be elsewhere.
    tensors = {named: pickled_object(".".join(named)) for named in TABLE if named[0] == "torch._utils"}
    table = {**TORCH_SCRIPT_TABLE, **JOBLIB_TABLE, **tensors}

    def storage(reference: Any) -> Opaque:
        return Opaque("torch.storage", (reference,))

    machine = Unpickler(part, table, storage, part.error, source.limits, names=source.pickle_names)
    try:
        while machine.at < part.size:
            machine.run()
    except (FileError, LimitError, TruncatedPickleError):
        _note_unread(source, label)


def _note_unread(source: Source, label: str) -> None:
    source.pickle_names["pickle", "load"] = Usage(f"for {label}, which leafwise cannot read to its end")


def probe(source: Source) -> None:
    """Adds to the names of a file what it would call if it were loaded as a pickle: it may be both."""
    Unpickler(source, TABLE, None, source.error, source.limits.anew(), names=source.pickle_names).probe()


def note_code(source: Source, zip_entries: dict[str, zipfile.ZipInfo], known: Collection[str]) -> None:
    """Adds to the names what would run code of the archive: packages of torch.package, and compiled models. The entries
    that are `known` were read."""
    for name in zip_entries:
        entry = f"/{name}"
        if (name.endswith(".py") and name not in known) or entry.endswith(f"/{_PACKAGE}"):
            source.pickle_names["torch.package", "PackageImporter"] = Usage("which runs the Python code in the archive")
        if "/aotinductor/" in entry or name.endswith((".so", ".dylib", ".dll")):
            source.pickle_names["torch._inductor", "aoti_load_package"] = Usage("which runs the compiled code in it")


def read_entries(
    source: Source, zip_entries: dict[str, zipfile.ZipInfo], known: Collection[str], depth: int = 0
) -> None:
    """Reads the pickles among the entries of a zip that are not `known`, and those of the zips in it."""
    from leafwise.files.formats import numpy_files, torch_zip  # which use this module

    for name, info in zip_entries.items():
        if name in known:
            continue
        label = ascii(name)[:200]
        try:
            part = _unpacked(source, info)
            if part is None:
                continue
            start = bytes(part.read(0, min(FIRST_BYTES, part.size)))
            part.pickle_names, part.limits = source.pickle_names, source.limits
            if _RAW.fullmatch(name) and start[:6] != b"\x93NUMPY":
                continue
            if start[:6] == b"\x93NUMPY":
                numpy_files.read_npy(part).read_objects()
            elif start[:4] != b"PK\x03\x04" and (_PICKLE.match(start) or name.lower().endswith(_SUFFIXES)):
                _read(part, source, label)
            elif PICKLE.match(start):  # or text: protocol 0 looks like it
                Unpickler(part, TABLE, None, part.error, part.limits, names=part.pickle_names).probe(is_pickle=True)
            if start[:4] != b"PK\x03\x04":
                continue
            if depth >= _MOST_ZIPS:
                raise LimitError(f"more than {_MOST_ZIPS} zips inside each other")
            inner = torch_zip.entries(part)
            note_code(part, inner, ())
            read_entries(part, inner, (), depth + 1)
        except (FileError, LimitError):
            _note_unread(source, label)


def _unpacked(source: Source, info: zipfile.ZipInfo) -> Source | None:
    """The bytes of an entry; None for a folder, and for one that no program can unpack without a password."""
    from leafwise.files.formats.torch_zip import start_of

    if not info.file_size or info.flag_bits & 1:
        return None
    start = start_of(source, info)
    if info.compress_type == zipfile.ZIP_STORED:
        return PartSource(source, start, start + info.compress_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise source.error(
            start, f"the entry is compressed by method {info.compress_type}, which leafwise does not read"
        )
    source.limits.spend_bytes(info.file_size)
    try:
        data = zlib.decompressobj(-15).decompress(bytes(source.read(start, start + info.compress_size)), info.file_size)
    except zlib.error as error:
        raise source.error(start, f"the entry cannot be unpacked ({error})") from error
    return BytesSource(source.name, data)
