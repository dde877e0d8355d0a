"""Parameters at rest: files as the same tree, with nothing read but the header."""

import os
from pathlib import Path
from typing import BinaryIO

from leafwise.errors import FileError
from leafwise.files import safetensors
from leafwise.files.home import StoredFile

# What people mistake for a checkpoint, by its first bytes.
_MISTAKEN = (
    (b"version https://git-lfs", "it is a Git LFS pointer; `git lfs pull` fetches the file itself"),
    (b"<!DOCTYPE", "it is an HTML page, perhaps an error page saved in place of a download"),
    (b"<html", "it is an HTML page, perhaps an error page saved in place of a download"),
    (b"PK\x03\x04", "it is a zip archive, as PyTorch's .pt and NumPy's .npz are; leafwise reads safetensors so far"),
    (b"GGUF", "it is a GGUF file; leafwise reads safetensors so far"),
)


def open_file(path: str | os.PathLike[str]) -> StoredFile:
    """Opens a file by what it holds, whatever it is called, and reads its header."""
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            start = file.read(64)
            file.seek(0)
            return _read(name, file, start)
    except OSError as error:
        raise FileError(f"cannot open {name!r}: {error.strerror or error}") from error


def _read(name: str, file: BinaryIO, start: bytes) -> StoredFile:
    for magic, cause in _MISTAKEN:
        if start[: len(magic)].lower() == magic.lower():
            raise FileError(f"{name!r} at byte 0: {cause}")
    return safetensors.read(name, file)
