"""Functions of each element. The result has the dtype of the array; with integers, MXNet computes in float32 and
truncates."""

import math
from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name, torch_dtype
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.legacy.gradients import straight_through, with_loss_gradient, with_zero_gradient
from leafwise_gluon.ops.neural_checks import check_count

Function = Callable[[torch.Tensor], torch.Tensor]


def _in_dtype_of(data: torch.Tensor, name: str, compute: Function, wide: torch.dtype = torch.float32) -> torch.Tensor:
    if data.dtype == torch.bool:
        raise refusal(f"nd.{name} of bool", "use .astype('float32') first")
    if data.dtype.is_floating_point:
        return compute(data)
    result = compute(data.to(wide))
    limits = torch.iinfo(data.dtype)
    if not bool(((result >= limits.min) & (result <= limits.max)).all()):
        raise refusal(f"nd.{name} of integers whose result does not fit", "use .astype('float32') first")
    return result.to(data.dtype)


def _unary(name: str, compute: Function, wide: torch.dtype = torch.float32) -> Callable[..., torch.Tensor]:
    def function(data: torch.Tensor) -> torch.Tensor:
        return _in_dtype_of(data, name, compute, wide)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of every element."
    return function


def _integral(name: str, compute: Function) -> Callable[..., torch.Tensor]:
    """A function without a gradient that leaves integers as they are."""

    def function(data: torch.Tensor) -> torch.Tensor:
        if not data.dtype.is_floating_point:
            return data.clone()
        return with_zero_gradient(compute(data.detach()), data)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of every element; its gradient is zero."
    return function


def _round_half_away(x: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def _round_half_down(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x - torch.floor(x) <= torch.ceil(x) - x, torch.floor(x), torch.ceil(x))


def _cbrt(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x) * torch.pow(torch.abs(x), 1 / 3)


def _gamma(x: torch.Tensor) -> torch.Tensor:
    negative = (x < 0) & (torch.floor(x) % 2 != 0)
    values = torch.where(negative, -1.0, 1.0).to(x.dtype) * torch.exp(torch.lgamma(x))
    return torch.where((x < 0) & (x == torch.floor(x)), torch.nan, values)  # not defined for -1, -2, ...


ceil, floor = _integral("ceil", torch.ceil), _integral("floor", torch.floor)
trunc, fix = _integral("trunc", torch.trunc), _integral("fix", torch.trunc)
round, rint = _integral("round", _round_half_away), _integral("rint", _round_half_down)

cos, cosh, sin, sinh = (_unary(f.__name__, f) for f in (torch.cos, torch.cosh, torch.sin, torch.sinh))
tan, tanh, exp, expm1 = (_unary(f.__name__, f) for f in (torch.tan, torch.tanh, torch.exp, torch.expm1))
log, log10, log1p, log2 = (_unary(f.__name__, f) for f in (torch.log, torch.log10, torch.log1p, torch.log2))
arccos, arcsin, arctan = (_unary(f.__name__, f) for f in (torch.arccos, torch.arcsin, torch.arctan))
arccosh, arcsinh, arctanh = (_unary(f.__name__, f) for f in (torch.arccosh, torch.arcsinh, torch.arctanh))
sqrt, rsqrt, reciprocal = (_unary(f.__name__, f) for f in (torch.sqrt, torch.rsqrt, torch.reciprocal))
erf = _unary("erf", torch.erf, torch.float64)  # erf(4) is below 1, and 0 as an integer, but 1 in float32
erfinv, sigmoid = _unary("erfinv", torch.erfinv), _unary("sigmoid", torch.sigmoid)
cbrt, rcbrt = _unary("cbrt", _cbrt), _unary("rcbrt", lambda x: 1 / _cbrt(x))
gamma, gammaln, digamma = _unary("gamma", _gamma), _unary("gammaln", torch.lgamma), _unary("digamma", torch.digamma)
degrees, radians = _unary("degrees", torch.rad2deg), _unary("radians", torch.deg2rad)
softsign = _unary("softsign", torch.nn.functional.softsign)
log_sigmoid, mish = _unary("log_sigmoid", torch.nn.functional.logsigmoid), _unary("mish", torch.nn.functional.mish)


def abs(data: torch.Tensor) -> torch.Tensor:
    return _number_of(data, "abs").abs()


def negative(data: torch.Tensor) -> torch.Tensor:
    return -_number_of(data, "negative")


def square(data: torch.Tensor) -> torch.Tensor:
    return _number_of(data, "square") * data


def relu(data: torch.Tensor) -> torch.Tensor:
    return torch.relu(_number_of(data, "relu"))


def sign(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.sign(_number_of(data, "sign")), data)


def logical_not(data: torch.Tensor) -> torch.Tensor:
    """1 where an element is 0, and 0 elsewhere, in the dtype of the array."""
    return with_zero_gradient((data == 0).to(data.dtype), data)


def _number_of(data: torch.Tensor, name: str) -> torch.Tensor:
    if data.dtype == torch.bool:
        raise refusal(f"nd.{name} of bool", "use .astype('float32') first")
    return data


def hard_sigmoid(data: torch.Tensor, alpha: float = 0.2, beta: float = 0.5) -> torch.Tensor:
    return _in_dtype_of(data, "hard_sigmoid", lambda x: torch.clamp(alpha * x + beta, 0, 1))


def smooth_l1(data: torch.Tensor, scalar: float = 1.0) -> torch.Tensor:
    """Quadratic up to 1 / scalar² and linear above it."""
    limit = 1 / scalar**2

    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < limit, 0.5 * scalar**2 * x * x, x.abs() - 0.5 * limit)

    return _in_dtype_of(data, "smooth_l1", compute)


def clip(data: torch.Tensor, a_min: Any = None, a_max: Any = None) -> torch.Tensor:
    """Values outside the bounds become the bounds, and have no gradient."""
    if a_min is None or a_max is None:
        raise MXNetError("nd.clip needs both a_min and a_max")
    if a_min > a_max:
        raise refusal("nd.clip with a_min above a_max", "pass the smaller bound first")
    if not data.dtype.is_floating_point:
        a_min, a_max = int(a_min), int(a_max)
    outside = (data < a_min) | (data > a_max)
    return torch.where(outside, torch.clamp(data.detach(), a_min, a_max), data)


def cast(data: torch.Tensor, dtype: Any) -> torch.Tensor:
    """A copy in another dtype."""
    target = torch_dtype(dtype)
    if target == torch.uint8 and data.dtype.is_floating_point:
        data = data.to(torch.int64)  # a negative number wraps around, as it does in MXNet
    result = data.to(target, copy=True)
    return result if target.is_floating_point else with_zero_gradient(result, data)


def amp_cast(data: torch.Tensor, dtype: Any) -> torch.Tensor:
    """A copy in another dtype, of floats only."""
    return cast(data, dtype) if data.dtype.is_floating_point else data.clone()


def cast_storage(data: torch.Tensor, stype: str) -> torch.Tensor:
    """A copy; arrays are always dense."""
    if stype != "default":
        raise refusal(f"nd.cast_storage to {stype!r}", "arrays are dense")
    return data.clone()


def identity(data: torch.Tensor) -> torch.Tensor:
    return data.clone()


def stop_gradient(data: torch.Tensor) -> torch.Tensor:
    """A copy through which no gradient passes."""
    return with_zero_gradient(data.detach().clone(), data)


def make_loss(data: torch.Tensor) -> torch.Tensor:
    """A copy whose gradient is one, whatever gradient arrives from above."""
    return with_loss_gradient(data)


def MakeLoss(  # noqa: N802
    data: torch.Tensor, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: str = "null"
) -> torch.Tensor:
    """A copy whose gradient is `grad_scale`, divided by the batch size if `normalization` is 'batch'."""
    if normalization not in ("null", "batch"):
        raise refusal(f"nd.MakeLoss with normalization={normalization!r}", "use 'null' or 'batch'")
    return with_loss_gradient(data, grad_scale / (data.shape[0] if normalization == "batch" else 1))


def zeros_like(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.zeros_like(data), data)


def ones_like(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.ones_like(data), data)


def shape_array(data: torch.Tensor) -> torch.Tensor:
    """The shape as an int64 array."""
    return torch.tensor(data.shape, dtype=torch.int64)


def size_array(data: torch.Tensor) -> torch.Tensor:
    """The number of elements as an int64 array of shape (1,)."""
    return torch.tensor([data.numel()], dtype=torch.int64)


def all_finite(data: torch.Tensor, init_output: bool = True) -> torch.Tensor:
    """1 if every element is finite, and 0 otherwise, as an array of shape (1,)."""
    return multi_all_finite(data, init_output=init_output)


def multi_all_finite(*arrays: torch.Tensor, num_arrays: int = 1, init_output: bool = True) -> torch.Tensor:
    check_count("nd.multi_all_finite", "num_arrays", num_arrays, arrays)
    if not init_output:
        raise refusal("nd.all_finite with init_output=False", "leave it out, and multiply the results")
    finite = math.prod(bool(torch.isfinite(data).all()) for data in arrays)
    return torch.tensor([float(finite)])


def multi_sum_sq(*arrays: torch.Tensor, num_arrays: int) -> torch.Tensor:
    """The sum of squares of each array."""
    check_count("nd.multi_sum_sq", "num_arrays", num_arrays, arrays)
    return torch.stack([(data.detach().float() ** 2).sum() for data in arrays])


def sign_ste(data: torch.Tensor) -> torch.Tensor:
    """The sign, with the gradient of the identity."""
    return straight_through(data, torch.sign(data))


def round_ste(data: torch.Tensor) -> torch.Tensor:
    """The rounded values, with the gradient of the identity."""
    return straight_through(data, _round_half_away(data))


def check_float(name: str, data: torch.Tensor) -> None:
    if not data.dtype.is_floating_point:
        raise refusal(f"nd.{name} of {dtype_name(data.dtype)}", "use .astype('float32') first")
