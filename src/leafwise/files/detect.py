"""Finds the format of a file from its content."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from leafwise.files import safetensors
from leafwise.files.disk import check_byte_order
from leafwise.files.source import Source
from leafwise.files.stored_file import StoredFile

# First bytes of files that people mistake for checkpoints → what these files are.
_MISTAKEN = (
    (b"version https://git-lfs", "this is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`"),
    (
        b"<!doctype",
        "this is an HTML page, perhaps an error page saved instead of the download; download the file again",
    ),
    (b"<html", "this is an HTML page, perhaps an error page saved instead of the download; download the file again"),
    (b"<?xml", "this is an XML page, perhaps an error message saved instead of the download; download the file again"),
    (b"\x89hdf", "this is an HDF5 file, as written by Keras, which leafwise does not read"),
    (b"\x1f\x8b", "this file is compressed with gzip; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "this file is compressed with zstd; decompress it first"),
    (b"bzh", "this file is compressed with bzip2; decompress it first"),
    (b"\xfd7zxz", "this file is compressed with xz; decompress it first"),
    (b"{", "this is JSON; to open an index of shards, give its folder, or a file whose name ends in .index.json"),
)


# First bytes → module and function that read the format. Imported when needed; most files are safetensors.
_FORMATS = (
    (b"GGUF", "gguf_file", "read"),
    (b"\x93NUMPY", "numpy_files", "read_npy"),
    ((0x112).to_bytes(8, "little") + bytes(8), "mxnet_params", "read"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "torch_legacy", "read"),
    *((bytes([0x80, protocol]), "bare_pickle", "read") for protocol in (2, 3, 4, 5)),
    # Protocols 0 and 1 have no magic number. This is how their dicts, lists, tuples and objects begin.
    *((begin, "bare_pickle", "read") for begin in (b"(dp", b"(lp", b"(tp", b"}q", b"]q", b"ccopy_reg\n", b"ctorch")),
)


def _format(name: str) -> Any:
    return import_module(f"leafwise.files.{name}")


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
    for magic, cause in _MISTAKEN:
        if start[: len(magic)].lower() == magic:
            raise source.error(0, cause)
    if start[:2] == b"PK":
        zips = _format("torch_zip")
        zip_entries = zips.entries(source)
        if any(name.rpartition("/")[2] == "data.pkl" for name in zip_entries):
            opened: StoredFile = zips.read(source, zip_entries)
        elif _format("torch_export").is_export(zip_entries):
            opened = _format("torch_export").read(source, zip_entries)
        else:
            opened = _format("numpy_files").read_npz(source, zip_entries)
        return opened
    for magic, module, read_it in _FORMATS:
        if start.startswith(magic):
            reader: Callable[[Source], StoredFile] = getattr(_format(module), read_it)
            return reader(source)
    if source.size > 512 and bytes(source.read(257, 262)) == b"ustar":
        raise source.error(
            0, "this is a tar archive, the format of PyTorch before 0.1.10; load it with PyTorch and save it again"
        )
    return safetensors.read(source)
