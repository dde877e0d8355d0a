"""Checkpoint files, folders and URLs, opened as trees. Only headers are read until values are needed."""

import os
from collections.abc import Sequence
from contextlib import suppress

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.formats import detect
from leafwise.files.limits import LimitError, Limits
from leafwise.files.sources.folder import INDEX, Folder, folder_of, is_index, opened
from leafwise.files.sources.remote import is_url, is_web
from leafwise.files.sources.source import Source, closed_on_error
from leafwise.files.stored_file import StoredFile


def open_file(
    target: str | os.PathLike[str],
    verify: bool = True,
    max_bytes: int | None = None,
    max_steps: int | None = None,
    max_download: int | None = None,
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
    limits = Limits(max_bytes, max_steps, max_download, strict)
    for _ in range(_PATIENCE):
        before = _stamps_of(name)
        try:
            return _open_file(name, verify, limits.anew())
        except FileError as error:
            # The file vanished while it was being opened: a save has just replaced it. Try again.
            if is_url(name) or not isinstance(error.__cause__, FileNotFoundError) or _stamps_of(name) == before:
                raise
    return _open_file(name, verify, limits)


def open_files(
    targets: "Sequence[str | os.PathLike[str]]",
    max_bytes: int | None = None,
    max_steps: int | None = None,
    max_download: int | None = None,
    strict: bool | None = None,
) -> StoredFile:
    """Opens the files of several processes as one checkpoint."""
    from leafwise.files.folders import rank_files

    names = [os.fspath(target) for target in targets]
    if not names:
        raise FileError("cannot open an empty list of files")
    limits = Limits(max_bytes, max_steps, max_download, strict)
    sources: list[Source] = []
    try:
        with closed_on_error(sources):
            for name in names:
                location = opened(name, limits, verify=True)
                if isinstance(location, Folder):
                    raise FileError(f"cannot open {shown_file(name)} in a list: it is a folder; a list takes files")
                sources.append(location)
        return rank_files.read_files(sources)
    except LimitError as error:
        raise FileError(f"{shown_file(names[0])}: {error}") from error


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
    try:
        location = opened(name, limits, verify)
    except FileError as error:
        if not is_url(name) or is_web(name) or is_index(name) or not isinstance(error.__cause__, FileNotFoundError):
            raise
        try:  # a checkpoint in several files
            name += INDEX
            location = opened(name, limits, verify)
        except FileError:
            raise error from error.__cause__
    if isinstance(location, Folder):
        from leafwise.files.folders import layout

        return layout.read(location)
    if is_index(name):
        from leafwise.files.folders import shards

        return shards.read_index(location, folder_of(name, limits, verify))
    location.limits.fit(location.size)
    return detect.read(location)
