"""`mxnet.nd.random`: the same numbers as MXNet on a CPU, for the same seed."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.dtypes import dtype_name, torch_dtype
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.context import as_context
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.ops import sampling, spread_sampling

__all__ = [
    "categorical",
    "exponential",
    "exponential_like",
    "gamma",
    "gamma_like",
    "generalized_negative_binomial",
    "generalized_negative_binomial_like",
    "multinomial",
    "negative_binomial",
    "negative_binomial_like",
    "normal",
    "normal_like",
    "poisson",
    "poisson_like",
    "randint",
    "randn",
    "shuffle",
    "uniform",
    "uniform_like",
]

# What draws a flat sample: from the number of elements, the dtype in which it computes, and the parameters.
_Draw = Callable[..., Any]


def _uniform(count: int, dtype: Any, low: Any, high: Any) -> Any:
    return low + (high - low) * STREAM.spread_uniform((count,), dtype)


def _normal(count: int, dtype: Any, loc: Any, scale: Any) -> Any:
    return STREAM.spread_normal((count,), dtype) * scale + loc


def _exponential(count: int, dtype: Any, lam: Any) -> Any:
    return -numpy.log(1 - STREAM.spread_uniform((count,), dtype).astype(numpy.float64)) / lam


def _gamma(count: int, dtype: Any, alpha: Any, beta: Any) -> Any:
    return spread_sampling.gamma(alpha, beta, count, dtype)


def _poisson(count: int, dtype: Any, lam: Any) -> Any:
    return spread_sampling.poisson(lam, count)


def _negative_binomial(count: int, dtype: Any, k: Any, p: Any) -> Any:
    return spread_sampling.negative_binomial(k, p, count)


def _generalized_negative_binomial(count: int, dtype: Any, mu: Any, alpha: Any) -> Any:
    return spread_sampling.generalized_negative_binomial(mu, alpha, count)


def uniform(
    low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Uniform random numbers. If `low` and `high` are arrays, a sample of `shape` for each of their elements.

    >>> from leafwise_gluon import random
    >>> from leafwise_gluon.nd.random import uniform
    >>> random.seed(0)
    >>> uniform(shape=(2,)).asnumpy().tolist()
    [0.54881352186203, 0.5928446054458618]
    """
    return _sample(_uniform, (low, high), shape, dtype, ctx, out)


def normal(
    loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    return _sample(_normal, (loc, scale), shape, dtype, ctx, out)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    return _sample(_normal, (loc, scale), shape, dtype, ctx, out)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    return _sample(_exponential, (1.0 / scale,), shape, dtype, ctx, out)


def gamma(
    alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    return _sample(_gamma, (alpha, beta), shape, dtype, ctx, out)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    return _sample(_poisson, (lam,), shape, dtype, ctx, out)


def negative_binomial(
    k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    return _sample(_negative_binomial, (k, p), shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    return _sample(_generalized_negative_binomial, (mu, alpha), shape, dtype, ctx, out)


def randint(low: int, high: int, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Random integers from `low` to `high` - 1."""
    sizes = _sizes(shape, out)
    drawn = torch.from_numpy(sampling.randint(int(low), int(high), sizes))
    return _result(drawn.to(torch_dtype("int32" if dtype is None else dtype)), ctx, out)


def shuffle(data: NDArray) -> NDArray:
    """A copy of an array, shuffled along its first axis."""
    order = torch.from_numpy(sampling.shuffled_order(data.shape))
    return wrap_legacy(plain(data).detach()[order])


def categorical(data: NDArray, shape: Any = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32") -> Any:
    """Random indices. The last axis of `data` has their probabilities. `get_prob` returns their logarithms, too."""
    weights = plain(data)
    sizes = () if shape is None else _sizes(shape, None)
    indices = torch.from_numpy(sampling.categorical(weights.detach().numpy(), sizes))
    if not indices.dim():
        indices = indices.reshape(1)
    drawn = _result(indices.to(torch_dtype(dtype)), None, out)
    if not get_prob:
        return drawn
    rows = indices.reshape(*weights.shape[:-1], -1)
    return [drawn, wrap_legacy(torch.log(weights.gather(-1, rows)).reshape(indices.shape))]


def multinomial(*args: Any, **kwargs: Any) -> Any:
    """In MXNet 1.x the same as `categorical`."""
    if not dialect.is_v1():
        raise refusal(
            "nd.random.multinomial of MXNet 2.x", "use np.random.multinomial, or nd.random.categorical for indices"
        )
    return categorical(*args, **kwargs)


# -- with the shape, dtype and context of another array -------------------------------------------------------


def _like(draw: _Draw, data: NDArray, *parameters: float) -> NDArray:
    return _sample(draw, parameters, data.shape, data.dtype, data.ctx, None)


def uniform_like(data: NDArray, low: float = 0, high: float = 1) -> NDArray:
    return _like(_uniform, data, low, high)


def normal_like(data: NDArray, loc: float = 0, scale: float = 1) -> NDArray:
    return _like(_normal, data, loc, scale)


def exponential_like(data: NDArray, lam: float = 1) -> NDArray:
    return _like(_exponential, data, lam)


def gamma_like(data: NDArray, alpha: float = 1, beta: float = 1) -> NDArray:
    return _like(_gamma, data, alpha, beta)


def poisson_like(data: NDArray, lam: float = 1) -> NDArray:
    return _like(_poisson, data, lam)


def negative_binomial_like(data: NDArray, k: int = 1, p: float = 1) -> NDArray:
    return _like(_negative_binomial, data, k, p)


def generalized_negative_binomial_like(data: NDArray, mu: float = 1, alpha: float = 1) -> NDArray:
    return _like(_generalized_negative_binomial, data, mu, alpha)


# -- how a sample is drawn ------------------------------------------------------------------------------------


def _sample(draw: _Draw, parameters: tuple[Any, ...], shape: Any, dtype: Any, ctx: Any, out: Any) -> NDArray:
    first = parameters[0]
    kind: Any = ArrayValues if isinstance(first, ArrayValues) else numbers.Real
    if not isinstance(first, kind):
        raise ValueError(f"Distribution parameters must be either NDArray or numbers, but got {type(first)}.")
    for other in parameters[1:]:
        assert isinstance(other, kind), (
            f"Distribution parameters must all have the same type, but got both {type(first)} and {type(other)}."
        )
    if kind is ArrayValues:
        sizes = (*first.shape, *(() if shape is None else _sizes(shape, None)))
        dtype = first.dtype if dtype is None and numpy.dtype(first.dtype).kind == "f" else dtype
        each = math.prod(sizes) // max(first.size, 1)
        values: list[Any] = [numpy.repeat(parameter.asnumpy().reshape(-1), each) for parameter in parameters]
        ctx = first.ctx
    else:
        sizes = _sizes(shape, out)
        values = [numpy.float32(parameter) for parameter in parameters]
    target = torch_dtype(dtype if out is None or dtype is not None else out.dtype)
    if not target.is_floating_point:
        raise MXNetError(f"nd.random: float16, float32 and float64 are possible, not {dtype_name(target)}")
    # MXNet computes float16 in float64.
    computed = numpy.float32 if target == torch.float32 else numpy.float64
    drawn = draw(math.prod(sizes), computed, *values)
    return _result(torch.from_numpy(numpy.asarray(drawn)).to(target).reshape(sizes), ctx, out)


def _sizes(shape: Any, out: Any) -> tuple[int, ...]:
    if out is not None:
        return tuple(out.shape)
    if shape is None:
        return (1,)
    return tuple(int(size) for size in shape) if isinstance(shape, tuple | list) else (int(shape),)


def _result(values: torch.Tensor, ctx: Any, out: Any) -> NDArray:
    if out is not None:
        with torch.no_grad():
            out.tensor.copy_(values)
        return out  # type: ignore[no-any-return]
    context = as_context(ctx)
    return wrap_legacy(values.to(context.torch_device), context)


__getattr__ = names_of("mxnet.ndarray.random")
