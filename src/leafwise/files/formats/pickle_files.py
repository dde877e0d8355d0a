"""Files that are pickles: as `pickle.dump` and joblib write them, and PyTorch's format before 1.6, in which five
pickles come before the storages."""

from contextlib import suppress
from functools import partial
from typing import Any

from leafwise.errors import FileError
from leafwise.files.arrays.stored import LocatedStorage, Storage
from leafwise.files.formats.format import TORCH_MAGIC
from leafwise.files.pickles.numpy_objects import JOBLIB_TABLE
from leafwise.files.pickles.pickle_objects import TruncatedPickleError, UnknownName, UnpicklingError
from leafwise.files.pickles.torch_objects import MAX_PICKLE, TABLE, TypedStorage, storage_reference
from leafwise.files.pickles.unpickler import Unpickler, truncated_pickle
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile

_FIRST = 1 << 16  # bytes that are read first; the pickles are rarely longer


def read(source: Source) -> StoredFile:
    """Opens a pickle; the bytes of long arrays are not read. Several pickles in one file are shown as a list."""
    machine = Unpickler(source, {**TABLE, **JOBLIB_TABLE}, None, source.error, source.limits, names=source.pickle_names)
    contents = []
    try:
        while machine.at < source.size:
            contents.append(machine.run())
    except TruncatedPickleError:
        raise truncated_pickle(source, source.size) from None
    joblib = any(module.startswith("joblib.") for module, _ in source.pickle_names)
    content = contents[0] if len(contents) == 1 else contents
    opened = StoredFile(source, "joblib" if joblib else "pickle", content)
    if len(contents) > 1:
        opened.unread_objects.append(partial(_read_with_one_memo, source))
    return opened


def _read_with_one_memo(source: Source) -> None:
    """Adds to the names what a program would look up that reads all pickles with one `pickle.Unpickler`: it keeps its
    memo, so that later pickles may refer to other entries."""
    table = {**TABLE, **JOBLIB_TABLE}
    limits, names = source.limits.anew(), source.pickle_names
    machine = Unpickler(source, table, None, source.error, limits, names=names, keeps_memo=True)
    with suppress(TruncatedPickleError, FileError):
        while machine.at < source.size:
            machine.run()


# -- PyTorch before 1.6 ----------------------------------------------------------------------------------------


def read_legacy(source: Source) -> StoredFile:
    """Opens the file; the storages themselves are not read."""
    length = min(_FIRST, source.size)
    limits = source.limits
    before = limits.bytes, limits.steps
    while True:
        data = bytes(source.read(0, length))
        try:
            return StoredFile(source, "PyTorch, before 1.6", _content(source, data))
        except TruncatedPickleError:
            if length >= min(source.size, MAX_PICKLE):
                raise truncated_pickle(source, length) from None
            length = min(length * 8, source.size)
            limits.bytes, limits.steps = before  # everything is read again


def legacy_content(source: Source) -> Any:
    """What a small file describes, such as a single storage in another file."""
    try:
        return _content(source, bytes(source.read(0, min(_FIRST, source.size))))
    except TruncatedPickleError:
        raise source.error(source.size, "the pickle ends early") from None


def _content(source: Source, data: bytes) -> Any:
    storages: dict[str, Storage] = {}
    starts: dict[str, int] = {}  # the offsets of the storages, which follow the pickles

    def storage(reference: Any) -> Any:
        if isinstance(reference, tuple) and len(reference) == 4 and reference[0] == "module":
            if not isinstance(reference[1], UnknownName):
                raise UnpicklingError("it contains the source code of a class that is not a name")
            return reference[1]  # its source code, which follows, is not used
        kind, key, count = storage_reference(reference)
        if len(reference) > 5 and reference[5] is not None:
            raise UnpicklingError(
                "it contains a view of a storage, which only PyTorch 0.2 wrote; load it with PyTorch and save it again"
            )
        nbytes = count * kind.itemsize
        if key not in storages:
            storages[key] = LocatedStorage(source, partial(starts.__getitem__, key), nbytes)
        if nbytes != storages[key].nbytes:
            raise UnpicklingError(f"the storage {key!a} is listed with two sizes")
        return TypedStorage(storages[key], kind.dtype)

    limits = source.limits
    names = source.pickle_names
    magic = TORCH_MAGIC.match(data)
    if magic is None:
        raise source.error(0, "it does not begin with the magic number of PyTorch")
    machine = Unpickler(data, TABLE, None, source.error, limits, at=magic.end(), names=names)
    if machine.run() != 1001:
        raise source.error(magic.end(), "the format version is not 1001, the only one that leafwise reads")
    system = machine.run()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise source.error(
            machine.at, "the file was written on a big-endian machine; load it with PyTorch and save it again here"
        )
    machine = Unpickler(data, TABLE, storage, source.error, limits, at=machine.at, names=names)
    content = machine.run()
    keys = Unpickler(data, TABLE, None, source.error, limits, at=machine.at, names=names)
    listed = keys.run()
    if (
        not isinstance(listed, list)
        or not all(isinstance(key, str) for key in listed)
        or set(listed) != set(storages)
        or len(set(listed)) != len(listed)
    ):
        raise source.error(machine.at, "the list of storages does not match the tensors")
    starts |= _starts(source, [(key, storages[key].nbytes) for key in listed], keys.at)
    return content


def _starts(source: Source, listed: list[tuple[str, int]], at: int) -> dict[str, int]:
    """The offset of each storage: in the file, the bytes of a storage follow its number of elements."""
    starts = {}
    for key, nbytes in listed:
        if at + 8 > source.size:
            raise source.error(at, f"the storage {key!a} should follow here; was the download cut off?")
        count = int.from_bytes(bytes(source.read(at, at + 8)), "little")
        size = nbytes // count if count else 1
        if count * size != nbytes or at + 8 + nbytes > source.size:
            raise source.error(at, f"the storage {key!a} should have {nbytes:,} bytes; was the download cut off?")
        starts[key] = at + 8
        at += 8 + nbytes
    if at != source.size:
        raise source.error(at, f"{source.size - at:,} bytes follow the last storage, where the file should end")
    return starts
