"""Averages, quantiles, differences and counts, over plain tensors."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.reductions import check_gradient, mean
from leafwise_gluon.ops.reductions import sum as total

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def average(tensor: torch.Tensor, axis: Any, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The average, and the sum of the weights."""
    if not tensor.dtype.is_floating_point:
        raise refusal("np.average of integers, which MXNet truncates", "use .astype('float32') first")
    if weights is None:
        result = mean(tensor, axis, tensor.dtype, False)
        return result, torch.full_like(result, tensor.numel() // max(result.numel(), 1))
    if weights.shape != tensor.shape:
        if not isinstance(axis, int) or weights.ndim != 1 or weights.shape[0] != tensor.shape[axis]:
            raise MXNetError("np.average: weights must have the shape of the array, or be a vector along the axis")
        weights = weights.reshape([-1 if at == axis % tensor.ndim else 1 for at in range(tensor.ndim)])
    scale = total(weights.expand(tensor.shape), axis, None, False)
    return total(tensor * weights, axis, None, False) / scale, scale


def quantile(name: str, tensor: torch.Tensor, q: Any, axis: Any, method: str, keepdims: bool) -> torch.Tensor:
    """`quantile`, `percentile` (`q` in percent) and `median`."""
    if method not in _INTERPOLATIONS:
        raise MXNetError(f"np.{name}: unknown interpolation {method!r}; use one of {', '.join(_INTERPOLATIONS)}")
    if tensor.dtype == torch.bool or not tensor.ndim or not tensor.numel():
        raise MXNetError(
            f"np.{name} is not defined for {dtype_name(tensor.dtype)} arrays of shape {tuple(tensor.shape)}"
        )
    if isinstance(q, list | tuple):
        raise MXNetError(f"np.{name} needs a number or an array as q, not {type(q).__name__}; use np.array(q)")
    check_gradient(f"np.{name}", tensor)
    fraction: Any = q.detach().cpu().numpy().astype("float64") if isinstance(q, torch.Tensor) else float(q)
    fraction = fraction / 100 if name == "percentile" else fraction
    if not numpy.all((numpy.asarray(fraction) >= 0) & (numpy.asarray(fraction) <= 1)):
        raise MXNetError(f"np.{name}: q must lie between 0 and {100 if name == 'percentile' else 1}")
    axes = tuple(axis) if isinstance(axis, list) else axis
    find: Any = numpy.quantile
    values = tensor.cpu().double().numpy()
    try:
        computed = find(values, fraction, axes, method=method, keepdims=keepdims)
    except numpy.exceptions.AxisError as error:
        raise MXNetError(f"np.{name}: {error}") from error
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.from_numpy(numpy.asarray(computed)).to(device=tensor.device, dtype=dtype)


def differences(tensor: torch.Tensor, order: int, axis: int) -> torch.Tensor:
    if order < 0:
        raise MXNetError(f"np.diff: n must not be negative, but is {order}")
    if not -tensor.ndim <= axis < tensor.ndim:
        raise MXNetError(f"np.diff: axis {axis} is out of bounds for array of dimension {tensor.ndim}")
    if tensor.dtype == torch.bool:
        raise MXNetError("np.diff is not defined for bool")
    result = torch.diff(tensor, order, axis)
    return result if order else result.clone()


def flat_differences(tensor: torch.Tensor, before: Any, after: Any) -> torch.Tensor:
    """The differences of neighbours in row-major order, between other numbers."""
    parts = [torch.diff(tensor.reshape(-1))]
    for at, extra in ((0, before), (2, after)):
        if extra is not None:
            numbers = extra if isinstance(extra, torch.Tensor) else torch.tensor(extra, device=tensor.device)
            parts.insert(at, numbers.to(tensor.dtype).reshape(-1))
    return torch.cat(parts)


def counts(tensor: torch.Tensor, weights: torch.Tensor | None, minlength: int) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype == torch.bool or tensor.ndim != 1:
        raise MXNetError(f"np.bincount needs a vector of integers, not {dtype_name(tensor.dtype)}")
    if tensor.numel() and int(tensor.min()) < 0:
        raise MXNetError("np.bincount needs integers that are not negative")
    if weights is None:
        return torch.bincount(tensor, minlength=minlength)
    check_gradient("np.bincount", weights)
    return torch.bincount(tensor, weights, minlength).to(weights.dtype)


def polynomial(coefficients: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The value of a polynomial, highest power first."""
    if coefficients.dtype != x.dtype:
        dtypes = f"{dtype_name(coefficients.dtype)} and {dtype_name(x.dtype)}"
        raise MXNetError(f"np.polyval needs arrays of the same dtype, not {dtypes}; use .astype()")
    value = torch.zeros_like(x)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value
