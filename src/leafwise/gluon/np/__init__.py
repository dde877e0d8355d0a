"""`mxnet.np`: the common array functions, like NumPy's but with float32 as the default dtype; MXNet has more."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from leafwise.gluon.arrays.dtypes import dtype_name, torch_dtype
from leafwise.gluon.arrays.ndarray import ndarray, wrap
from leafwise.gluon.arrays.values import ArrayValues, plain
from leafwise.gluon.base import MXNetError, missing, refusal
from leafwise.gluon.np import random
from leafwise.gluon.ops import arithmetic, shaping

pi, e, inf, nan, newaxis = numpy.pi, numpy.e, numpy.inf, numpy.nan, None
# As in MXNet, these are dtypes, not types, so that they equal their names and print as them.
float16, float32, float64 = numpy.dtype("float16"), numpy.dtype("float32"), numpy.dtype("float64")
int8, int32, int64 = numpy.dtype("int8"), numpy.dtype("int32"), numpy.dtype("int64")
uint8, bool_ = numpy.dtype("uint8"), numpy.dtype("bool")

_Shape = int | Sequence[int]


# -- making arrays -----------------------------------------------------------------------------------------------


def array(object: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    """An array of numbers, float32 unless `dtype` is given; ndarrays and NumPy scalars keep their dtype.

    >>> from leafwise.gluon import np
    >>> np.array([1, 2])
    array([1., 2.])
    """
    if isinstance(object, ArrayValues | torch.Tensor):
        tensor = plain(object)
        return wrap(tensor.clone() if dtype is None else tensor.to(_dtype(dtype), copy=True))
    values = numpy.array(_unwrapped(object))
    if isinstance(object, numpy.generic) and dtype is None:
        dtype = values.dtype
    if values.dtype.kind not in "biuf":
        raise TypeError(f"np.array needs numbers, not {object!r}")
    return wrap(torch.from_numpy(values).to(_dtype(dtype)))


def _dtype(dtype: Any) -> torch.dtype:
    """A dtype for `np.array` and `np.eye`, where both Python's `float` and None mean float32."""
    return torch.float32 if dtype is float else torch_dtype(dtype)


def _unwrapped(object: Any) -> Any:
    if isinstance(object, ndarray):
        return object.asnumpy()
    return [_unwrapped(item) for item in object] if isinstance(object, list | tuple) else object


def zeros(shape: _Shape = (), dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    return wrap(torch.zeros(_sizes(shape), dtype=torch_dtype(dtype)))


def ones(shape: _Shape = (), dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    return wrap(torch.ones(_sizes(shape), dtype=torch_dtype(dtype)))


def full(shape: _Shape, fill_value: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    if dtype is float:
        raise refusal("np.full with dtype=float, which MXNet ignores", "use dtype='float32' or dtype='float64'")
    if isinstance(fill_value, ndarray):
        return fill_value.astype(fill_value.dtype if dtype is None else dtype).broadcast_to(shape)
    if not isinstance(fill_value, bool | int | float):
        raise MXNetError(f"np.full needs a number or an array, not {type(fill_value).__name__}")
    own = torch.int64 if type(fill_value) is int else torch.bool if type(fill_value) is bool else torch.float32
    return wrap(torch.full(_sizes(shape), fill_value, dtype=own if dtype is None else torch_dtype(dtype)))


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: Any = None, ctx: Any = None, device: Any = None
) -> ndarray:
    first, last = (0, start) if stop is None else (start, stop)
    return wrap(torch.arange(first, last, step, dtype=torch_dtype(dtype)))


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    return wrap(torch.from_numpy(numpy.eye(N, M, k)).to(_dtype(dtype)))


def _sizes(shape: _Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def zeros_like(a: ndarray, dtype: Any = None) -> ndarray:
    tensor = _tensor(a, "zeros_like")
    return wrap(torch.zeros_like(tensor, dtype=None if dtype is None else torch_dtype(dtype)))


def ones_like(a: ndarray, dtype: Any = None) -> ndarray:
    tensor = _tensor(a, "ones_like")
    return wrap(torch.ones_like(tensor, dtype=None if dtype is None else torch_dtype(dtype)))


def _tensor(a: Any, name: str) -> torch.Tensor:
    if not isinstance(a, ArrayValues | torch.Tensor):
        raise TypeError(f"np.{name} needs an array, not {type(a).__name__}; use np.array(values)")
    return plain(a)  # type: ignore[no-any-return]


def _array(a: Any, name: str) -> ndarray:
    return wrap(_tensor(a, name))


# -- shapes ------------------------------------------------------------------------------------------------------


def concatenate(seq: Sequence[ndarray], axis: int | None = 0) -> ndarray:
    tensors = _of_one_dtype(seq, "concatenate")
    if axis is None:
        tensors, axis = [tensor.reshape(-1) for tensor in tensors], 0
    return wrap(torch.cat(tensors, dim=axis))


def stack(arrays: Sequence[ndarray], axis: int = 0) -> ndarray:
    return wrap(torch.stack(_of_one_dtype(arrays, "stack"), dim=axis))


def _of_one_dtype(arrays: Sequence[Any], name: str) -> list[torch.Tensor]:
    tensors = [_tensor(array, name) for array in arrays]
    if len({tensor.dtype for tensor in tensors}) > 1:
        dtypes = ", ".join(dtype_name(tensor.dtype) for tensor in tensors)
        raise MXNetError(f"np.{name} needs arrays of the same dtype, not {dtypes}; use .astype()")
    return tensors


def expand_dims(a: ndarray, axis: int) -> ndarray:
    return wrap(shaping.expanded(_tensor(a, "expand_dims"), axis))


def reshape(a: ndarray, newshape: _Shape, order: str = "C") -> ndarray:
    return wrap(shaping.reshaped("np.reshape", _tensor(a, "reshape"), newshape, order))


def transpose(a: ndarray, axes: Sequence[int] | None = None) -> ndarray:
    return wrap(shaping.transposed(_tensor(a, "transpose"), axes))


def squeeze(x: ndarray, axis: Any = None) -> ndarray:
    return _array(x, "squeeze").squeeze(axis)


def swapaxes(a: ndarray, axis1: int, axis2: int) -> ndarray:
    return _array(a, "swapaxes").swapaxes(axis1, axis2)


def ravel(x: ndarray, order: str = "C") -> ndarray:
    return _array(x, "ravel").flatten(order)


def repeat(a: ndarray, repeats: Any, axis: int | None = None) -> ndarray:
    return _array(a, "repeat").repeat(repeats, axis)


def tile(A: ndarray, reps: Any) -> ndarray:  # noqa: N803
    return _array(A, "tile").tile(reps)


def broadcast_to(array: ndarray, shape: Any) -> ndarray:
    return _array(array, "broadcast_to").broadcast_to(shape)


def copy(a: ndarray) -> ndarray:
    return _array(a, "copy").copy()


# -- reductions, sorting and searching -----------------------------------------------------------------------------


def sum(a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "sum").sum(axis, dtype, out, keepdims)


def mean(a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "mean").mean(axis, dtype, out, keepdims)


def max(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "max").max(axis, out, keepdims)


def min(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "min").min(axis, out, keepdims)


def std(
    a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
) -> ndarray:
    return _array(a, "std").std(axis, dtype, out, ddof, keepdims)


def var(
    a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
) -> ndarray:
    return _array(a, "var").var(axis, dtype, out, ddof, keepdims)


def all(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "all").all(axis, out, keepdims)


def any(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "any").any(axis, out, keepdims)


def argmax(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "argmax").argmax(axis, out, keepdims)


def argmin(a: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return _array(a, "argmin").argmin(axis, out, keepdims)


def cumsum(a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    return _array(a, "cumsum").cumsum(axis, dtype, out)


def sort(a: ndarray, axis: Any = -1, descending: bool = False) -> ndarray:
    return _array(a, "sort").sort(axis, descending)


def argsort(a: ndarray, axis: Any = -1, descending: bool = False) -> ndarray:
    return _array(a, "argsort").argsort(axis, descending)


def nonzero(a: ndarray) -> tuple[ndarray, ...]:
    return _array(a, "nonzero").nonzero()


def take(a: ndarray, indices: Any, axis: int | None = None, mode: str | None = "raise") -> ndarray:
    return _array(a, "take").take(indices, axis, mode)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Elements of `x` where the condition is true and of `y` elsewhere; without `x` and `y`, where it is true."""
    mask = _tensor(condition, "where") != 0
    if x is None and y is None:
        return wrap(mask).nonzero()
    sides = [plain(side) for side in (x, y)]
    arrays = [side for side in sides if isinstance(side, ArrayValues | torch.Tensor)]
    if len({side.dtype for side in arrays}) > 1:
        dtypes = " and ".join(dtype_name(side.dtype) for side in arrays)
        raise MXNetError(f"np.where needs arrays of the same dtype, not {dtypes}; use .astype()")
    dtype = arrays[0].dtype if arrays else torch.float32
    for side in sides:
        if isinstance(side, int) and dtype in (torch.int8, torch.uint8):
            raise refusal(f"np.where of {dtype_name(dtype)} and a number", "use .astype('int32') first")
        if isinstance(side, float) and not dtype.is_floating_point:
            raise refusal("np.where of integers and a float", "use .astype('float32') first")
        if not isinstance(side, torch.Tensor | bool | int | float):
            raise TypeError(f"np.where needs arrays or numbers, not {type(side).__name__}")
    first, second = (side if isinstance(side, torch.Tensor) else torch.tensor(side, dtype=dtype) for side in sides)
    return wrap(torch.where(mask, first, second))


def array_equal(a: Any, b: Any) -> bool:
    first, second = (
        plain(side) if isinstance(side, ArrayValues | torch.Tensor) else plain(array(side)) for side in (a, b)
    )
    return first.shape == second.shape and bool((first == second).all())


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    first, second = (side.asnumpy() if isinstance(side, ndarray) else numpy.asarray(side) for side in (a, b))
    return bool(numpy.allclose(first, second, rtol, atol, equal_nan))


# -- elementwise -------------------------------------------------------------------------------------------------


def _elementwise(name: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if isinstance(x, int | float | numpy.generic):
            return getattr(numpy, name)(x)
        if name in ("floor", "ceil") and isinstance(x, ndarray) and x.dtype.kind == "i":
            return x
        return wrap(arithmetic.elementwise(name, _tensor(x, name)))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of every element, or of a number."
    return function


abs, exp, log, sqrt = _elementwise("abs"), _elementwise("exp"), _elementwise("log"), _elementwise("sqrt")
square, sign, floor, ceil = _elementwise("square"), _elementwise("sign"), _elementwise("floor"), _elementwise("ceil")
sin, cos, tanh, log1p = _elementwise("sin"), _elementwise("cos"), _elementwise("tanh"), _elementwise("log1p")


def round(x: ndarray, decimals: int = 0, out: Any = None) -> ndarray:
    return _array(x, "round").round(decimals, out)


def clip(a: ndarray, a_min: Any, a_max: Any, out: Any = None) -> ndarray:
    return _array(a, "clip").clip(a_min, a_max, out)


def dot(a: Any, b: Any) -> ndarray:
    """The product of vectors and matrices."""
    return wrap(arithmetic.dot(plain(a), plain(b)))


def matmul(a: Any, b: Any) -> ndarray:
    """The matrix product, like `@`."""
    return wrap(arithmetic.matmul(plain(a), plain(b)))


def maximum(x1: Any, x2: Any) -> Any:
    return _extremum("maximum", x1, x2)


def minimum(x1: Any, x2: Any) -> Any:
    return _extremum("minimum", x1, x2)


def _extremum(name: str, x1: Any, x2: Any) -> Any:
    if isinstance(x1, int | float) and isinstance(x2, int | float):
        return getattr(numpy, name)(x1, x2)
    if isinstance(x1, numpy.ndarray) or isinstance(x2, numpy.ndarray):
        raise TypeError(f"np.{name} does not accept NumPy arrays; use np.array(values)")
    sides = [arithmetic.operand(plain(side), f"np.{name}") for side in (x1, x2)]
    return wrap(arithmetic.extremum(name, *sides))


__getattr__ = missing("np", {}, "arrays are tensors, so use torch.{name} if PyTorch has it")
__all__ = ["array", "dot", "ndarray", "random"]
