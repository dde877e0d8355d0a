"""Functions of each element of one array, with MXNet's dtypes, over plain tensors."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1


class _CubeRoot(torch.autograd.Function):
    """The cube root, also of negative numbers; its gradient at 0 is infinite."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        root = tensor.sign() * tensor.abs().pow(1 / 3)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (root,) = ctx.saved_tensors
        return grads[0] / (3 * root * root)


def _cube_root(tensor: torch.Tensor) -> torch.Tensor:
    return _CubeRoot.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]


def _rint(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest integer; unlike NumPy, MXNet rounds halves down."""
    down = torch.floor(tensor)
    return torch.where(tensor - down > 0.5, down + 1, torch.where(tensor.isinf(), tensor.detach(), down))


def _reciprocal(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        return torch.reciprocal(tensor)
    if bool((tensor == 0).any()):
        raise refusal("np.reciprocal of the integer 0", "use .astype('float32') first")
    return torch.div(1, tensor, rounding_mode="trunc")


# Functions for which integers stay integers, and bool is an error.
_KEEPING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "absolute": torch.abs,
    "fabs": torch.abs,
    "negative": torch.neg,
    "reciprocal": _reciprocal,
    "sign": torch.sign,
    "square": torch.square,
}
_FLOATING_IN_TORCH = (
    "exp expm1 log log10 log2 log1p sqrt rsqrt ceil floor trunc fix sin cos tan arcsin arccos arctan sinh cosh tanh "
    "arcsinh arccosh arctanh asin acos atan asinh acosh atanh deg2rad rad2deg sigmoid"
)
# Functions whose result is a float.
_FLOATING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _FLOATING_IN_TORCH.split()},
    "cbrt": _cube_root,
    "degrees": torch.rad2deg,
    "radians": torch.deg2rad,
    "rint": _rint,
}
# Functions whose result is bool.
_TRUTHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "isneginf": torch.isneginf,
    "isposinf": torch.isposinf,
    "logical_not": torch.logical_not,
}
ROUNDING = ("ceil", "floor", "trunc")  # of integers, they give the array itself
NAMES = (*_KEEPING, *(name for name in _FLOATING if name not in ("rsqrt", "sigmoid")), *_TRUTHS)


def elementwise(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A function of each element. Integers become floats, unless the function keeps integers."""
    if name in _TRUTHS:
        return _TRUTHS[name](tensor)
    if name in _KEEPING:
        if tensor.dtype == torch.bool:
            raise MXNetError(f"np.{name} is not defined for bool; use .astype('float32') first")
        return _KEEPING[name](tensor)
    function = _FLOATING[name]
    if tensor.dtype.is_floating_point:
        return function(tensor)
    if is_v1():
        if name in ROUNDING and tensor.dtype != torch.bool:
            return tensor.clone()
        raise refusal(
            f"np.{name} of {dtype_name(tensor.dtype)}, which MXNet 1.x truncates", "use .astype('float32') first"
        )
    small = tensor.dtype in (torch.uint8, torch.int8, torch.bool)
    result = function(tensor.to(torch.float32))
    return result.to(torch.float16) if small else result


def inverted(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        raise MXNetError(f"np.invert is not defined for {dtype_name(tensor.dtype)}")
    return torch.bitwise_not(tensor)


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
    low, high = (bound.item() if hasattr(bound, "dtype") and not bound.shape else bound for bound in (low, high))
    for bound in (low, high):
        if bound is not None and not isinstance(bound, int | float):
            raise MXNetError(f"ndarray.clip needs numbers as bounds, not {type(bound).__name__}")
        if isinstance(bound, float) and not tensor.dtype.is_floating_point:
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


def without_nan(tensor: torch.Tensor, nan: Any, posinf: Any, neginf: Any) -> torch.Tensor:
    """Replaces NaN and infinities by numbers; the gradient there is 0."""
    return torch.nan_to_num(tensor, nan=nan, posinf=posinf, neginf=neginf)
