"""Finds the format of a file from its content."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from leafwise.files.formats import not_checkpoints, safetensors
from leafwise.files.sources.disk import check_byte_order
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile

# First bytes → module and function that read the format. Imported when needed; most files are safetensors.
_FORMATS = (
    (b"GGUF", "gguf_file", "read"),
    (b"\x93NUMPY", "numpy_files", "read_npy"),
    ((0x112).to_bytes(8, "little") + bytes(8), "mxnet_params", "read"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "torch_legacy", "read"),
    *((bytes([0x80, protocol]), "bare_pickle", "read") for protocol in (2, 3, 4, 5)),
)
# Protocols 0 and 1 have no magic number. This is how their dicts, lists, tuples, names and objects begin.
_OLD_PICKLE = re.compile(
    rb"[}\]]q|c[\w.]+\n[\w.]+\n|\((?:[dlt]p?\d*\n?|[SV].*\n|I\d+\n|[ci][\w.]+\n|[K-MGJ]|[}\]]q|U|X)"
)


def _format(name: str) -> Any:
    return import_module(f"leafwise.files.formats.{name}")


def read(source: Source) -> StoredFile:
    """Opens a file in any format, whatever its name."""
    try:
        return _read(source)
    except BaseException:
        source.close()
        raise


def _read(source: Source) -> StoredFile:
    check_byte_order()
    if not source.size:
        raise source.error(0, "the file is empty; was the download cut off?")
    start = bytes(source.read(0, min(64, source.size)))
    if safetensors.begins(start, source.size):  # checked first: its leading length may look like any magic number
        return safetensors.read(source)
    if cause := not_checkpoints.by_first_bytes(start):
        raise source.error(0, cause)
    if start[:2] == b"PK":
        zips = _format("torch_zip")
        zip_entries = zips.entries(source)
        if any(name.rpartition("/")[2] == "data.pkl" for name in zip_entries):
            opened: StoredFile = zips.read(source, zip_entries)
        elif _format("torch_export").is_export(zip_entries):
            opened = _format("torch_export").read(source, zip_entries)
        elif cause := not_checkpoints.by_zip_entries(zip_entries):
            raise source.error(0, cause)
        else:
            opened = _format("numpy_files").read_npz(source, zip_entries)
        return opened
    for magic, module, read_it in _FORMATS:
        if start.startswith(magic):
            reader: Callable[[Source], StoredFile] = getattr(_format(module), read_it)
            return reader(source)
    if _OLD_PICKLE.match(start):
        return _format("bare_pickle").read(source)  # type: ignore[no-any-return]
    if cause := not_checkpoints.by_content(bytes(source.read(0, min(not_checkpoints.SAMPLE, source.size)))):
        raise source.error(0, cause)
    return safetensors.read(source)
