"""Names of files that `lw.save` refuses, because they belong to formats that it does not write."""

import os
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError, QueryError

# Suffix → whose files have it, and what writes such files.
_OTHERS = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), ("PyTorch", "torch.save for a pickle")),
    **dict.fromkeys((".pkl", ".pickle"), ("pickle", "pickle.dump for a pickle")),
    ".pt2": ("torch.export", "torch.export.save for a program"),
    ".npz": ("NumPy", "leafwise convert for an .npz file"),
    ".npy": ("NumPy", "numpy.save for a single array"),
    ".gguf": ("GGUF", "llama.cpp to convert a safetensors file to GGUF"),
    ".params": ("MXNet", "leafwise convert for a .params file"),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), ("Keras", "Keras to write its own files")),
    ".onnx": ("ONNX", "torch.onnx.export for a program"),
    ".msgpack": ("Flax", "Flax to write its own files"),
}


def check_name(path: str, format_name: Any, verb: str = "save") -> None:
    """Raises if a file of this name would be expected to be in another format than safetensors."""
    if format_name is not None and format_name != "safetensors":
        raise QueryError(f'format= takes "safetensors", "dcp" or "orbax", not {format_name!r}')
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _OTHERS and format_name is None:
        owner, other = _OTHERS[suffix.lower()]
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
