"""Functions that join and split arrays, and that insert and delete elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.np.creation import array
from leafwise_gluon.np.results import first_array, result, tensor_of, tensors_of
from leafwise_gluon.ops import joining
from leafwise_gluon.ops.neural_checks import axis_of


def concatenate(seq: Sequence[Any], axis: int | None = 0, out: Any = None) -> ndarray:
    """Arrays of one dtype, joined along an axis.

    >>> from leafwise_gluon import np
    >>> np.concatenate([np.ones((1, 2)), np.zeros((1, 2))])
    array([[1., 1.],
           [0., 0.]])
    """
    if not isinstance(seq, ArrayValues):
        seq = list(seq)
    return result("concatenate", joining.concatenated("concatenate", tensors_of(seq, "concatenate"), axis), seq[0], out)


def concat(seq: Sequence[Any], axis: int | None = 0, out: Any = None) -> ndarray:
    return concatenate(seq, axis, out)


def stack(arrays: Any, axis: int = 0, out: Any = None) -> ndarray:
    """Arrays of one shape, joined along a new axis."""
    arrays = list(arrays)
    return result("stack", joining.stacked("stack", tensors_of(arrays, "stack"), axis), arrays[0], out)


def append(arr: Any, values: Any, axis: int | None = None) -> ndarray:
    return concatenate([arr, values], axis)


def _joined(name: str, least: Callable[[torch.Tensor], torch.Tensor], axis: int) -> Callable[[Sequence[Any]], ndarray]:
    """A function that gives each array a least number of axes, and joins along one."""

    def function(tup: Sequence[Any]) -> ndarray:
        tensors = [least(tensor) for tensor in tensors_of(tup, name)]
        return result(name, joining.concatenated(name, tensors, axis), first_array(tup))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Joins arrays as `numpy.{name}` does."
    return function


vstack = _joined("vstack", torch.atleast_2d, 0)
row_stack = _joined("row_stack", torch.atleast_2d, 0)
dstack = _joined("dstack", torch.atleast_3d, 2)
column_stack = _joined("column_stack", lambda tensor: tensor[:, None] if tensor.ndim == 1 else tensor, 1)


def hstack(arrays: Sequence[Any]) -> ndarray:
    """Joins arrays along the second axis; vectors along the first."""
    tensors = [tensor if tensor.ndim else tensor.reshape(1) for tensor in tensors_of(arrays, "hstack")]
    return result("hstack", joining.concatenated("hstack", tensors, 0 if tensors[0].ndim == 1 else 1), arrays[0])


def _pieces(name: str, ary: Any, sections: Any, axis: int, even: bool) -> list[ndarray]:
    if isinstance(sections, ArrayValues | set):
        raise ValueError(f"np.{name}: the positions must be an integer, a list or a tuple")
    pieces = joining.split(name, tensor_of(ary, name), sections, axis, even)
    return [result(name, piece, ary) for piece in pieces]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Copies of equal parts, or of the parts between positions."""
    return _pieces("split", ary, indices_or_sections, axis, even=True)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Like `split`, but the parts may differ in size by one."""
    return _pieces("array_split", ary, indices_or_sections, axis, even=False)


def hsplit(ary: Any, indices_or_sections: Any) -> list[ndarray]:
    if ary.ndim < 1:
        raise ValueError("hsplit only works on arrays of 1 or more dimensions")
    return _pieces("hsplit", ary, indices_or_sections, 1 if ary.ndim > 1 else 0, even=True)


def vsplit(ary: Any, indices_or_sections: Any) -> list[ndarray]:
    if ary.ndim < 2:
        raise ValueError("vsplit only works on arrays of 2 or more dimensions")
    return _pieces("vsplit", ary, indices_or_sections, 0, even=True)


def dsplit(ary: Any, indices_or_sections: Any) -> list[ndarray]:
    if ary.ndim < 3:
        raise ValueError("dsplit only works on arrays of 3 or more dimensions")
    return _pieces("dsplit", ary, indices_or_sections, 2, even=True)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> ndarray:
    """A copy with values inserted before positions."""
    tensor = _without_gradient("insert", arr)
    if axis is not None and tensor.ndim > 1 and not isinstance(values, ArrayValues):
        raise MXNetError("np.insert along an axis needs an array of values, not a number")
    if isinstance(obj, slice) and not isinstance(values, ArrayValues):
        raise MXNetError("np.insert at a slice needs an array of values, not a number")
    given = values if isinstance(values, ArrayValues) else array(values, dtype=arr.dtype)
    if isinstance(values, ArrayValues) and values.dtype != arr.dtype:
        raise MXNetError(f"np.insert needs values of dtype {arr.dtype}, not {values.dtype}; use .astype()")
    return _by_numpy("insert", tensor, arr, obj, given.asnumpy(), axis)


def delete(arr: Any, obj: Any, axis: int | None = None) -> ndarray:
    """A copy without the elements at positions."""
    return _by_numpy("delete", _without_gradient("delete", arr), arr, obj, None, axis)


def _without_gradient(name: str, arr: Any) -> torch.Tensor:
    tensor = tensor_of(arr, name)
    if tensor.requires_grad:
        raise refusal(f"the gradient of np.{name}", "use np.concatenate, or x.detach() if you need no gradient")
    return tensor


def _by_numpy(name: str, tensor: torch.Tensor, arr: Any, obj: Any, values: Any, axis: int | None) -> ndarray:
    if axis is not None:
        axis = axis_of(f"np.{name}", axis, tensor.ndim)
    at = joining.positions_of(name, plain(obj), tensor.numel() if axis is None else tensor.shape[axis])
    at = at.item() if not at.ndim else at
    before = tensor.cpu().numpy()
    after = numpy.delete(before, at, axis) if values is None else numpy.insert(before, at, values, axis)
    return result(name, torch.from_numpy(after).to(tensor.device), arr)
