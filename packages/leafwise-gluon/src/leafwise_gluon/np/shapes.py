"""Functions that change the shape or the order of elements. As in MXNet, each result is a copy."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.np import creation
from leafwise_gluon.np.results import result, tensor_of
from leafwise_gluon.ops import padding, shaping
from leafwise_gluon.ops.neural_checks import axis_of


def shape(a: Any) -> tuple[int, ...]:
    return a.shape  # type: ignore[no-any-return]


def reshape(a: Any, newshape: Any, reverse: bool = False, order: str = "C") -> ndarray:
    """The same elements in another shape."""
    if reverse:
        raise refusal("np.reshape with reverse=True", "write out the shape")
    return result("reshape", shaping.reshaped("np.reshape", tensor_of(a, "reshape"), newshape, order), a)


def ravel(x: Any, order: str = "C") -> ndarray:
    return result("ravel", shaping.reshaped("np.ravel", tensor_of(x, "ravel"), -1, order), x)


def transpose(a: Any, axes: Any = None) -> ndarray:
    return result("transpose", shaping.transposed(tensor_of(a, "transpose"), axes), a)


def permute_dims(a: Any, axes: Any = None) -> ndarray:
    return transpose(a, axes)


def swapaxes(a: Any, axis1: int, axis2: int) -> ndarray:
    return result("swapaxes", shaping.swapped(tensor_of(a, "swapaxes"), axis1, axis2), a)


def moveaxis(a: Any, source: Any, destination: Any) -> ndarray:
    """Moves axes to new positions; the others keep their order."""
    return result("moveaxis", shaping.moved(tensor_of(a, "moveaxis"), source, destination), a)


def rollaxis(a: Any, axis: int, start: int = 0) -> ndarray:
    """Moves an axis back until it lies before the axis at `start`."""
    return result("rollaxis", shaping.rolled_axis(tensor_of(a, "rollaxis"), axis, start), a)


def expand_dims(a: Any, axis: Any) -> ndarray:
    return result("expand_dims", shaping.expanded(tensor_of(a, "expand_dims"), axis), a)


def squeeze(x: Any, axis: Any = None) -> ndarray:
    return result("squeeze", shaping.squeezed(tensor_of(x, "squeeze"), axis), x)


def broadcast_to(array: Any, shape: Any) -> ndarray:
    array = creation.array(array) if isinstance(array, int | float) else array
    return result("broadcast_to", shaping.broadcast(tensor_of(array, "broadcast_to"), shape), array)


def broadcast_arrays(*args: Any) -> list[ndarray]:
    tensors = [tensor_of(arg, "broadcast_arrays") for arg in args]
    common = numpy.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    return [result("broadcast_arrays", shaping.broadcast(tensor, common), args[0]) for tensor in tensors]


def flip(m: Any, axis: Any = None, out: Any = None) -> ndarray:
    """The elements in reverse order along axes; along all of them if no axis is given."""
    return result("flip", shaping.flipped("flip", tensor_of(m, "flip"), axis), m, out)


def flipud(m: Any) -> ndarray:
    return flip(m, 0)


def fliplr(m: Any) -> ndarray:
    return flip(m, 1)


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> ndarray:
    """Turns an array by 90 degrees in the plane of two axes."""
    tensor = tensor_of(m, "rot90")
    first, second = (axis_of("np.rot90", axis, tensor.ndim) for axis in axes)
    if k % 2 and tensor.requires_grad:
        raise refusal("the gradient of np.rot90, which is wrong in MXNet", "use np.flip and np.transpose")
    return result("rot90", shaping.owned(torch.rot90(tensor, k, (first, second))), m)


def roll(a: Any, shift: Any, axis: Any = None) -> ndarray:
    """Shifts elements along axes; those that leave at the end come in at the start."""
    tensor = tensor_of(a, "roll")
    if axis is not None:
        axes = (axis,) if isinstance(axis, int) else axis
        axis = tuple(axis_of("np.roll", number, tensor.ndim) for number in axes)
        shift = (shift,) * len(axis) if isinstance(shift, int) else tuple(shift)
    elif not isinstance(shift, int):
        raise MXNetError("np.roll without an axis needs an integer as shift")
    return result("roll", torch.roll(tensor, shift, axis), a)


def repeat(a: Any, repeats: Any, axis: int | None = None) -> ndarray:
    return result("repeat", shaping.repeated(tensor_of(a, "repeat"), repeats, axis), a)


def tile(A: Any, reps: Any) -> ndarray:  # noqa: N803
    return result("tile", shaping.tiled(tensor_of(A, "tile"), reps), A)


def _at_least(name: str, arys: tuple[Any, ...]) -> Any:
    arys = tuple(creation.array(ary) if isinstance(ary, int | float) else ary for ary in arys)
    for ary in arys:
        if tensor_of(ary, name).requires_grad:
            raise refusal(f"the gradient of np.{name}, which is zeros in MXNet", "use np.reshape")
    function = getattr(torch, name)
    arrays = [result(name, shaping.owned(function(tensor_of(ary, name))), ary) for ary in arys]
    return arrays[0] if len(arrays) == 1 else arrays


def atleast_1d(*arys: Any) -> Any:
    return _at_least("atleast_1d", arys)


def atleast_2d(*arys: Any) -> Any:
    return _at_least("atleast_2d", arys)


def atleast_3d(*arys: Any) -> Any:
    return _at_least("atleast_3d", arys)


def diag(v: Any, k: int = 0) -> ndarray:
    """The diagonal of a matrix, or a matrix with a vector as its diagonal."""
    tensor = tensor_of(v, "diag")
    if tensor.ndim not in (1, 2):
        raise MXNetError(f"np.diag needs an array of 1 or 2 dimensions, not {tensor.ndim}")
    return result("diag", shaping.owned(torch.diag(tensor, k)), v)


def diagflat(v: Any, k: int = 0) -> ndarray:
    return result("diagflat", torch.diagflat(tensor_of(v, "diagflat"), k), v)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    return result("diagonal", shaping.diagonal(tensor_of(a, "diagonal"), offset, axis1, axis2), a)


def tril(m: Any, k: int = 0) -> ndarray:
    """Zeros above a diagonal."""
    return result("tril", shaping.triangle("tril", tensor_of(m, "tril"), k), m)


def triu(m: Any, k: int = 0) -> ndarray:
    """Zeros below a diagonal."""
    return result("triu", shaping.triangle("triu", tensor_of(m, "triu"), k), m)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Writes to the diagonal of an array, in place."""
    if isinstance(val, ArrayValues):
        raise TypeError("np.fill_diagonal needs a number or a list of numbers, not an array; use val.tolist()")
    values = a.asnumpy()
    numpy.fill_diagonal(values, val, wrap)
    a[:] = values


def pad(x: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> ndarray:
    """An array with elements added at its edges: `mode` 'constant', 'edge', 'reflect', 'symmetric', 'maximum' or
    'minimum'."""
    return result("pad", padding.padded(tensor_of(x, "pad"), pad_width, mode, **kwargs), x)
