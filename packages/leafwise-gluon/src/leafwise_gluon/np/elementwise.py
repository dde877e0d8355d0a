"""Functions of each element of an array, and of each pair of elements of two. Numbers give NumPy's numbers."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import MXNetError
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.np.by_numpy import by_numpy
from leafwise_gluon.np.results import first_array, result, tensor_of
from leafwise_gluon.ops import arithmetic, elementwise, pairwise

_NUMBERS = (int, float, numpy.generic)
_FLOAT_OF_NUMBERS = (*elementwise.ROUNDING, "fix")
# NumPy has these functions under other names.
_IN_NUMPY = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "fabs": "abs",
    "pow": "power",
}


def _of_one(name: str) -> Callable[..., Any]:
    def function(x: Any, out: Any = None, **kwargs: Any) -> Any:
        if kwargs.pop("where", True) is not True or kwargs:
            raise TypeError(f"np.{name}: unexpected arguments {', '.join(kwargs) or 'where'}")
        if isinstance(x, _NUMBERS):
            return getattr(numpy, _IN_NUMPY.get(name, name))(float(x) if name in _FLOAT_OF_NUMBERS else x)
        tensor = tensor_of(x, name)
        if name in elementwise.ROUNDING and not is_v1() and out is None:
            if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
                return x
        return result(name, elementwise.elementwise(name, tensor), x, out)

    return _named(function, name, f"`{name}` of every element, or of a number.")


def _of_two(name: str, compute: Callable[[Any, Any], torch.Tensor], numbers: bool = True) -> Callable[..., Any]:
    def function(x1: Any, x2: Any, out: Any = None, **kwargs: Any) -> Any:
        if kwargs.pop("where", True) is not True or kwargs:
            raise TypeError(f"np.{name}: unexpected arguments {', '.join(kwargs) or 'where'}")
        if isinstance(x1, _NUMBERS) and isinstance(x2, _NUMBERS):
            if not numbers:
                raise MXNetError(f"np.{name} needs at least one array; use numpy.{name} for two numbers")
            return getattr(numpy, _IN_NUMPY.get(name, name))(x1, x2)
        if isinstance(x1, numpy.ndarray) or isinstance(x2, numpy.ndarray):
            raise TypeError(f"np.{name} does not accept NumPy arrays; use np.array(values)")
        left, right = (arithmetic.operand(plain(side), f"np.{name}") for side in (x1, x2))
        return result(name, compute(left, right), first_array((x1, x2)), out)

    return _named(function, name, f"`{name}` of every pair of elements.")


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _operator(name: str, sign: str, numbers: bool = True) -> Callable[..., Any]:
    return _of_two(name, lambda left, right: arithmetic.binary(sign, left, right), numbers)


_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "true_divide": "/",
    "floor_divide": "//",
    "mod": "%",
    "remainder": "%",
    "power": "**",
    "pow": "**",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "bitwise_left_shift": "<<",
    "bitwise_right_shift": ">>",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


def _extremum(name: str) -> Callable[..., Any]:
    return _of_two(name, lambda left, right: arithmetic.extremum(name, left, right))


def _pairwise(name: str, function: str, numbers: bool = True) -> Callable[..., Any]:
    return _of_two(name, lambda left, right: pairwise.pairwise(function, left, right), numbers)


_NOT_OF_NUMBERS = ("fmax", "fmin", "fmod", "remainder")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _of_one(name) for name in elementwise.NAMES},
    **{name: _operator(name, sign, name not in _NOT_OF_NUMBERS) for name, sign in _OPERATORS.items()},
    **{name: _extremum(name) for name in ("maximum", "minimum")},
    **{name: _pairwise(name, name, name not in _NOT_OF_NUMBERS) for name in pairwise.NAMES},
    "atan2": _pairwise("atan2", "arctan2"),
}


def invert(x: Any, out: Any = None) -> Any:
    """Every bit reversed; for bool, the opposite."""
    if isinstance(x, _NUMBERS):
        return numpy.invert(x)
    return result("invert", elementwise.inverted(tensor_of(x, "invert")), x, out)


bitwise_not = bitwise_invert = invert


def positive(x: Any) -> Any:
    """A copy. MXNet 1.x leaves it to NumPy, so that it has no gradient there."""
    if is_v1():
        return by_numpy("positive", numpy.positive, x)
    return numpy.positive(x) if isinstance(x, _NUMBERS) else result("positive", tensor_of(x, "positive").clone(), x)


def around(x: Any, decimals: int = 0, out: Any = None) -> Any:
    """Rounds to a number of decimals, halves to the even neighbour."""
    if isinstance(x, _NUMBERS):
        return numpy.around(x, decimals)
    return result("around", elementwise.rounded(tensor_of(x, "around"), decimals), x, out)


round = round_ = around


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> Any:
    """Numbers below `a_min` become `a_min`, those above `a_max` become `a_max`."""
    if isinstance(a, _NUMBERS):
        return numpy.clip(a, a_min, a_max)
    return result("clip", elementwise.clipped(tensor_of(a, "clip"), a_min, a_max), a, out)


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """NaN becomes 0 (or `nan`), infinities become the largest numbers of the dtype (or `posinf` and `neginf`)."""
    if isinstance(x, _NUMBERS):
        return numpy.nan_to_num(x, copy, nan, posinf, neginf)
    tensor = tensor_of(x, "nan_to_num")
    if not tensor.dtype.is_floating_point:
        return result("nan_to_num", tensor.clone(), x) if tensor.dtype == torch.bool else x
    replaced = elementwise.without_nan(tensor, nan, posinf, neginf)
    return result("nan_to_num", replaced, x, None if copy else x)
