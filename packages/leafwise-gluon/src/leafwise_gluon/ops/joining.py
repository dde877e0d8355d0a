"""Joining and splitting arrays, inserting and deleting elements, over plain tensors."""

from typing import Any

import numpy
import torch

from leafwise_gluon.base import MXNetError
from leafwise_gluon.ops.neural_checks import axis_of
from leafwise_gluon.ops.shaping import owned


def concatenated(name: str, tensors: list[torch.Tensor], axis: Any) -> torch.Tensor:
    if axis is None:
        tensors, axis = [tensor.reshape(-1) for tensor in tensors], 0
    axis = axis_of(f"np.{name}", axis, tensors[0].ndim)
    try:
        return torch.cat(tensors, dim=axis)
    except RuntimeError as error:
        raise _do_not_fit(name, tensors) from error


def stacked(name: str, tensors: list[torch.Tensor], axis: Any) -> torch.Tensor:
    axis = axis_of(f"np.{name}", axis, tensors[0].ndim + 1)
    try:
        return torch.stack(tensors, dim=axis)
    except RuntimeError as error:
        raise _do_not_fit(name, tensors) from error


def _do_not_fit(name: str, tensors: list[torch.Tensor]) -> MXNetError:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    return MXNetError(f"np.{name}: the shapes {shapes} do not fit together")


def split(name: str, tensor: torch.Tensor, sections: Any, axis: int, even: bool) -> list[torch.Tensor]:
    """The pieces between positions, or a number of pieces of equal size (almost equal if not `even`)."""
    axis = axis_of(f"np.{name}", axis, tensor.ndim)
    size = tensor.shape[axis]
    if isinstance(sections, int | numpy.integer):
        if sections <= 0:
            raise ValueError(f"np.{name}: the number of sections must be larger than 0")
        if even and size % sections:
            raise ValueError("array split does not result in an equal division")
        small, larger = divmod(size, int(sections))
        lengths = [small + 1] * larger + [small] * (int(sections) - larger)
        ends = numpy.cumsum(lengths).tolist()
        starts = [0, *ends[:-1]]
    else:
        cuts = [int(cut) for cut in sections]
        if any(cut > size for cut in cuts):
            raise MXNetError(f"np.{name}: the positions {cuts} do not lie within an axis of size {size}")
        starts, ends = [0, *cuts], [*cuts, size]
    pieces = []
    for start, end in zip(starts, ends, strict=True):
        first, last, _ = slice(start, end).indices(size)
        pieces.append(owned(tensor.narrow(axis, first, max(last - first, 0))))
    return pieces


def positions_of(name: str, where: Any, size: int) -> Any:
    """Indices as a NumPy array of numbers from 0; a slice is written out."""
    if isinstance(where, slice):
        return numpy.arange(*where.indices(size))
    if not isinstance(where, torch.Tensor | int | numpy.integer):
        raise TypeError(f"np.{name} needs an integer, a slice or an array as positions, not {type(where).__name__}")
    if isinstance(where, torch.Tensor):
        where = where.detach().cpu().numpy()
    at = numpy.asarray(where)
    if at.dtype.kind not in "iu" and at.size:
        raise TypeError(f"np.{name} needs integers as positions, not {at.dtype}")
    return at.astype("int64")
