"""Parameters at rest: files, folders and URLs as the same tree, with nothing read but the headers."""

import os

from leafwise.files import detect
from leafwise.files.folder import INDEX, Folder, opened
from leafwise.files.home import StoredFile


def open_file(target: str | os.PathLike[str]) -> StoredFile:
    """Opens a file, a folder of them, or a URL, by what it holds, and reads its header."""
    name = os.fspath(target)
    found = opened(name)
    if isinstance(found, Folder):
        if ".metadata" in found.names:
            from leafwise.files import dcp

            return dcp.read(found)
        from leafwise.files import shards

        return shards.read(found)
    if name.endswith(INDEX):
        from leafwise.files import shards

        return shards.read_index(found, opened_folder(name))
    return detect.read(found)


def opened_folder(name: str) -> Folder:
    """The folder that a file lies in."""
    from leafwise.files.source import is_url, remote

    if is_url(name):
        front = name.rpartition("/")[0]
        files, inside = remote(front)
        return Folder(front, files, inside)
    return Folder(os.path.dirname(name) or ".")
