"""NumPy's own functions called with arrays: `numpy.mean(x)` is `np.mean(x)`, as in MXNet."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon import np
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.np.by_numpy import by_numpy

# NumPy's name of a function → the name in `np`.
_UFUNCS = {"conjugate": "positive", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift"}


_NEW_IN_2 = ("cross", "kron", "median", "triu")
_LEFT_TO_NUMPY = ("histogram",)
_LEFT_TO_NUMPY_IN_LINALG = ("cond", "det", "matrix_power", "multi_dot", "slogdet", "svd")


def of_ufunc(ufunc: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of one of NumPy's universal functions, such as `numpy.exp`."""
    out = kwargs.pop("out", None)
    if out is not None and isinstance(out[0], numpy.ndarray):  # n += x, where n is a NumPy array
        values = [side.asnumpy() if isinstance(side, ArrayValues) else side for side in inputs]
        return ufunc(*values, out=out, **kwargs)
    if out is not None:
        kwargs["out"] = out[0]
    name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
    function = _own(np, name)
    if function is None:
        return by_numpy(ufunc.__name__, ufunc, *inputs, **kwargs)
    return function(*(_as_array(side, inputs) for side in inputs), **kwargs)


def of_function(function: Any, args: Any, kwargs: Any) -> Any:
    """The result of one of NumPy's other functions, such as `numpy.mean`."""
    name = function.__name__
    in_linalg = "linalg" in function.__module__
    own = _own(np.linalg if in_linalg else np, name)
    left = _LEFT_TO_NUMPY_IN_LINALG if in_linalg else _LEFT_TO_NUMPY
    if own is None or name in left or (is_v1() and name in _NEW_IN_2):
        return by_numpy(name, function, *args, **kwargs)
    return own(*_converted(args, args), **{key: _converted(value, args) for key, value in kwargs.items()})


def _own(module: Any, name: str) -> Callable[..., Any] | None:
    function: Callable[..., Any] | None = vars(module).get(name)
    return function


def _converted(value: Any, args: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_converted(item, args) for item in value)
    return _as_array(value, args)


def _as_array(value: Any, others: Any) -> Any:
    """NumPy arrays beside arrays become arrays of the same dtype."""
    if not isinstance(value, numpy.ndarray):
        return value
    example = next((other for other in others if isinstance(other, ndarray)), None)
    tensor = torch.from_numpy(value.copy())
    return wrap(tensor) if example is None else wrap(tensor.to(example.tensor.device), example.ctx)
