"""Reads a new file back before it replaces the old one, so that an unreadable file never replaces a good one."""

import os
from collections.abc import Set

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.folders import shards
from leafwise.files.formats import detect
from leafwise.files.sources.folder import INDEX, StagedFolder
from leafwise.files.writing.output import Output


def check_readable(path: str, staged: dict[str, Output], arrays: Set[str], values: Set[str] = frozenset()) -> None:
    """Raises unless the new files can be opened as users will open them, and contain arrays and plain values with
    exactly these names. `staged` maps the final paths to the files; `path` is the one to open."""
    files = {os.path.basename(output.path): output.source for output in staged.values()}
    folder = StagedFolder(os.path.dirname(path), files)
    name = os.path.basename(path)
    try:
        if path in staged:
            opened = detect.read(folder.open(name))
        else:
            opened = shards.read_index(folder.open(name + INDEX), folder)
    except FileError as error:
        raise FileError(f"the new file cannot be read back, so nothing was replaced: {error}") from error
    try:
        plain_names = opened.record.scalars.keys() if opened.record is not None else frozenset()
        if opened.content.keys() != arrays or plain_names != values:
            raise FileError(f"cannot write {shown_file(path)}: the new file has the wrong names; nothing was replaced")
    finally:
        opened.close()
