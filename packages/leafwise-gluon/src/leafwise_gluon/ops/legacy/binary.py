"""Operations of two arrays, or of an array and a number.

Both arrays have the same dtype, which the result has, too: comparisons give 0 and 1 in it. A number is converted to the
dtype of the array first, so `array_of_integers * 1.5` multiplies by 1.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.legacy.gradients import with_zero_gradient
from leafwise_gluon.ops.neural_checks import check_count

Operand = Any  # a tensor or a number


def _comparison(compare: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def compute(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        return with_zero_gradient(compare(lhs, rhs).to(lhs.dtype), lhs, rhs)

    return compute


def _divide(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    if lhs.dtype.is_floating_point:
        return lhs / rhs
    if bool((rhs == 0).any()):
        raise refusal("a division of integers by 0", "use .astype('float32') first")
    return torch.div(lhs, rhs, rounding_mode="trunc")


def _modulo(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    zero = rhs == 0
    if bool(zero.any()) and (lhs.requires_grad or rhs.requires_grad):
        raise refusal("the gradient of a remainder by 0", "mask the zeros")
    return torch.remainder(lhs, rhs.masked_fill(zero, 1)).masked_fill(zero, 0)


def _power(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    if lhs.dtype.is_floating_point:
        return torch.pow(lhs, rhs)
    # MXNet computes powers of integers in float32: exact up to 2**24, and arbitrary above it.
    size = torch.pow(lhs.double(), rhs.double()).abs()
    if bool(((size > 2**24) | (rhs < 0)).any()):
        raise refusal("powers of integers above 2**24 or with a negative exponent", "use .astype('float64') first")
    return torch.pow(lhs, rhs)


def _extremum(is_first: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def compute(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        # If both are equal, the first one gets the whole gradient; PyTorch splits it.
        chosen = torch.where(is_first(lhs, rhs), lhs, rhs)
        return torch.where(lhs.isnan(), lhs, chosen) if lhs.dtype.is_floating_point else chosen

    return compute


_OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": _divide,
    "modulo": _modulo,
    "power": _power,
    "maximum": _extremum(torch.ge),
    "minimum": _extremum(torch.le),
    "hypot": torch.hypot,
    "equal": _comparison(torch.eq),
    "not_equal": _comparison(torch.ne),
    "greater": _comparison(torch.gt),
    "greater_equal": _comparison(torch.ge),
    "lesser": _comparison(torch.lt),
    "lesser_equal": _comparison(torch.le),
    "logical_and": _comparison(torch.logical_and),
    "logical_or": _comparison(torch.logical_or),
    "logical_xor": _comparison(torch.logical_xor),
}


def binary(name: str, lhs: Operand, rhs: Operand) -> torch.Tensor:
    """An operation with broadcasting; at least one side is a tensor."""
    return _OPERATIONS[name](*_of_one_dtype(name, lhs, rhs))


def _of_one_dtype(name: str, lhs: Operand, rhs: Operand) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(lhs, torch.Tensor) and isinstance(rhs, torch.Tensor):
        if lhs.dtype != rhs.dtype:
            dtypes = f"{dtype_name(lhs.dtype)} and {dtype_name(rhs.dtype)}"
            raise MXNetError(f"nd.{name} needs arrays of the same dtype, not {dtypes}; use .astype()")
        if lhs.dtype == torch.bool:
            raise MXNetError(f"nd.{name} is not defined for bool; use .astype('float32') first")
        return lhs, rhs
    if isinstance(lhs, torch.Tensor):
        array = _beside(name, lhs, rhs)
        return array, _number_like(name, rhs, array)
    array = _beside(name, rhs, lhs)
    number = _number_like(name, lhs, array)
    return (array, number) if name in ("maximum", "minimum") else (number, array)  # the array gets a tie's gradient


def _beside(name: str, array: torch.Tensor, number: Any) -> torch.Tensor:
    if array.dtype != torch.bool:
        return array
    if not isinstance(number, int) or name not in ("add", "subtract", "multiply"):
        raise refusal(f"nd.{name} of bool and {number!r}", "use .astype('float32') first")
    return array.to(torch.int64)


def _number_like(name: str, number: Any, array: torch.Tensor) -> torch.Tensor:
    if not isinstance(number, bool | int | float | numpy.bool_ | numpy.integer | numpy.floating):
        raise TypeError(f"nd.{name}: type {type(number)} not supported")
    if array.dtype.is_floating_point:
        return torch.full((), float(number), dtype=array.dtype, device=array.device)
    return torch.full((), int(number), dtype=torch.int64, device=array.device).to(array.dtype)


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | numpy.bool_ | numpy.integer | numpy.floating)


# -- functions of two arrays -----------------------------------------------------------------------------------


def _broadcasting(name: str, operation: str) -> Callable[..., torch.Tensor]:
    def function(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        _check_arrays(name, lhs, rhs)
        return binary(operation, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{operation}` of two arrays, with broadcasting."
    return function


def _same_shape(name: str, operation: str) -> Callable[..., torch.Tensor]:
    def function(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        _check_arrays(name, lhs, rhs)
        if lhs.shape != rhs.shape:
            raise MXNetError(f"nd.{name} needs arrays of the same shape, not {tuple(lhs.shape)} and {tuple(rhs.shape)}")
        return binary(operation, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{operation}` of two arrays of the same shape."
    return function


def _check_arrays(name: str, *sides: Any) -> None:
    for side in sides:
        if not isinstance(side, torch.Tensor):
            raise AssertionError(f"nd.{name}: Argument must have NDArray type, but got {side!r}")


BROADCASTING = [
    _broadcasting(f"broadcast_{suffix}", operation)
    for suffix, operation in {
        "add": "add",
        "plus": "add",
        "sub": "subtract",
        "minus": "subtract",
        "mul": "multiply",
        "div": "divide",
        "mod": "modulo",
        **{name: name for name in _OPERATIONS if name not in ("add", "subtract", "multiply", "divide", "modulo")},
    }.items()
]
SAME_SHAPE = [
    _same_shape(f"elemwise_{suffix}", operation)
    for suffix, operation in {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}.items()
]


def add_n(*args: torch.Tensor, num_args: int | None = None) -> torch.Tensor:
    """The sum of several arrays of the same shape."""
    check_count("nd.add_n", "num_args", num_args, args)
    if len({(data.shape, data.dtype) for data in args}) > 1:
        raise MXNetError("nd.add_n needs arrays of the same shape and dtype")
    total = args[0].clone()
    for data in args[1:]:
        total = total + data
    return total


def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Elements of `x` where the condition is not zero, and of `y` elsewhere; a vector chooses whole rows."""
    _check_arrays("where", condition, x, y)
    if x.dtype != y.dtype or x.shape != y.shape:
        raise MXNetError("nd.where needs x and y of the same shape and dtype")
    if condition.shape != x.shape:
        if condition.ndim != 1 or condition.shape[0] != x.shape[0]:
            raise MXNetError(f"nd.where: a condition of shape {tuple(condition.shape)} does not fit {tuple(x.shape)}")
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(condition != 0, x, y)
