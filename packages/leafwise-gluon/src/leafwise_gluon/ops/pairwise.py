"""Functions of each pair of elements of two arrays that have no operator, with MXNet's dtypes, over plain tensors."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.arithmetic import Operand, any_zero, of_one_dtype, zero_gradient


def pairwise(name: str, left: Operand, right: Operand) -> torch.Tensor:
    """A function of two arrays, or of an array and a number; at least one side is a tensor."""
    left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))
    if name in _LOGICAL:
        return _LOGICAL[name](*(side != 0 if isinstance(side, torch.Tensor) else _flag(side) for side in (left, right)))
    _check(name, left, right)
    first, second = of_one_dtype(left, right, truncate=is_v1() and name in ("copysign", "lcm", "ldexp"))
    try:
        return _FUNCTIONS[name](first, second)
    except RuntimeError as error:
        if isinstance(error, MXNetError | torch.OutOfMemoryError):
            raise
        raise MXNetError(f"np.{name}: {error}") from error


def _flag(number: Any) -> torch.Tensor:
    return torch.tensor(bool(number))


def _check(name: str, left: Operand, right: Operand) -> None:
    tensors = [side for side in (left, right) if isinstance(side, torch.Tensor)]
    if any(tensor.dtype == torch.bool for tensor in tensors):
        raise MXNetError(f"np.{name} is not defined for bool")
    floating = [tensor.dtype.is_floating_point for tensor in tensors]
    if name in _INTEGERS:
        if any(floating) or any(isinstance(side, float) for side in (left, right)):
            raise MXNetError(f"np.{name} needs integers")
    elif name in _FLOATS and not any(floating):
        numbers = [side for side in (left, right) if not isinstance(side, torch.Tensor)]
        if not numbers:
            raise MXNetError(f"np.{name} is not defined for integers; use .astype('float32') first")
        if is_v1() or not isinstance(numbers[0], float):
            raise refusal(f"np.{name} of integers, which MXNet truncates", "use .astype('float32') first")
    if len({tensor.dtype for tensor in tensors}) > 1 and not (name in _MIXING and not is_v1()):
        dtypes = " and ".join(dtype_name(tensor.dtype) for tensor in tensors)
        raise MXNetError(f"np.{name} needs arrays of the same dtype, not {dtypes}; use .astype()")


def _fmod(left: Any, right: Any) -> torch.Tensor:
    # In MXNet, the remainder of a division by zero is 0.
    if bool(any_zero(right)) and any(isinstance(side, torch.Tensor) and side.requires_grad for side in (left, right)):
        raise refusal("the gradient of np.fmod by 0", "mask the zeros")
    left, right = _tensors(left, right)
    zero = right == 0
    divisor = right.masked_fill(zero, 1)
    if not divisor.requires_grad:
        return torch.fmod(left, divisor).masked_fill(zero, 0)
    # The gradient of the divisor is that of a remainder which is rounded down.
    with torch.no_grad():
        value, quotient = torch.fmod(left, divisor), torch.floor(left / divisor)
    remainder: torch.Tensor = value + (left - left.detach()) - quotient * (divisor - divisor.detach())
    return remainder


def _tensors(left: Any, right: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides as tensors of one dtype."""
    example = left if isinstance(left, torch.Tensor) else right
    sides = (side if isinstance(side, torch.Tensor) else torch.full_like(example, side) for side in (left, right))
    return tuple(sides)  # type: ignore[return-value]


def _first_of_equals(name: str) -> Callable[[Any, Any], torch.Tensor]:
    """`fmax` and `fmin`: NaN counts as missing, and the first of two equal sides gets the whole gradient."""

    def function(left: Any, right: Any) -> torch.Tensor:
        number_first = not isinstance(left, torch.Tensor)
        first, second = _tensors(right, left) if number_first else _tensors(left, right)
        is_first = first >= second if name == "fmax" else first <= second
        return torch.where(is_first, first, torch.where(second.isnan(), first.detach(), second))

    return function


def _arctan2(left: Any, right: Any) -> torch.Tensor:
    if not isinstance(left, torch.Tensor) and right.requires_grad:
        raise refusal("the gradient of np.arctan2(number, x), which is wrong in MXNet", "use an array of the number")
    return torch.arctan2(*_tensors(left, right))


def _hypot(left: Any, right: Any) -> torch.Tensor:
    first, second = _tensors(left, right)
    return torch.hypot(first, second)


def _copysign(left: Any, right: Any) -> torch.Tensor:
    if isinstance(left, torch.Tensor) and left.requires_grad and not isinstance(right, torch.Tensor):
        raise MXNetError("np.copysign of an array and a number has no gradient; use np.abs")
    first, second = _tensors(left, right)
    if not isinstance(left, torch.Tensor):
        return zero_gradient(torch.copysign(first, second).detach(), right)
    if first.dtype.is_floating_point:
        signs = torch.where(torch.signbit(first.detach()) == torch.signbit(second.detach()), 1.0, -1.0).to(first.dtype)
        return first * signs
    return torch.where(second < 0, -first.abs(), first.abs())


def _logaddexp(left: Any, right: Any) -> torch.Tensor:
    return torch.logaddexp(*_tensors(left, right))


def _ldexp(left: Any, right: Any) -> torch.Tensor:
    first, second = _tensors(left, right)
    if first.dtype.is_floating_point:
        return first * torch.pow(2.0, second)
    return (first * torch.pow(2.0, second.double())).to(first.dtype)


def _lcm(left: Any, right: Any) -> torch.Tensor:
    return torch.lcm(*_tensors(left, right))


def _gcd(left: Any, right: Any) -> torch.Tensor:
    return torch.gcd(*_tensors(left, right))


_FUNCTIONS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "arctan2": _arctan2,
    "copysign": _copysign,
    "fmax": _first_of_equals("fmax"),
    "fmin": _first_of_equals("fmin"),
    "fmod": _fmod,
    "gcd": _gcd,
    "hypot": _hypot,
    "lcm": _lcm,
    "ldexp": _ldexp,
    "logaddexp": _logaddexp,
}
_LOGICAL: dict[str, Callable[..., torch.Tensor]] = {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
_INTEGERS = ("gcd", "lcm")
_FLOATS = ("arctan2", "hypot", "logaddexp")
_MIXING = ("arctan2", "logaddexp")  # of arrays of two dtypes
NAMES = (*_FUNCTIONS, *_LOGICAL)
