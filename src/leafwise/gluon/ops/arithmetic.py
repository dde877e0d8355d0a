"""Operators and elementwise functions with MXNet's dtypes, over plain tensors.

If MXNet's result would be arbitrary, as for an integer division by zero, an error that names the operation is raised.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise.gluon.arrays.dtypes import dtype_name
from leafwise.gluon.base import MXNetError, refusal

Operand = torch.Tensor | int | float | bool

_COMPARISONS = {"==": torch.eq, "!=": torch.ne, "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge}
_BITWISE = {
    "&": torch.bitwise_and,
    "|": torch.bitwise_or,
    "^": torch.bitwise_xor,
    "<<": torch.bitwise_left_shift,
    ">>": torch.bitwise_right_shift,
}


def operand(value: Any, sign: str) -> Operand:
    """Checks an operand, and converts NumPy's scalars and arrays. Tensors and numbers are returned unchanged."""
    if isinstance(value, torch.Tensor | bool | int | float):
        return value
    if isinstance(value, numpy.bool_ | numpy.integer | numpy.floating):
        return value.item()
    if isinstance(value, numpy.ndarray) and value.dtype.name == "float32":
        return torch.from_numpy(value.copy())
    if isinstance(value, numpy.ndarray):
        raise refusal(f"ndarray {sign} numpy.ndarray of {value.dtype}", "convert it with np.array(values, dtype=...)")
    raise TypeError(f"unsupported operand types for {sign}: ndarray and {type(value).__name__}")


def binary(sign: str, left: Operand, right: Operand) -> torch.Tensor:
    """`left sign right`, where at least one side is a tensor."""
    try:
        return _binary(sign, left, right)
    except (MXNetError, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:  # PyTorch's message does not name the operation
        raise MXNetError(f"ndarray {sign}: {error}") from error


def _binary(sign: str, left: Operand, right: Operand) -> torch.Tensor:
    if sign in _COMPARISONS:
        _check_bool_comparison(left, right)
        return _COMPARISONS[sign](*_of_one_dtype(left, right))
    if sign in _BITWISE:
        _check_bool_bits(sign, left, right)
        return _BITWISE[sign](*_of_one_dtype(left, right))
    if sign == "@":
        return matmul(left, right)
    if sign == "/":
        _check_division(left, right)
        return torch.true_divide(*_of_one_dtype(left, right, floats=torch.float32))
    left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))  # in arithmetic, True is 1
    return _ARITHMETIC[sign](*_of_one_dtype(left, right))


def _of_one_dtype(left: Operand, right: Operand, floats: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """Both sides in the dtype of the result.

    Unlike NumPy and MXNet, PyTorch gives 0-d arrays a lower priority when it promotes dtypes. In MXNet, an integer
    array combined with a float becomes float64 (`floats`), except in a division.
    """
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        common = torch.promote_types(left.dtype, right.dtype)
        return left.to(common), right.to(common)
    if isinstance(left, torch.Tensor):
        return _beside_number(left, right, floats), right
    assert isinstance(right, torch.Tensor)
    return left, _beside_number(right, left, floats)


def _beside_number(array: torch.Tensor, number: Any, floats: torch.dtype) -> torch.Tensor:
    if isinstance(number, float) and not array.dtype.is_floating_point:
        return array.to(floats)
    return array.to(torch.int64) if array.dtype == torch.bool and not isinstance(number, bool | float) else array


def _check_bool_comparison(left: Operand, right: Operand) -> None:
    array, number = (left, right) if isinstance(left, torch.Tensor) else (right, left)
    if isinstance(array, torch.Tensor) and array.dtype == torch.bool and not isinstance(number, torch.Tensor):
        if number not in (0, 1):
            raise refusal(
                f"a comparison of bool with {number}, which MXNet treats as True", "use .astype('float32') first"
            )


def _check_bool_bits(sign: str, left: Operand, right: Operand) -> None:
    """Raises if MXNet would treat a number as True or False, or if bool would be shifted."""
    sides = (left, right)
    if not any(isinstance(side, torch.Tensor) and side.dtype == torch.bool for side in sides):
        return
    if sign in ("<<", ">>"):
        raise MXNetError(f"ndarray {sign} is not defined for bool")
    if any(not isinstance(side, torch.Tensor | bool) for side in sides):
        raise refusal(f"ndarray {sign} of bool and a number", "use True or False instead of the number")


def _check_division(left: Operand, right: Operand) -> None:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.dtype != right.dtype:
        if not _is_floating(left, right):
            raise MXNetError(
                f"ndarray / of integers needs both sides in the same dtype, not {dtype_name(left.dtype)} and "
                f"{dtype_name(right.dtype)}; use .astype()"
            )


class _ZeroGradient(torch.autograd.Function):
    """A value whose gradient with respect to its sources is zero."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.sources = [(source.shape, source.dtype, source.device) for source in sources]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.sources)


def _floor_divide(left: Any, right: Any) -> torch.Tensor:
    if not _is_floating(left, right) and bool(_any_zero(right)):
        raise refusal("ndarray // 0 of integers", "convert to float32 first, or mask the zeros")
    if not _is_floating(left, right):
        return torch.floor_divide(left, right)
    sources = [side for side in (left, right) if isinstance(side, torch.Tensor)]
    with torch.no_grad():
        quotient = torch.floor(torch.true_divide(left, right))
    return _ZeroGradient.apply(quotient, *sources)  # type: ignore[no-any-return, no-untyped-call]


def _remainder(left: Any, right: Any) -> torch.Tensor:
    # In MXNet, the remainder of a division by zero is 0.
    if bool(_any_zero(right)) and any(isinstance(side, torch.Tensor) and side.requires_grad for side in (left, right)):
        raise refusal("the gradient of ndarray % 0", "mask the zeros")
    if not isinstance(right, torch.Tensor):
        return torch.remainder(left, right) if right != 0 else torch.zeros_like(left)
    zero = right == 0
    left = left if isinstance(left, torch.Tensor) else torch.full_like(right, left)
    return torch.remainder(left, right.masked_fill(zero, 1)).masked_fill(zero, 0)


def _power(left: Any, right: Any) -> torch.Tensor:
    if _is_floating(left, right):
        return torch.pow(left, right)
    if all(isinstance(side, torch.Tensor) and side.dtype == torch.bool for side in (left, right)):
        raise refusal("ndarray ** of bool", "use .astype('int32') first")
    # MXNet computes powers of integers in float32: exact up to 2**24, and arbitrary above it and for fractions.
    base, exponent = (side.double() if isinstance(side, torch.Tensor) else side for side in (left, right))
    size = torch.pow(base, exponent).abs()
    if bool(((size > 2**24) | (torch.as_tensor(exponent) < 0)).any()):
        raise refusal(
            "ndarray ** of integers with a result above 2**24 or a negative exponent", "use .astype('float64') first"
        )
    return torch.pow(left, right)


def _is_floating(*sides: Any) -> bool:
    return any(
        side.dtype.is_floating_point if isinstance(side, torch.Tensor) else isinstance(side, float) for side in sides
    )


def _any_zero(side: Any) -> Any:
    return (side == 0).any() if isinstance(side, torch.Tensor) else side == 0


_ARITHMETIC: dict[str, Callable[..., torch.Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "//": _floor_divide,
    "%": _remainder,
    "**": _power,
}


def matmul(left: Operand, right: Operand) -> torch.Tensor:
    """The matrix product of two arrays; numbers and 0-d arrays are refused."""
    _check_product("@", left, right)
    if not (left.ndim and right.ndim):  # type: ignore[union-attr]
        raise MXNetError("ndarray @ is not defined for 0-d arrays; use *")
    return torch.matmul(left, right)  # type: ignore[arg-type]


def dot(left: Operand, right: Operand) -> torch.Tensor:
    """The product of vectors and matrices, like `numpy.dot`."""
    _check_product("dot", left, right)
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    if not (left.ndim and right.ndim):
        return left * right
    product: torch.Tensor = torch.tensordot(left, right, dims=([-1], [-2 if right.ndim > 1 else -1]))
    return product


def _check_product(name: str, left: Operand, right: Operand) -> None:
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        raise MXNetError(f"ndarray {name}: both sides must be arrays")
    if left.dtype != right.dtype or not left.dtype.is_floating_point:
        raise MXNetError(
            f"ndarray {name} needs two arrays of the same float dtype, not {dtype_name(left.dtype)} and "
            f"{dtype_name(right.dtype)}; use .astype()"
        )
    if left.dtype == torch.float16 and left.device.type == "cpu":
        raise MXNetError(f"ndarray {name} does not support float16 on a CPU; use .astype('float32') first")


def positive(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def extremum(name: str, left: Operand, right: Operand) -> torch.Tensor:
    """`maximum` and `minimum` of two arrays of the same dtype, or of an array and a number."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.dtype != right.dtype:
        dtypes = f"{dtype_name(left.dtype)} and {dtype_name(right.dtype)}"
        raise MXNetError(f"np.{name} needs arrays of the same dtype, not {dtypes}; use .astype()")
    if any(isinstance(side, torch.Tensor) and side.dtype == torch.bool for side in (left, right)):
        raise MXNetError(f"np.{name} is not defined for bool; use {'|' if name == 'maximum' else '&'}")
    left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))
    array, number = (left, right) if isinstance(left, torch.Tensor) else (right, left)
    if isinstance(array, torch.Tensor) and isinstance(number, int) and not array.dtype.is_floating_point:
        if not torch.iinfo(array.dtype).min <= number <= torch.iinfo(array.dtype).max:
            raise refusal(f"np.{name} of {dtype_name(array.dtype)} and {number}", "use .astype('int64') first")
    # If both sides are equal, the array, or the first of two arrays, gets the whole gradient. PyTorch splits it.
    first: Any
    second: Any
    first, second = _of_one_dtype(left, right) if isinstance(left, torch.Tensor) else _of_one_dtype(right, left)
    second = second if isinstance(second, torch.Tensor) else torch.full_like(first, second)
    is_first = first >= second if name == "maximum" else first <= second
    is_number = ~(first.isnan() | second.isnan())
    nan = torch.full_like(first, float("nan")) if first.dtype.is_floating_point else first
    return torch.where(is_number, torch.where(is_first, first, second), nan)


_KEEP_INTEGERS = ("abs", "sign", "square")


def elementwise(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A function of each element. Integers become float32, unless the function keeps integers."""
    keeps = name in _KEEP_INTEGERS
    if tensor.dtype == torch.bool or (tensor.dtype in (torch.uint8, torch.int8, torch.int16) and not keeps):
        raise refusal(f"np.{name} of {dtype_name(tensor.dtype)}", "use .astype('float32') first")
    if not tensor.dtype.is_floating_point and not keeps:
        tensor = tensor.to(torch.float32)
    return getattr(torch, name)(tensor)  # type: ignore[no-any-return]


def rounded(tensor: torch.Tensor, decimals: int = 0) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        if decimals < 0 or tensor.dtype == torch.bool:
            raise refusal(
                "ndarray.round of integers with negative decimals, or of bool", "use .astype('float32') first"
            )
        return tensor.clone()
    return torch.round(tensor, decimals=decimals)


def clipped(tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    if low is None and high is None:
        raise ValueError("array_clip: must set either max or min")
    for bound in (low, high):
        if bound is not None and not isinstance(bound, int | float | numpy.integer | numpy.floating):
            raise MXNetError(f"ndarray.clip needs numbers as bounds, not {type(bound).__name__}")
        if isinstance(bound, float | numpy.floating) and not tensor.dtype.is_floating_point:
            raise refusal("ndarray.clip of integers with float bounds", "use integer bounds")
    if tensor.dtype == torch.bool:
        raise MXNetError("ndarray.clip is not defined for bool")
    if low is not None and high is not None and low > high:
        raise refusal("ndarray.clip with min above max", "pass the smaller bound first")
    # Values between the bounds, and NaN, keep their gradient.
    outside = torch.zeros_like(tensor, dtype=torch.bool)
    outside = outside if low is None else outside | (tensor < low)
    outside = outside if high is None else outside | (tensor > high)
    return torch.where(outside, torch.clamp(tensor.detach(), low, high), tensor)
