"""Operators and elementwise functions with MXNet's dtypes, over plain tensors.

If MXNet's result would be arbitrary, as for an integer division by zero, an error that names the operation is raised.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1

Operand = torch.Tensor | int | float | bool

_COMPARISONS = {"==": torch.eq, "!=": torch.ne, "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
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
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value.copy())
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
        if not isinstance(left, torch.Tensor):
            left, right, sign = right, left, _MIRRORED[sign]
        _check_bool_comparison(left, right)
        return _COMPARISONS[sign](*of_one_dtype(left, right, truncate=is_v1()))
    if sign in _BITWISE:
        _check_bool_bits(sign, left, right)
        return _BITWISE[sign](*of_one_dtype(left, right))
    if sign == "@":
        return matmul(left, right)
    if sign == "/":
        _check_division(left, right)
        return torch.true_divide(*of_one_dtype(left, right, floats=torch.float32))
    left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))  # in arithmetic, True is 1
    # MXNet 1.x has no //, so that no float has to be truncated for it.
    return _ARITHMETIC[sign](*of_one_dtype(left, right, truncate=is_v1() and sign != "//"))


def of_one_dtype(
    left: Operand, right: Operand, floats: torch.dtype = torch.float64, truncate: bool = False
) -> tuple[Any, Any]:
    """Both sides in the dtype of the result.

    Unlike NumPy and MXNet, PyTorch gives 0-d arrays a lower priority when it promotes dtypes. In MXNet, an integer
    array combined with a float becomes float64 (`floats`), except in a division; in MXNet 1.x it keeps its dtype, and
    the float is truncated (`truncate`).
    """
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        common = torch.promote_types(left.dtype, right.dtype)
        return left.to(common), right.to(common)
    if isinstance(left, torch.Tensor):
        right = _number_beside(left, right, truncate)
        return _beside_number(left, right, floats), right
    assert isinstance(right, torch.Tensor)
    left = _number_beside(right, left, truncate)
    return left, _beside_number(right, left, floats)


def _number_beside(array: torch.Tensor, number: Any, truncate: bool) -> Any:
    return int(number) if truncate and isinstance(number, float) and not array.dtype.is_floating_point else number


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


def zero_gradient(value: torch.Tensor, *sides: Any) -> torch.Tensor:
    """A value whose gradient with respect to those of its sides that are tensors is zero."""
    sources = [side for side in sides if isinstance(side, torch.Tensor)]
    return _ZeroGradient.apply(value, *sources)  # type: ignore[no-any-return, no-untyped-call]


def _floor_divide(left: Any, right: Any) -> torch.Tensor:
    if not _is_floating(left, right) and bool(any_zero(right)):
        raise refusal("ndarray // 0 of integers", "convert to float32 first, or mask the zeros")
    if not _is_floating(left, right):
        return torch.floor_divide(left, right)
    with torch.no_grad():
        quotient = torch.floor(torch.true_divide(left, right))
    return zero_gradient(quotient, left, right)


def _remainder(left: Any, right: Any) -> torch.Tensor:
    # In MXNet, the remainder of a division by zero is 0.
    if bool(any_zero(right)) and any(isinstance(side, torch.Tensor) and side.requires_grad for side in (left, right)):
        raise refusal("the gradient of ndarray % 0", "mask the zeros")
    if not isinstance(right, torch.Tensor):
        return torch.remainder(left, right) if right != 0 else torch.zeros_like(left)
    zero = right == 0
    left = left if isinstance(left, torch.Tensor) else torch.full_like(right, left)
    return torch.remainder(left, right.masked_fill(zero, 1)).masked_fill(zero, 0)


def _power(left: Any, right: Any) -> torch.Tensor:
    if isinstance(right, torch.Tensor) and right.requires_grad and bool(any_zero(left)):
        raise refusal(
            "the gradient of 0 ** ndarray with respect to the exponent, which is NaN in MXNet", "mask the zeros"
        )
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


def any_zero(side: Any) -> Any:
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
    check_product("@", left, right)
    if not (left.ndim and right.ndim):  # type: ignore[union-attr]
        raise MXNetError("ndarray @ is not defined for 0-d arrays; use *")
    return torch.matmul(left, right)  # type: ignore[arg-type]


def dot(left: Operand, right: Operand) -> torch.Tensor:
    """The product of vectors and matrices, like `numpy.dot`."""
    check_product("dot", left, right)
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    if not (left.ndim and right.ndim):
        return left * right
    product: torch.Tensor = torch.tensordot(left, right, dims=([-1], [-2 if right.ndim > 1 else -1]))
    return product


def check_product(name: str, left: Operand, right: Operand) -> None:
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
    if not isinstance(left, torch.Tensor):
        left, right = right, left
    first, second = of_one_dtype(left, right, truncate=is_v1())
    second = second if isinstance(second, torch.Tensor) else torch.full_like(first, second)
    is_first = first >= second if name == "maximum" else first <= second
    is_number = ~(first.isnan() | second.isnan())
    nan = torch.full_like(first, float("nan")) if first.dtype.is_floating_point else first
    return torch.where(is_number, torch.where(is_first, first, second), nan)
