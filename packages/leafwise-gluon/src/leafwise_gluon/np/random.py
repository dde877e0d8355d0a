"""`mxnet.np.random`: the same numbers as MXNet on a CPU, for the same seed."""

import math
from typing import Any

import numpy
import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.context import as_context
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.ops import sampling
from leafwise_gluon.random import seed

__all__ = [
    "beta",
    "chisquare",
    "choice",
    "exponential",
    "f",
    "gamma",
    "gumbel",
    "laplace",
    "logistic",
    "lognormal",
    "multinomial",
    "multivariate_normal",
    "normal",
    "pareto",
    "power",
    "rand",
    "randint",
    "randn",
    "rayleigh",
    "seed",
    "shuffle",
    "uniform",
    "weibull",
]

_Size = int | tuple[int, ...] | None


def uniform(
    low: Any = 0.0,
    high: Any = 1.0,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Uniform random numbers in [low, high).

    >>> from leafwise_gluon import np
    >>> np.random.seed(0)
    >>> np.random.uniform(size=(2, 2))
    array([[0.5488135 , 0.5928446 ],
           [0.71518934, 0.84426576]])
    """
    low, high = _parameter(low).detach(), _parameter(high).detach()
    noise = _uniform_noise(sample_shape(size, low, high))
    return result(low + noise * (high - low), dtype, device or ctx, out)


def normal(
    loc: Any = 0.0,
    scale: Any = 1.0,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Random numbers from a normal distribution. They have gradients by `loc` and `scale`."""
    loc, scale = _parameter(loc), _not_negative(_parameter(scale), "scale < 0")
    noise = torch.from_numpy(STREAM.normal(sample_shape(size, loc, scale)))
    return result(loc + noise * scale, dtype, device or ctx, out)


def lognormal(
    mean: Any = 0.0,
    sigma: Any = 1.0,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    drawn = normal(mean, sigma, size, dtype, device, None, ctx)
    return result(torch.exp(plain(drawn)), drawn.dtype, device or ctx, out)


def rand(*size: int, **kwargs: Any) -> ndarray:
    return uniform(0, 1, size=size, **kwargs)


def randn(*size: int, **kwargs: Any) -> ndarray:
    return normal(0, 1, size=size, **kwargs)


def randint(
    low: int,
    high: int | None = None,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Random integers from `low` to `high` - 1, or from 0 to `low` - 1 if there is no `high`."""
    start, stop = (0, low) if high is None else (low, high)
    drawn = torch.from_numpy(numpy.asarray(sampling.randint(int(start), int(stop), sample_shape(size))))
    return result(drawn, "int64" if dtype in (None, int, "int") else dtype, device or ctx, out)


# -- from one uniform number ---------------------------------------------------------------------------


def exponential(scale: Any = 1.0, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None) -> ndarray:
    scale = _not_negative(_parameter(scale), "expect scale >= 0")
    return result(-_log(_uniform_noise(sample_shape(size, scale))) * scale, None, device or ctx, out)


def rayleigh(scale: Any = 1.0, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None) -> ndarray:
    scale = _not_negative(_parameter(scale), "expect scale >= 0")
    return result(torch.sqrt(-2 * _log(_uniform_noise(sample_shape(size, scale)))) * scale, None, device or ctx, out)


def weibull(a: Any, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None) -> ndarray:
    a = _positive(_parameter(a), "expect a > 0")
    return result(torch.pow(-_log(_uniform_noise(sample_shape(size, a))), 1 / a), None, device or ctx, out)


def pareto(a: Any, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None) -> ndarray:
    a = _positive(_parameter(a), "expect a > 0")
    return result(torch.exp(-_log(_uniform_noise(sample_shape(size, a))) / a) - 1, None, device or ctx, out)


def power(a: Any, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None) -> ndarray:
    a = _positive(_parameter(a).detach(), "expect a > 0")
    shape = sample_shape(size, a)
    noise = _uniform_noise((math.prod(shape) + 1,))[:-1].reshape(shape)  # MXNet draws one number more than it uses
    return result(torch.pow(1 - noise, 1 / a), None, device or ctx, out)


def gumbel(
    loc: Any = 0.0, scale: Any = 1.0, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None
) -> ndarray:
    loc, scale = _parameter(loc), _not_negative(_parameter(scale), "scale < 0")
    return result(loc - _log(-_log(_uniform_noise(sample_shape(size, loc, scale)))) * scale, None, device or ctx, out)


def logistic(
    loc: Any = 0.0, scale: Any = 1.0, size: _Size = None, device: Any = None, out: Any = None, ctx: Any = None
) -> ndarray:
    loc, scale = _parameter(loc), _not_negative(_parameter(scale), "scale < 0")
    noise = _uniform_noise(sample_shape(size, loc, scale))
    return result(loc + (_log(noise) - _log(1 - noise)) * scale, None, device or ctx, out)


def laplace(
    loc: Any = 0.0,
    scale: Any = 1.0,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    loc, scale = _parameter(loc).detach(), _parameter(scale).detach()
    noise = _uniform_noise(sample_shape(size, loc, scale))
    signed = torch.where(noise < 0.5, _log(2 * noise), -_log(2 * (1 - noise)))
    return result(loc + scale * signed, dtype, device or ctx, out)


# -- the gamma distribution and its relatives ------------------------------------------------------------


def gamma(
    shape: Any,
    scale: Any = 1.0,
    size: _Size = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Random numbers from a gamma distribution. They have no gradients."""
    size = size if out is None else out.shape
    a, factor = _parameter(shape), _parameter(scale)
    if differentiating() and (a.requires_grad or factor.requires_grad):
        raise refusal("gradients through np.random.gamma", "torch.distributions.Gamma(...).rsample() has them")
    _positive(a, "expect shape > 0")
    _positive(factor, "expect scale > 0")
    drawn = sampling.gamma(a.detach().numpy(), factor.detach().numpy(), sample_shape(size, a, factor))
    return result(torch.from_numpy(numpy.asarray(drawn)), dtype, device or ctx, out)


def beta(a: Any, b: Any, size: _Size = None, dtype: Any = None, device: Any = None, ctx: Any = None) -> ndarray:
    first = plain(gamma(a, 1, size, "float64"))
    second = plain(gamma(b, 1, size, "float64"))
    return result(first / (first + second), dtype, device or ctx, None)


def chisquare(df: Any, size: _Size = None, dtype: Any = None, device: Any = None, ctx: Any = None) -> ndarray:
    """Random numbers from a chi-square distribution; in MXNet 1.x, a quarter of them."""
    return gamma(df / 2, 1 / 2 if dialect.is_v1() else 2, size, dtype, device, None, ctx)


def f(dfnum: Any, dfden: Any, size: _Size = None, device: Any = None, ctx: Any = None) -> ndarray:
    first = chisquare(dfnum, size, device=device, ctx=ctx)
    second = chisquare(dfden, size, device=device, ctx=ctx)
    ratio: ndarray = first * dfden / (second * dfnum)
    return ratio


# -- choices -----------------------------------------------------------------------------------------------


def choice(
    a: Any,
    size: _Size = None,
    replace: bool = True,
    p: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Random elements of an array, or indices below a number. MXNet 2.0.0b1 ignores `p`; here it has its meaning."""
    weights = None if p is None else _parameter(p).detach().numpy()
    if isinstance(a, ArrayValues) and a.ndim != 1:
        raise refusal("np.random.choice from an array of several axes", "choose indices, and take them with a[...]")
    count = a.size if isinstance(a, ArrayValues) else int(a)
    indices = torch.from_numpy(numpy.asarray(sampling.choice(count, sample_shape(size), replace, weights)))
    if isinstance(a, ArrayValues):
        return result(plain(a)[indices], a.dtype, device or ctx, out)
    return result(indices, "int64", device or ctx, out)


def multinomial(n: int, pvals: Any, size: _Size = None) -> ndarray:
    """How often each of several outcomes occurs in `n` experiments."""
    if isinstance(pvals, numpy.ndarray):
        raise ValueError("numpy ndarray is not supported!")
    if isinstance(pvals, ArrayValues):
        counts = sampling.multinomial(n, pvals.asnumpy(), sample_shape(size))
    else:
        if any(isinstance(value, list) for value in pvals):
            raise ValueError("object too deep for desired array")
        counts = sampling.multinomial(n, [float(value) for value in pvals], sample_shape(size), extra=len(pvals))
    return result(torch.from_numpy(counts), "int64", None, None)


def multivariate_normal(mean: Any, cov: Any, size: _Size = None, check_valid: Any = None, tol: Any = None) -> ndarray:
    """Normal vectors. As in MXNet, they are multiplied by the transpose of the Cholesky factor of `cov`."""
    if check_valid is not None:
        raise NotImplementedError("Parameter `check_valid` is not supported")
    if tol is not None:
        raise NotImplementedError("Parameter `tol` is not supported")
    loc, covariance = plain(mean).detach(), plain(cov).detach()
    shape = numpy.broadcast_shapes(loc.shape, covariance.shape[:-1])
    noise = torch.from_numpy(STREAM.normal((*sample_shape(size), *shape))).to(loc.dtype)
    factor = torch.linalg.cholesky(covariance)
    return wrap(loc + torch.einsum("...jk,...j->...k", factor, noise))


def shuffle(x: ndarray) -> None:
    """Shuffles an array along its first axis, in place."""
    order = torch.from_numpy(sampling.shuffled_order(x.shape))
    with torch.no_grad():
        x.tensor.copy_(x.tensor.detach()[order])


# -- parameters, shapes and results ------------------------------------------------------------------------


def _parameter(value: Any) -> torch.Tensor:
    """A parameter of a distribution as a tensor; numbers have float32, as in MXNet."""
    if isinstance(value, ArrayValues):
        tensor: torch.Tensor = plain(value)
        return tensor
    return torch.as_tensor(value, dtype=torch.float32)


def _not_negative(value: torch.Tensor, message: str) -> torch.Tensor:
    if (value < 0).any():
        raise MXNetError(f"ValueError: {message}")
    return value


def _positive(value: torch.Tensor, message: str) -> torch.Tensor:
    if (value <= 0).any():
        raise MXNetError(f"ValueError: {message}")
    return value


def sample_shape(size: Any, *parameters: torch.Tensor) -> tuple[int, ...]:
    """The shape of a sample: `size`, or if it is None that of the parameters."""
    if size is None or size == ():
        return tuple(numpy.broadcast_shapes(*(parameter.shape for parameter in parameters)))
    shape = tuple(int(length) for length in size) if isinstance(size, tuple | list) else (int(size),)
    for parameter in parameters:
        fits = parameter.ndim <= len(shape) and all(
            own in (1, length) for own, length in zip(reversed(parameter.shape), reversed(shape), strict=False)
        )
        if not fits:
            raise refusal(
                f"np.random: a parameter of shape {tuple(parameter.shape)} for a sample of size {shape}",
                "pass a size that the parameter can be broadcast to",
            )
    return shape


def _uniform_noise(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(STREAM.uniform(shape))


def _log(values: torch.Tensor) -> torch.Tensor:
    """The logarithm, rounded once: float32 functions differ between machines in the last bit."""
    return torch.log(values.double()).to(values.dtype)


def result(values: torch.Tensor, dtype: Any, ctx: Any, out: Any) -> ndarray:
    """A sample as an array, in `out` if it is given."""
    values = values.to(torch_dtype(dtype))
    if out is not None:
        with torch.no_grad():
            out.tensor.copy_(values)
        return out  # type: ignore[no-any-return]
    context = as_context(ctx)
    return wrap(values.to(context.torch_device), context)


__getattr__ = names_of("mxnet.numpy.random")
