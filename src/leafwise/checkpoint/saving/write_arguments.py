"""What the verbs that write checkpoints have in common: where to, under which names, in which sizes, with which
metadata, and the writer of each format."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from leafwise.core.path import shown_file
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import Count
from leafwise.errors import FileError, QueryError
from leafwise.files.dcp import writer as dcp_writer
from leafwise.files.formats.format import SAFETENSORS, format_of_suffix
from leafwise.files.orbax import writer as orbax_writer
from leafwise.files.record import KEY
from leafwise.files.sources.folder import INDEX, MODEL
from leafwise.files.sources.remote import is_url
from leafwise.files.writing import checkpoint_writer
from leafwise.files.writing.item_writer import Checkpoint

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

_FOLDERS = {"dcp": "a distributed checkpoint", "orbax": "an Orbax checkpoint"}  # formats that are folders

# Suffixes of formats that leafwise does not read → whose files have them, and what writes such files.
_UNREAD = {
    **dict.fromkeys((".h5", ".hdf5", ".keras"), ("Keras", "Keras to write its own files")),
    ".onnx": ("ONNX", "torch.onnx.export for a program"),
}


def target_path(path: Any) -> str:
    """The path of the file to write, or its URL."""
    name = _given_path(path)
    if is_url(name):
        from leafwise.files.writing.remote_destination import local_path, remote_target

        if (here := local_path(name)) is None:
            return _without_index(remote_target(name))
        name = here
    if os.path.isdir(name):
        name = os.path.join(name, MODEL)
    elif name.endswith(("/", os.sep)):
        raise FileError(f"cannot write {shown_file(name)}: there is no such folder")
    return _without_index(name)


def _without_index(name: str) -> str:
    target = name.removesuffix(INDEX)
    if target.endswith(INDEX) or not os.path.basename(target):
        raise FileError(f"cannot write {shown_file(name)}: names that end in {INDEX} are for the index of shards")
    return target


def target_folder(path: Any, shard_size: Any, format_name: str) -> str:
    """The path of the folder to write a distributed checkpoint or an Orbax checkpoint into."""
    name = _given_path(path)
    if is_url(name):
        raise FileError(
            f'cannot save to {shown_file(name)}: format="{format_name}" writes to local folders only; save to a '
            "folder, then upload it, or save as safetensors"
        )
    if shard_size is not None:
        instead = "each process writes one file" if format_name == "dcp" else "tensorstore decides what is in a file"
        raise QueryError(f'shard_size= is for safetensors; with format="{format_name}", {instead}')
    if os.path.lexists(name) and not os.path.isdir(name):
        raise FileError(
            f"cannot write {shown_file(name)}: {_FOLDERS[format_name]} is a folder, and this is a file; choose another "
            "name"
        )
    return name.rstrip("/" + os.sep) or name


def check_name(path: str, format_name: Any, verb: str = "save") -> None:
    """Raises if a file of this name would be expected to be in another format than safetensors."""
    if format_name is not None and format_name != "safetensors":
        raise QueryError(f'format= takes "safetensors", "dcp" or "orbax", not {format_name!r}')
    stem, suffix = os.path.splitext(path)
    if not suffix or format_name is not None or suffix.lower() in SAFETENSORS.suffixes:
        return
    read = format_of_suffix(suffix)
    owner, other = (read.tool, read.instead_of_save) if read is not None else _UNREAD.get(suffix.lower(), ("", ""))
    if owner:
        if verb != "save":
            raise FileError(
                f"cannot write {shown_file(path)}: {suffix} is a suffix of {owner} files, and lw.{verb} writes "
                f"safetensors; use {shown_file(stem + '.safetensors')}, add format='safetensors' to write safetensors "
                f"under this name, or use {other}"
            )
        raise FileError(
            f"cannot save {shown_file(path)}: {suffix} is a suffix of {owner} files, and lw.save writes safetensors; "
            f'use lw.save(source, {shown_file(stem + ".safetensors")}), add format="safetensors" to write '
            f"safetensors under this name, or use {other}"
        )


def _given_path(path: Any) -> str:
    name = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else None
    with suppress(UnicodeEncodeError):
        if isinstance(name, str) and name and "\0" not in name and os.fsencode(name):
            return name
    given = repr(path) if isinstance(path, str | bytes | None) else type(path).__name__
    raise FileError(f"path= takes the path of a file or a folder, not {given}")


def byte_count(size: int | str) -> int:
    """A size as a number of bytes.

    >>> byte_count("5GB"), byte_count("200 MiB"), byte_count(10)
    (5000000000, 209715200, 10)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?I?)B?\s*", str(size).upper())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS or match[1].count(".") > 1:
        raise QueryError(f'shard_size= takes a number of bytes or a string such as "5GB", not {size!r}')
    try:
        count = int(float(match[1]) * _UNITS[match[2]])
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise QueryError(f"shard_size= must be at least 1 byte, not {size!r}")
    return count


def header_metadata(given: Any, format_name: str | None) -> dict[str, str]:
    """The metadata of a new file."""
    if given is not None and not isinstance(given, Mapping):
        raise QueryError(f"metadata= takes a dict of strings, not {given!r}")
    metadata = dict(given or {})
    if format_name in _FOLDERS:
        metadata = {key: value for key, value in metadata.items() if (key, value) != ("format", "pt")}
    else:
        metadata = {"format": "pt", **metadata}  # Hugging Face does not load a file without it
    for key, value in metadata.items():
        if {type(key), type(value)} != {str}:
            raise QueryError(
                f"metadata= takes strings only, not {key!r}: {value!r}; put numbers into the dict that you save"
            )
        if not is_text(key + value):
            raise QueryError(f"metadata= {key!a} contains an unpaired surrogate, which cannot be written as UTF-8")
        if key == KEY:
            raise QueryError(f"the metadata key {KEY!r} is reserved for leafwise; choose another key")
    return metadata


def written(
    checkpoint: Checkpoint,
    format_name: str | None,
    target: str,
    shard_size: int | None,
    progress: Count,
    workers: Workers | None = None,
) -> str:
    """Writes a checkpoint; returns the path."""
    if format_name == "dcp":
        return dcp_writer.write(checkpoint, target, progress, workers)
    if format_name == "orbax":
        return orbax_writer.write(checkpoint, target, progress)
    return checkpoint_writer.write(checkpoint, target, shard_size, progress, workers)


def is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
