"""Names of files that `lw.save` refuses, because they belong to formats that it does not write."""

import os
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError, QueryError
from leafwise.files.formats.format import SAFETENSORS, format_of_suffix

# Suffixes of formats that leafwise does not read → whose files have them, and what writes such files.
_UNREAD = {
    **dict.fromkeys((".h5", ".hdf5", ".keras"), ("Keras", "Keras to write its own files")),
    ".onnx": ("ONNX", "torch.onnx.export for a program"),
}


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
