"""PyTorch's zip files: a pickle with the structure, and an uncompressed entry for each storage."""

import struct
import zipfile
import zlib
from collections.abc import Collection
from functools import partial
from typing import Any

from leafwise.errors import ChecksumError
from leafwise.files.arrays.stored import LocatedStorage, Storage
from leafwise.files.checksums import Crc32
from leafwise.files.formats.inner_files import note_code, read_entries
from leafwise.files.limits import LimitError
from leafwise.files.pickles.pickle_objects import Table, TruncatedPickleError, UnpicklingError
from leafwise.files.pickles.pickled_content import ContentOf, content_of
from leafwise.files.pickles.torch_objects import MAX_PICKLE, TABLE, TypedStorage, storage_reference
from leafwise.files.pickles.unpickler import Unpickler, truncated_pickle
from leafwise.files.sources.source import Source, SourceStream
from leafwise.files.stored_file import StoredFile

_HEADER = 30  # bytes in the fixed part of the header of an entry
# The records at the end of a zip: the last one, what leads to the record of a large one, and that record.
_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
# Folders, files and suffixes by which PyTorch looks for entries. It ignores upper and lower case where it reads zips.
_FOLDERS = frozenset(
    ("code", "constants", "data", "extra", "models", "sample_inputs", "ts_code", "weights", "xl_model_weights")
)
_FILES = frozenset(
    (
        "archive_format", "archive_version", "bytecode.pkl", "byteorder", "constants.pkl", "data.pkl", "version",
        "serialized_constants.pt", "serialized_exported_program.json", "serialized_state_dict.pt",
    )
)  # fmt: skip
_SUFFIXES = frozenset(("debug_pkl", "dll", "dylib", "json", "npy", "pickle", "pkl", "pt", "pth", "py", "so"))


def entries(source: Source) -> dict[str, zipfile.ZipInfo]:
    """The entries of a zip by name. Reads only its directory."""
    try:
        archive = zipfile.ZipFile(SourceStream(source))
        infos, comment = archive.infolist(), archive.comment
    except LimitError as error:
        raise source.error(source.size, f"the directory at the end of the zip is too large: {error}") from error
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError, EOFError, KeyError) as error:
        reason = ascii(str(error) or type(error).__name__)[1:-1][:200]
        raise source.error(
            source.size, f"the directory at the end of the zip cannot be read ({reason}); was the download cut off?"
        ) from error
    if comment:
        raise source.error(source.size - len(comment), "the zip has a comment, which PyTorch and NumPy never write")
    first = min((info.header_offset for info in infos), default=0)
    if first:
        raise source.error(0, f"{first:,} bytes come before the zip; were two files joined into one?")
    _check_end(source, len(infos))
    by_name: dict[str, zipfile.ZipInfo] = {}
    lower: set[str] = set()
    for info in infos:
        name = info.orig_filename
        if name in by_name:
            raise source.error(info.header_offset, f"the zip contains the entry {name!a} twice")
        if name.lower() in lower:
            raise source.error(
                info.header_offset,
                f"the zip contains {name!a} and an entry whose name differs only in upper and lower case; PyTorch may "
                "load either of them",
            )
        if _has_wrong_case(name):
            raise source.error(
                info.header_offset, f"the zip contains {name!a}, which PyTorch may load as {name.lower()!a}"
            )
        lower.add(name.lower())
        if info.header_offset + info.compress_size > source.size or info.header_offset < 0:
            raise source.error(info.header_offset, f"the entry {name!a} reaches beyond the end of the file")
        by_name[name] = info
    reached = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < reached:
            raise source.error(info.header_offset, f"the entry {info.orig_filename!a} overlaps another")
        reached = info.header_offset + _HEADER + info.compress_size
    return by_name


def _has_wrong_case(name: str) -> bool:
    """Whether an entry has the name of another one, for which PyTorch looks, but for upper and lower case."""
    *folders, last = name.split("/")
    places = folders[1:3] if folders[1:2] != ["code"] else []
    wrong = [part for part in places if part.lower() in _FOLDERS]
    wrong += [last] if len(folders) < 2 and last.lower() in _FILES else []
    wrong += [suffix for _, dot, suffix in [last.rpartition(".")] if dot and suffix.lower() in _SUFFIXES]
    return any(part != part.lower() for part in wrong)


def _check_end(source: Source, count: int) -> None:
    """Raises unless the records at the end of a zip follow each other without gaps: programs find them in different
    ways, and would otherwise read different directories."""
    end = source.size - _END.size
    _, *_, here, total, size, offset, _ = _END.unpack(bytes(source.read(end, source.size)))
    directory_end, large = end, end - _LOCATOR.size - _END_64.size
    if large >= 0 and bytes(source.read(end - _LOCATOR.size, end))[:4] == b"PK\x06\x07":
        directory_end = large
        _, _, place, _ = _LOCATOR.unpack(bytes(source.read(end - _LOCATOR.size, end)))
        mark, _, _, _, _, _, here_64, total_64, size_64, offset_64 = _END_64.unpack(
            bytes(source.read(large, large + _END_64.size))
        )
        shorts = (
            (here, 0xFFFF, here_64),
            (total, 0xFFFF, total_64),
            (size, 1 << 32, size_64),
            (offset, 1 << 32, offset_64),
        )
        agree = all(short in (long, most - (most == 1 << 32)) for short, most, long in shorts)
        if mark != b"PK\x06\x06" or place != large or not agree:
            raise source.error(large, "the zip has records at its end that do not belong together")
        here, total, size, offset = here_64, total_64, size_64, offset_64
    if not here == total == count or offset + size != directory_end:
        raise source.error(end, "the directory of the zip is not where the record at its end says")


def start_of(source: Source, info: zipfile.ZipInfo) -> int:
    """The offset of the bytes of an entry, which depends on the length of its header."""
    header = bytes(source.read(info.header_offset, min(info.header_offset + _HEADER, source.size)))
    if len(header) < _HEADER or header[:4] != b"PK\x03\x04":
        raise source.error(info.header_offset, f"the header of the entry {info.orig_filename!a} should begin here")
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    start = info.header_offset + _HEADER + name + extra
    if start + info.compress_size > source.size:
        raise source.error(start, f"the entry {info.orig_filename!a} reaches beyond the end of the file")
    return start


def has_checksums(zip_entries: dict[str, zipfile.ZipInfo]) -> bool:
    """Whether a zip has checksums: PyTorch writes zeros after `set_crc32_options(False)`."""
    return any(info.CRC for info in zip_entries.values())


def stored(source: Source, info: zipfile.ZipInfo, checked: bool) -> Storage:
    """The storage of an uncompressed entry, with its checksum if the zip has checksums. PyTorch does not compress."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        raise source.error(
            info.header_offset, f"the entry {info.orig_filename!a} is compressed or encrypted, which PyTorch never does"
        )
    storage: Storage = LocatedStorage(source, lambda: start_of(source, info), info.file_size)
    storage.checksums = Crc32(info.CRC) if checked else None
    return storage


def read(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> StoredFile:
    """Opens the file; only the directory and the pickle are read."""
    prefix = _prefix(source, zip_entries)
    if f"{prefix}constants.pkl" in zip_entries:
        from leafwise.files.formats import torch_script

        return torch_script.read(source, zip_entries, prefix)
    return opened_zip(source, "PyTorch zip", read_content(source, zip_entries), zip_entries, {f"{prefix}data.pkl"})


def opened_zip(
    source: Source,
    format_name: str,
    content: Any,
    zip_entries: dict[str, zipfile.ZipInfo],
    known: Collection[str] = (),
) -> StoredFile:
    """The opened file. The entries that are `known` were read to the end."""
    opened = StoredFile(source, format_name, content)
    opened.without_checksums = () if has_checksums(zip_entries) else (f"{format_name}, written without CRC-32",)
    opened.unread_objects.append(partial(read_entries, source, zip_entries, known))
    opened.unread_objects.append(partial(note_code, source, zip_entries, known))
    return opened


def read_content(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> Any:
    """What the pickle in the file describes. Raises if PyTorch would load the file as TorchScript."""
    prefix = _prefix(source, zip_entries)
    if f"{prefix}constants.pkl" in zip_entries:
        raise source.error(0, "this is a TorchScript archive where a file of torch.save is expected")
    return unpickled(source, zip_entries, prefix, TABLE)


def _prefix(source: Source, zip_entries: dict[str, zipfile.ZipInfo]) -> str:
    """The folder in the zip that contains everything, with its slash."""
    pickles = [name for name in zip_entries if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise source.error(0, f"the zip has {len(pickles)} entries called data.pkl; a checkpoint has one")
    root = next(iter(zip_entries)).partition("/")[0] + "/"
    if pickles[0] != f"{root}data.pkl":
        raise source.error(
            0, f"PyTorch looks for {root}data.pkl in this zip, because its first entry is in that folder"
        )
    return root


def unpickled(
    source: Source,
    zip_entries: dict[str, zipfile.ZipInfo],
    prefix: str,
    table: Table,
    content_of: ContentOf = content_of,
    pickle: str = "data",
) -> Any:
    """What a pickle in the zip describes. Its storages are in a folder with the same name."""
    info = zip_entries[f"{prefix}{pickle}.pkl"]
    if info.file_size > MAX_PICKLE:
        raise source.error(
            info.header_offset, f"the pickle has {info.file_size:,} bytes; leafwise reads at most {MAX_PICKLE:,}"
        )
    checked = has_checksums(zip_entries)
    place = stored(source, info, checked)
    data = _bytes_of(place, "the pickle")
    big_endian = _byte_order(source, zip_entries, prefix, checked)
    storages: dict[str, Storage] = {}
    dtypes: dict[str, str] = {}

    def storage(reference: Any) -> TypedStorage:
        kind, key, count = storage_reference(reference)
        if dtypes.setdefault(key, kind.dtype) != kind.dtype:
            raise UnpicklingError(f"the storage {key!a} has two dtypes, {dtypes[key]} and {kind.dtype}")
        if key not in storages:
            entry = zip_entries.get(f"{prefix}{pickle}/{key}")
            if entry is None:
                raise UnpicklingError(f"the storage {key!a} is not in the zip")
            storages[key] = stored(source, entry, checked)
        held, need = storages[key], count * kind.itemsize
        if need > held.nbytes:
            raise UnpicklingError(f"the storage {key!a} should have {need:,} bytes but has {held.nbytes:,}")
        return TypedStorage(held, kind.dtype)

    machine = Unpickler(
        data,
        table,
        storage,
        lambda at, cause: source.error(place.start + at, cause),
        source.limits,
        content_of=content_of,
        names=source.pickle_names,
    )
    try:
        content = machine.run()
    except TruncatedPickleError:
        raise truncated_pickle(source, place.start + len(data)) from None
    if big_endian:
        raise source.error(
            0, "the file was written on a big-endian machine; load it with PyTorch and save it again here"
        )
    return content


def _bytes_of(place: Storage, label: str) -> bytes:
    data = bytes(place.read(0, place.nbytes))
    if isinstance(place.checksums, Crc32) and place.source.verify and zlib.crc32(data) != place.checksums.wanted:
        cause = f"{label} is damaged: its checksum does not match the one in the zip"
        raise ChecksumError(str(place.source.error(place.start, cause)))
    return data


def _byte_order(source: Source, zip_entries: dict[str, zipfile.ZipInfo], prefix: str, checked: bool) -> bool:
    info = zip_entries.get(prefix + "byteorder")
    if info is None or info.file_size > 16:
        return False
    return _bytes_of(stored(source, info, checked), "the byte order") == b"big"
