"""Checkpoint files, folders and URLs, opened as trees. Only headers are read until values are needed."""

import os
from contextlib import suppress

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files import detect
from leafwise.files.folder import INDEX, Folder, opened
from leafwise.files.limits import LimitError, Limits
from leafwise.files.remote import is_url
from leafwise.files.stored_file import StoredFile


def open_file(
    target: str | os.PathLike[str],
    verify: bool = True,
    max_bytes: int | None = None,
    max_steps: int | None = None,
    strict: bool | None = None,
) -> StoredFile:
    """Opens a file, a folder of files, or a URL, and reads the header. The format is recognized by the content, not by
    the name. If the header has checksums, they are compared. A checkpoint in several files can also be opened by the
    name it was saved under."""
    name = os.fspath(target)
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise FileError(f"cannot open {shown_file(name)}: this is not a valid file name") from error
    limits = Limits(max_bytes, max_steps, strict)
    for _ in range(_PATIENCE):
        before = _stamps_of(name)
        try:
            return _open_file(name, verify, limits.anew())
        except FileError as error:
            # The file vanished while it was being opened: a save has just replaced it. Try again.
            if is_url(name) or not isinstance(error.__cause__, FileNotFoundError) or _stamps_of(name) == before:
                raise
    return _open_file(name, verify, limits)


_PATIENCE = 100  # attempts at opening a checkpoint that is being replaced


def _stamps_of(name: str) -> list[tuple[int, ...]]:
    """Identity, size and time of the file with this name and of its index, to notice when they are replaced."""
    stamps: list[tuple[int, ...]] = []
    for path in (name, _index_of(name)):
        with suppress(OSError, ValueError):
            status = os.stat(path)
            stamps.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return stamps


def _index_of(name: str) -> str:
    """The path that the index has if the checkpoint with this name was saved in several files."""
    return (name if "\0" in name else os.path.realpath(name)) + INDEX


def _open_file(name: str, verify: bool, limits: Limits) -> StoredFile:
    try:
        return _read(name, verify, limits)
    except LimitError as error:
        raise FileError(f"{shown_file(name)}: {error}") from error


def _read(name: str, verify: bool, limits: Limits) -> StoredFile:
    if not is_url(name) and not os.path.exists(name) and os.path.exists(_index_of(name)):
        name = _index_of(name)
    location = opened(name)
    location.verify, location.limits = verify, limits
    if isinstance(location, Folder):
        if ".metadata" in location.names:
            from leafwise.files import dcp

            return dcp.read(location)
        from leafwise.files import shards

        return shards.read(location)
    if name.endswith(INDEX):
        from leafwise.files import shards

        folder = opened_folder(name)
        folder.verify, folder.limits = verify, limits
        return shards.read_index(location, folder)
    return detect.read(location)


def opened_folder(name: str) -> Folder:
    """The folder that contains a file."""
    from leafwise.files.remote import remote

    if is_url(name):
        parent = name.rpartition("/")[0]
        files, inside = remote(parent)
        return Folder(parent, files, inside)
    return Folder(os.path.dirname(name) or ".")
