"""Arrays in files as MXNet saves them: its list format, and the npy and npz files of MXNet 2.x in NumPy mode."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch

from leafwise.core.work.progress import Count
from leafwise.errors import FileError
from leafwise.files import open_file
from leafwise.files.formats import mxnet_params, numpy_files
from leafwise.files.formats.array_files import write_file, write_values
from leafwise.files.formats.format import format_of_suffix
from leafwise.files.writing.item_writer import Item
from leafwise.files.writing.output import Output
from leafwise_gluon.arrays.dtypes import dtype_name, torch_dtype
from leafwise_gluon.base import MXNetError

_CHUNK = 1 << 24  # elements


def _no_progress(count: int) -> None:
    pass


def save_list(path: str, tensors: Mapping[str, torch.Tensor] | Sequence[torch.Tensor], numpy_shapes: bool) -> None:
    """Writes the list format: with names if a mapping is given. MXNet reads it in NumPy mode if `numpy_shapes`, and
    otherwise outside of it."""
    named = isinstance(tensors, Mapping)
    by_name = tensors if isinstance(tensors, Mapping) else {str(at): tensor for at, tensor in enumerate(tensors)}
    items = [_item(name, tensor, ".params") for name, tensor in by_name.items()]
    if not numpy_shapes:
        for item in items:
            if not item.shape or not all(item.shape):
                raise MXNetError(
                    f"cannot save {item.name} of shape {item.shape}: outside of NumPy mode, MXNet has no scalars and "
                    "no empty arrays; call npx.set_np() first"
                )
    mxnet_params.write(items, path, _no_progress, named and bool(items), numpy_shapes)


def save_npz(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    items = [_item(name, tensor, ".npz") for name, tensor in tensors.items()]
    numpy_files.write_npz(items, path, _no_progress)


def save_npy(path: str, tensor: torch.Tensor) -> None:
    item = _item("array", tensor, ".npz")

    def fill(output: Output, count: Count) -> None:
        output.write(numpy_files.npy_header(item))
        write_values(item, output.write, count)

    write_file([item], path, _no_progress, fill)


def load(path: str) -> "dict[str, torch.Tensor] | list[torch.Tensor]":
    """The arrays of a file in any format that leafwise reads: a dict, or a list if the file has no names for them."""
    try:
        opened = open_file(path)
    except FileError as error:
        raise MXNetError(str(error)) from error
    with closing(opened):
        if not opened.is_flat:
            raise MXNetError(f"{path}: this file does not contain a plain list of arrays; use lw.load")
        # MXNet 2.x gives the arrays of an npz file in the order of their names, whatever their order in the file.
        arrays = opened.content.items() if opened.format != "npz" else sorted(opened.content.items())
        tensors = {name: _tensor_of(array) for name, array in arrays}
    is_list = opened.is_numbered or opened.format == "npy"
    return list(tensors.values()) if is_list else tensors


def load_named(path: str) -> dict[str, torch.Tensor]:
    """The arrays of a file by their names."""
    loaded = load(path)
    if not isinstance(loaded, dict) and loaded:
        raise MXNetError(f"{path}: this file contains a list of {len(loaded)} arrays without names")
    return loaded if isinstance(loaded, dict) else {}


def _tensor_of(stored: Any) -> torch.Tensor:
    import numpy as np

    values = np.array(stored.read())
    shape, dtype = values.shape, torch_dtype(stored.spec.dtype)
    if not values.size:
        return torch.zeros(shape, dtype=dtype)
    return torch.from_numpy(values.reshape(-1).view(np.uint8)).view(dtype).reshape(shape)


def _item(name: str, tensor: torch.Tensor, suffix: str) -> Item:
    values = tensor.detach()
    dtype = dtype_name(values.dtype)
    written_as = format_of_suffix(suffix)
    if written_as is not None and (reason := written_as.cannot_store(dtype)):
        raise MXNetError(f"cannot save {name}: {reason}")
    return Item(name, tuple(values.shape), dtype, "parameter", (None, None), partial(_pieces, values))


def _pieces(tensor: torch.Tensor) -> Iterator[Any]:
    flat = tensor.contiguous().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        yield flat[start : start + _CHUNK].cpu().view(torch.uint8).numpy()
