"""Indexing with MXNet's rules, over plain tensors.

Integers and slices give a view if the elements are contiguous, and a copy otherwise; index arrays and masks give a
copy. "Contiguous" means in row-major order, whatever strides the tensor has.
"""

import math
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.arrays.overlap import shares_memory
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1


def read(tensor: torch.Tensor, key: Any) -> torch.Tensor | None:
    """The part that a key selects, as a view or as a copy; None if it is the whole array."""
    if tensor.ndim == 0 and key != ():
        raise IndexError("scalar tensor can only accept `()` as index")
    if isinstance(key, slice):
        if key.start is None and key.stop is None and key.step in (None, 1):
            return None
        if key.step in (None, 1):
            _check_slice(key, tensor.shape[0])
        if key.step not in (None, 1) and not is_v1():
            return _basic(tensor, (key,))[0].clone()
    elif isinstance(key, tuple) and not key:
        return None
    parts = _expanded(key, tensor)
    if all(_is_basic(part) for part in parts):
        part, is_view = _basic(tensor, parts)
        return part if is_view else part.clone()
    return _advanced(tensor, parts)


class AssignedShapeError(MXNetError):
    """Values cannot be broadcast to the part that they are assigned to."""


def write(tensor: torch.Tensor, key: Any, value: Any, reads_while_writing: bool = False) -> None:
    """Assigns to the part that a key selects; values are cast to the array's dtype and broadcast.

    `reads_while_writing`: MXNet reads values that overlap the part from memory that it has already changed, as it does
    for NDArrays. That is refused.
    """
    if tensor.ndim == 0 and key != ():
        raise IndexError("scalar tensor can only accept `()` as index")
    _check_masks(key, value)
    parts = _expanded(key, tensor)
    if all(_is_basic(part) for part in parts):
        for part, size in zip(_without_new(parts), tensor.shape, strict=True):
            if isinstance(part, slice):
                _check_slice(part, size)
    source = _as_source(value, tensor)
    if any(part is None for part in parts) and isinstance(value, torch.Tensor | numpy.ndarray):
        raise refusal("ndarray[key with None] = array", "leave None out of the key, and reshape the array instead")
    if all(_is_basic(part) for part in parts):
        target, flipped = _cut(tensor, parts)
        if reads_while_writing:
            _check_read_order(target, flipped, value)
        shape = target[_dropping(parts)].shape if parts else target.shape
        fitting = _fitted(source, shape)
        if flipped:  # slices with a negative step are assigned forward, from reversed values
            fitting = torch.flip(fitting[_adding(parts)], flipped)
            target.copy_(fitting)
        else:
            (target[_dropping(parts)] if parts else target).copy_(fitting)
        return
    positions = _advanced(torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape), parts)
    flat, values = positions.reshape(-1), _fitted(source, positions.shape).reshape(-1)
    if not source.ndim:
        tensor.put_(flat, values)
        return
    # If a position occurs twice, the last value wins; PyTorch leaves that undefined.
    _, from_the_end = numpy.unique(flat.flip(0).cpu().numpy(), return_index=True)
    last = torch.from_numpy(len(flat) - 1 - from_the_end).to(flat.device)
    tensor.put_(flat[last], values[last])


def _check_slice(part: slice, size: int) -> None:
    start, stop, step = part.indices(size)
    if (start > stop) if step > 0 else (start < stop):
        raise MXNetError(f"ndarray[{start}:{stop}:{step}]: the slice ends before it begins")


# -- keys ----------------------------------------------------------------------------------------------------


def _is_basic(part: Any) -> bool:
    return part is None or isinstance(part, int | slice)


def _expanded(key: Any, tensor: torch.Tensor) -> tuple[Any, ...]:
    """The key as a tuple with one entry for each axis, and None for each new axis."""
    raw_parts = list(key) if isinstance(key, tuple) else [key]
    if len({part.shape for part in raw_parts if isinstance(part, torch.Tensor) and part.ndim}) > 1:
        raise refusal("indexing an ndarray with arrays of different shapes", "use np.broadcast_to on them first")
    parts = [_part(part, alone=not isinstance(key, tuple)) for part in raw_parts]
    taken = sum(part.ndim if _is_mask(part) else 1 for part in parts if part is not None and part is not Ellipsis)
    if taken > tensor.ndim:
        raise IndexError(f"too many indices ({taken}) for array with {tensor.ndim} dimensions")
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("Cannot use more than one ellipsis (`...`) for indexing")
    at = dots[0] if dots else len(parts)
    parts[at : at + len(dots)] = [slice(None)] * (tensor.ndim - taken)
    return tuple(parts)


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype == torch.bool


def _part(part: Any, alone: bool) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, bool | numpy.bool_):
        raise refusal("ndarray[True] and ndarray[False]", "use np.expand_dims(x, 0)")
    if isinstance(part, int | numpy.integer):
        return int(part)
    if isinstance(part, torch.Tensor):
        if part.ndim == 0 and part.dtype != torch.bool:
            return int(part)
        return part if part.dtype == torch.bool else part.long()
    if isinstance(part, list | tuple | range) or (isinstance(part, numpy.ndarray) and part.ndim):
        return _index_array(part, alone)
    raise ValueError(f"NDArray does not support slicing with key {part} of type {type(part)}.")


def _index_array(part: Any, alone: bool) -> torch.Tensor:
    if isinstance(part, list | tuple) and any(isinstance(item, torch.Tensor | slice) or item is None for item in part):
        raise refusal("indexing an ndarray with a list of arrays or slices", "use a tuple, or np.stack")
    values = numpy.asarray(part)
    if values.dtype == bool:
        if not alone:
            raise refusal("indexing an ndarray with a Python or NumPy mask and other indices together", _AS_MASK)
        return torch.from_numpy(values.copy())
    if values.size and values.dtype.kind not in "iuf":
        raise ValueError(f"NDArray does not support slicing with key {part} of type {type(part)}.")
    return torch.from_numpy(values.astype("int64"))


_AS_MASK = "convert the mask with np.array(mask, dtype='bool')"


def _check_masks(key: Any, value: Any) -> None:
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, list | tuple | numpy.ndarray) and numpy.asarray(part).dtype == bool:
            raise refusal("ndarray[mask] = value with a Python or NumPy mask", _AS_MASK)
        if _is_mask(part) and isinstance(value, list | tuple | numpy.ndarray):
            raise NotImplementedError("the Gluon front end does not support ndarray[mask] = list; use np.array(values)")


# -- integers and slices ---------------------------------------------------------------------------------------


def _basic(tensor: torch.Tensor, parts: tuple[Any, ...]) -> tuple[torch.Tensor, bool]:
    """The part, and whether MXNet would give a view of it."""
    cut, flipped = _cut(tensor, parts)
    cut = torch.flip(cut, flipped) if flipped else cut
    return cut[_dropping(parts)], _is_contiguous(parts, tensor.shape)


def _cut(tensor: torch.Tensor, parts: tuple[Any, ...]) -> tuple[torch.Tensor, list[int]]:
    """The tensor sliced along every axis, without dropping or adding axes; and the axes still to be reversed."""
    cuts, flipped = [], []
    for axis, (part, size) in enumerate(zip(_without_new(parts), tensor.shape, strict=False)):
        start, length, step = _span(part, size, axis)
        if length == 0:
            cuts.append(slice(0, 0))
        elif step > 0 or length == 1:
            cuts.append(slice(start, start + abs(step) * (length - 1) + 1, abs(step)))
        else:
            last = start + step * (length - 1)
            cuts.append(slice(last, start + 1, -step))
            flipped.append(axis)
    return tensor[tuple(cuts)], flipped


def _span(part: Any, size: int, axis: int) -> tuple[int, int, int]:
    """The start, length and step of a part of a key."""
    if isinstance(part, int):
        if not -size <= part < size:
            raise IndexError(f"index {part} is out of bounds for axis {axis} with size {size}")
        return part % size, 1, 1
    start, stop, step = part.indices(size)
    return start, len(range(start, stop, step)), step


def _without_new(parts: tuple[Any, ...]) -> list[Any]:
    return [part for part in parts if part is not None]


def _dropping(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key that turns the axes of `_cut` into those of the result."""
    return tuple(0 if isinstance(part, int) else None if part is None else slice(None) for part in parts)


def _adding(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The opposite key: from the axes of the result to those of `_cut`."""
    return tuple(None if isinstance(part, int) else 0 if part is None else slice(None) for part in parts)


def _is_contiguous(parts: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Whether the elements are contiguous: on every axis before a sliced one, a single element is selected."""
    spans = [_span(part, size, axis) for axis, (part, size) in enumerate(zip(_without_new(parts), shape, strict=False))]
    if math.prod(length for _, length, _ in spans) <= 1:
        return True
    is_cut = False
    for (_, length, step), size in zip(reversed(spans), reversed(shape[: len(spans)]), strict=True):
        if length > 1 and (step != 1 or is_cut):
            return False
        is_cut = is_cut or length < size
    return True


# -- index arrays and masks ------------------------------------------------------------------------------------


def _advanced(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    if any(part is None for part in parts):
        raise refusal("indexing an ndarray with arrays and None together", "index first, then use np.expand_dims")
    # Slices are applied first, which leaves whole axes, arrays and integers.
    before: list[Any] = []
    for part in parts:
        before += [part if isinstance(part, slice) else slice(None)] * (part.ndim if _is_mask(part) else 1)
    cut, flipped = _cut(tensor, tuple(before))
    if tensor.numel() and not cut.numel():
        raise MXNetError("cannot index an ndarray with arrays and an empty slice together")
    cut = torch.flip(cut, flipped) if flipped else cut
    arrays = [part for part in parts if isinstance(part, torch.Tensor)]
    rest = tuple(slice(None) if isinstance(part, slice) else part for part in parts)
    # PyTorch applies integers first; NumPy treats them as index arrays, which differs where slices separate them.
    whole = [at for at, part in enumerate(rest) if not isinstance(part, slice)]
    is_apart = len(whole) > 1 and whole[-1] - whole[0] >= len(whole) and any(isinstance(rest[at], int) for at in whole)
    has_mask = any(_is_mask(array) for array in arrays)
    if is_apart and has_mask:
        raise refusal("indexing an ndarray with integers and masks on both sides of a slice", "index in two steps")
    for axis, (part, size) in enumerate(zip(rest, cut.shape, strict=False)):
        if isinstance(part, int) and not has_mask:
            _span(part, size, axis)
    if is_apart:
        rest = tuple(torch.full_like(arrays[0], part) if isinstance(part, int) else part for part in rest)
    return cut[rest]


# -- values ------------------------------------------------------------------------------------------------------


def _check_read_order(target: torch.Tensor, flipped: list[int], value: Any) -> None:
    """Raises if values would be read after they were overwritten. They are not if they lie behind the target."""
    if not isinstance(value, torch.Tensor) or value.numel() < 2 or not shares_memory(target, value):
        return
    if flipped or target.data_ptr() > value.data_ptr():
        raise refusal("NDArray[key] = an overlapping part of the same array", "assign a copy of the part")


def _as_source(value: Any, target: torch.Tensor) -> torch.Tensor:
    if value is None:
        raise refusal("ndarray[key] = None", "assign np.nan")
    if isinstance(value, torch.Tensor):
        if target.dtype == torch.bool and value.dtype != torch.bool:
            raise refusal(f"assigning {dtype_name(value.dtype)} to an ndarray of bool", "assign value != 0")
        source = value.detach().to(target.dtype)
        overlaps = source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        return source.clone() if overlaps else source
    if isinstance(value, bool | int | float | numpy.generic):
        number = numpy.asarray(value)
    else:
        number = numpy.asarray(_unwrapped(value))
    if number.dtype.kind not in "biuf":
        raise TypeError(
            f"mxnet.np.ndarray does not support assignment with non-array-like object {value} of type {type(value)}"
        )
    return torch.from_numpy(numpy.array(number)).to(target.device).to(target.dtype)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return [_unwrapped(item) for item in value] if isinstance(value, list | tuple) else value


def _fitted(source: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Broadcasts to a shape; if there are too many axes, leading ones of size one are dropped."""
    while source.ndim > len(shape) and source.shape[0] == 1:
        source = source[0]
    try:
        return source.expand(shape)
    except RuntimeError as error:
        shapes = f"values of shape {tuple(source.shape)} to an ndarray of shape {tuple(shape)}"
        raise AssignedShapeError(f"cannot assign {shapes}") from error
