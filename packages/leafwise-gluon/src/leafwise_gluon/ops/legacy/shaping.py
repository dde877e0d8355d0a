"""Changes of shape of nd arrays."""

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.modes import is_np_shape
from leafwise_gluon.ops import shaping
from leafwise_gluon.ops.neural_checks import axis_of, check_count
from leafwise_gluon.ops.shaping import owned


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Several values as a tuple, with plain integers instead of NumPy's."""
    values = value if isinstance(value, tuple | list | numpy.ndarray) else (value,)
    return tuple(int(item) if isinstance(item, numpy.integer) else item for item in values)


class ShapeSizeError(MXNetError):
    """A shape has another number of elements than the array."""


# -- reshape -----------------------------------------------------------------------------------------------------


def target_shape(old: Sequence[int], codes: Sequence[int], reverse: Any = False) -> tuple[int, ...]:
    """The shape that MXNet's codes stand for.

    0 keeps an axis, -1 is what is left, -2 keeps all the remaining axes, -3 merges two axes, and -4 splits one into the
    two sizes that follow. With `reverse`, axes are counted from the last one.

    >>> from leafwise_gluon.ops.legacy.shaping import target_shape
    >>> target_shape((2, 3, 4), (-3, 0)), target_shape((2, 3, 4), (-4, 1, 2, -2))
    ((6, 4), (1, 2, 3, 4))
    """
    if reverse:
        return tuple(reversed(target_shape([*reversed(old)], [*reversed(codes)])))
    new: list[int] = []
    at, position = 0, 0
    while position < len(codes):
        code = codes[position]
        position += 1
        if code in (0, -3, -4) and at + (code == -3) >= len(old):
            raise MXNetError(f"nd.reshape: the shape {tuple(old)} has no axis for code {code} of {tuple(codes)}")
        if code == 0:
            new.append(old[at])
            at += 1
        elif code == -2:
            new += old[at:]
            at = len(old)
        elif code == -3:
            new.append(old[at] * old[at + 1])
            at += 2
        elif code == -4:
            new += _split(old[at], codes[position : position + 2])
            at, position = at + 1, position + 2
        elif code >= -1:
            new.append(code)
            at += 1
        else:
            raise MXNetError(f"nd.reshape: {code} is not a code for a shape")
    return tuple(new)


def _split(size: int, parts: Sequence[int]) -> list[int]:
    if len(parts) != 2 or parts.count(-1) == 2:
        raise MXNetError("nd.reshape: two sizes must follow the code -4, at most one of them -1")
    first, second = (size // abs(parts[1 - at]) if part == -1 else part for at, part in enumerate(parts))
    if first * second != size:
        raise MXNetError(f"nd.reshape: an axis of size {size} cannot be split into {first} and {second}")
    return [first, second]


def reshaped_view(tensor: torch.Tensor, shape: Sequence[Any], reverse: Any = False) -> torch.Tensor:
    """The same memory in another shape."""
    if any(isinstance(size, bool) or not isinstance(size, int) for size in shape):
        raise TypeError(f"nd.reshape: a shape must consist of integers, not {tuple(shape)}")
    new = target_shape(tensor.shape, shape, reverse)
    if not new and tensor.requires_grad and not is_np_shape():
        raise MXNetError("nd.reshape: the gradient of an array of shape () needs mx.util.np_shape()")
    sizes = f"an array of shape {tuple(tensor.shape)} to {tuple(shape)}"
    try:
        result = tensor.reshape(new)
    except RuntimeError as error:
        raise ShapeSizeError(f"nd.reshape: cannot reshape {sizes}") from error
    if result.numel() and result.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
        raise refusal(f"a view by nd.reshape of {sizes} in another memory format", "use x.copy().reshape(shape)")
    return result


def reshape(
    data: torch.Tensor, shape: Any = (), reverse: Any = False, target_shape: Any = None, keep_highest: Any = False
) -> torch.Tensor:
    """A copy in another shape, which may have MXNet's codes."""
    if target_shape is not None or keep_highest:
        raise refusal("nd.reshape with target_shape or keep_highest", "use shape")
    return owned(reshaped_view(data.contiguous(), as_tuple(shape), reverse))


def reshape_like(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_begin: Any = None,
    lhs_end: Any = None,
    rhs_begin: Any = None,
    rhs_end: Any = None,
) -> torch.Tensor:
    """A copy in the shape of another array, or with some axes replaced by some of the other's."""
    left, right = tuple(lhs.shape), tuple(rhs.shape)
    begin, end, _ = slice(lhs_begin, lhs_end).indices(len(left))
    return owned(lhs.reshape(left[:begin] + right[slice(rhs_begin, rhs_end)] + left[end:]))


def flatten(data: torch.Tensor) -> torch.Tensor:
    """A copy with two axes: the first one, and all the others in one."""
    return owned(data.reshape(data.shape[0], math.prod(data.shape[1:])))


def expand_dims(data: torch.Tensor, axis: int, *, view: bool = False) -> torch.Tensor:
    result = data.unsqueeze(axis_of("nd.expand_dims", axis, data.ndim + 1))
    return result if view else owned(result)


def squeeze(data: torch.Tensor, axis: Any = None, *, view: bool = False) -> torch.Tensor:
    """Without axes of size one; one of them is left if all have size one."""
    result = shaping.squeezed(data, tuple(axis) if isinstance(axis, list) else axis)
    shape = result.shape or (1,)
    return data.reshape(shape) if view else result.reshape(shape)


def transpose(data: torch.Tensor, axes: Any = None) -> torch.Tensor:
    order = as_tuple(axes) if axes not in (None, ()) else None
    if order is not None and min(order) < 0:
        raise MXNetError(f"nd.transpose: axes must be counted from 0, not {order}")
    return shaping.transposed(data, order)


def swapaxes(data: torch.Tensor, dim1: int = 0, dim2: int = 0) -> torch.Tensor:
    return shaping.swapped(data, dim1, dim2)


def flip(data: torch.Tensor, axis: Any) -> torch.Tensor:
    if min(as_tuple(axis)) < 0:
        raise MXNetError(f"nd.flip: axes must be counted from 0, not {axis}")
    return torch.flip(data, [axis_of("nd.flip", number, data.ndim) for number in as_tuple(axis)])


def tile(data: torch.Tensor, reps: Any) -> torch.Tensor:
    return torch.tile(data, as_tuple(reps))


def repeat(data: torch.Tensor, repeats: int, axis: int | None = None) -> torch.Tensor:
    if axis is None:
        data, axis = data.reshape(-1), 0
    return torch.repeat_interleave(data, repeats, axis_of("nd.repeat", axis, data.ndim))


def diag(data: torch.Tensor, k: int = 0, axis1: int = 0, axis2: int = 1) -> torch.Tensor:
    """The diagonal of an array, or a matrix with a vector on its diagonal."""
    return torch.diag(data, k) if data.ndim == 1 else owned(torch.diagonal(data, k, axis1, axis2))


# -- broadcasting ------------------------------------------------------------------------------------------------


def broadcast_to(data: torch.Tensor, shape: Any) -> torch.Tensor:
    """A copy with axes of size one repeated; 0 in the shape keeps a size."""
    sizes = as_tuple(shape)
    if len(sizes) != data.ndim:
        raise MXNetError(f"nd.broadcast_to: an array of dimension {data.ndim} cannot have the shape {sizes}")
    return shaping.broadcast(data, tuple(size or old for size, old in zip(sizes, data.shape, strict=True)))


def broadcast_like(lhs: torch.Tensor, rhs: torch.Tensor, lhs_axes: Any = None, rhs_axes: Any = None) -> torch.Tensor:
    """A copy with axes of size one repeated as often as another array is long there."""
    if lhs_axes is None:
        return broadcast_to(lhs, tuple(rhs.shape))
    sizes = list(lhs.shape)
    for own, other in zip(as_tuple(lhs_axes), as_tuple(rhs_axes), strict=True):
        sizes[own] = rhs.shape[other]
    return shaping.broadcast(lhs, sizes)


def broadcast_axis(data: torch.Tensor, axis: Any = (), size: Any = ()) -> torch.Tensor:
    """A copy with some axes of size one repeated."""
    sizes = list(data.shape)
    for number, length in zip(as_tuple(axis), as_tuple(size), strict=True):
        if sizes[number] != 1:
            raise MXNetError(f"nd.broadcast_axis: axis {number} of shape {tuple(data.shape)} does not have size 1")
        sizes[number] = length
    return shaping.broadcast(data, sizes)


# -- joining and splitting -----------------------------------------------------------------------------------------


def concat(*data: torch.Tensor, dim: int = 1, num_args: int | None = None) -> torch.Tensor:
    """Arrays joined along an axis, the second one by default."""
    check_count("nd.concat", "num_args", num_args, data)
    _check_one_dtype("concat", data)
    return torch.cat(data, dim)


def stack(*data: torch.Tensor, axis: int = 0, num_args: int | None = None) -> torch.Tensor:
    check_count("nd.stack", "num_args", num_args, data)
    _check_one_dtype("stack", data)
    return torch.stack(data, axis)


def _check_one_dtype(name: str, data: Sequence[torch.Tensor]) -> None:
    if len({part.dtype for part in data}) > 1:
        raise MXNetError(f"nd.{name} needs arrays of the same dtype; use .astype()")


def split(
    data: torch.Tensor, num_outputs: int, axis: int = 1, squeeze_axis: Any = False
) -> list[torch.Tensor] | torch.Tensor:
    """Equal parts along an axis, the second one by default."""
    axis = axis_of("nd.split", axis, data.ndim)
    if data.shape[axis] % num_outputs:
        raise MXNetError(f"nd.split: axis {axis} of shape {tuple(data.shape)} cannot be split into {num_outputs}")
    if squeeze_axis and data.shape[axis] != num_outputs:
        raise MXNetError("nd.split: squeeze_axis needs parts of size 1")
    return _parts(torch.split(data, data.shape[axis] // num_outputs, axis), axis, squeeze_axis)


def split_v2(
    ary: torch.Tensor, indices_or_sections: Any, axis: int = 0, squeeze_axis: Any = False
) -> list[torch.Tensor] | torch.Tensor:
    """Parts along an axis: a number of equal ones, or cut at positions."""
    axis = axis_of("nd.split_v2", axis, ary.ndim)
    if isinstance(indices_or_sections, int):
        return split(ary, indices_or_sections, axis, squeeze_axis)
    return _parts(torch.tensor_split(ary, as_tuple(indices_or_sections), axis), axis, squeeze_axis)


def _parts(parts: Sequence[torch.Tensor], axis: int, squeeze_axis: Any) -> list[torch.Tensor] | torch.Tensor:
    own = [owned(part.squeeze(axis) if squeeze_axis else part) for part in parts]
    return own[0] if len(own) == 1 else own


# -- slices --------------------------------------------------------------------------------------------------------


def crop(data: torch.Tensor, begin: Any, end: Any, step: Any = ()) -> torch.Tensor:
    """A copy of a part; None in `begin` and `end` stands for the whole axis."""
    begins, ends = as_tuple(begin), as_tuple(end)
    steps = as_tuple(step) if step not in ((), None) else (None,) * len(begins)
    if not len(begins) == len(ends) == len(steps) <= data.ndim:
        raise MXNetError(f"nd.slice: begin {begins}, end {ends} and step {steps} do not fit {tuple(data.shape)}")
    for axis, (first, last, by) in enumerate(zip(begins, ends, steps, strict=True)):
        positions = range(data.shape[axis])[first:last:by]
        if not positions:
            raise MXNetError(f"nd.slice: the slice {first}:{last}:{by} of axis {axis} is empty")
        ordered = positions if positions.step > 0 else positions[::-1]
        cut = slice(ordered[0], ordered[-1] + 1, ordered.step)
        data = data[(*[slice(None)] * axis, cut)]
        data = torch.flip(data, [axis]) if positions.step < 0 else data
    return owned(data)


def slice_axis(data: torch.Tensor, axis: int, begin: int, end: int | None) -> torch.Tensor:
    """A copy of a part along one axis."""
    axis = axis_of("nd.slice_axis", axis, data.ndim)
    size = data.shape[axis]
    first = begin + size if begin < 0 else begin
    last = size if end is None else end + size if end < 0 else end
    if not 0 <= first < last <= size:
        raise MXNetError(f"nd.slice_axis: {begin}:{end} is not a part of an axis of size {size}")
    return owned(data.narrow(axis, first, last - first))


def slice_like(data: torch.Tensor, shape_like: torch.Tensor, axes: Any = ()) -> torch.Tensor:
    """A copy of the beginning, as long as another array is, on some axes or on all."""
    for axis in as_tuple(axes) if axes not in ((), None) else range(data.ndim):
        if shape_like.shape[axis] > data.shape[axis]:
            raise MXNetError(f"nd.slice_like: axis {axis} of {tuple(shape_like.shape)} is longer than the array's")
        data = data.narrow(axis, 0, shape_like.shape[axis])
    return owned(data)


def pad(data: torch.Tensor, mode: str, pad_width: Any, constant_value: float = 0) -> torch.Tensor:
    """Adds a border to the last two axes of 4-d data or the last three of 5-d data."""
    modes = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}
    if data.ndim not in (4, 5) or len(pad_width) != 2 * data.ndim or mode not in modes:
        raise MXNetError("nd.pad needs data with 4 or 5 axes, two widths for each, and mode constant, edge or reflect")
    if any(pad_width[:4]):
        raise MXNetError("nd.pad cannot pad the first two axes")
    pairs = [pad_width[at : at + 2] for at in range(4, 2 * data.ndim, 2)]
    widths = [width for pair in reversed(pairs) for width in pair]
    if mode == "constant":
        return torch.nn.functional.pad(data, widths, "constant", constant_value)
    return torch.nn.functional.pad(data, widths, modes[mode])
