"""The operators of `mxnet.nd` that draw random numbers: `nd.random_uniform`, `nd.sample_normal` and their relatives.

They are the functions of `nd.random` under other names. Only `random_exponential` takes another parameter.
"""

from typing import Any

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.nd import random

__all__ = [
    "normal",
    "random_exponential",
    "random_gamma",
    "random_generalized_negative_binomial",
    "random_negative_binomial",
    "random_normal",
    "random_poisson",
    "random_randint",
    "random_uniform",
    "sample_exponential",
    "sample_gamma",
    "sample_generalized_negative_binomial",
    "sample_multinomial",
    "sample_negative_binomial",
    "sample_normal",
    "sample_poisson",
    "sample_uniform",
    "shuffle",
    "uniform",
]


def random_exponential(
    lam: Any = 1.0, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    """Random numbers from an exponential distribution with the rate `lam`; `nd.random` takes a scale instead."""
    return random.exponential(1.0 / lam, shape, dtype, ctx, out)


def random_uniform(
    low: Any = 0, high: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.uniform(low, high, shape, dtype, ctx, out)


def random_normal(
    loc: Any = 0, scale: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.normal(loc, scale, shape, dtype, ctx, out)


def random_gamma(
    alpha: Any = 1, beta: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.gamma(alpha, beta, shape, dtype, ctx, out)


def random_poisson(lam: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None) -> NDArray:
    return random.poisson(lam, shape, dtype, ctx, out)


def random_negative_binomial(
    k: Any = 1, p: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.negative_binomial(k, p, shape, dtype, ctx, out)


def random_generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.generalized_negative_binomial(mu, alpha, shape, dtype, ctx, out)


def random_randint(
    low: int, high: int, shape: Any = None, ctx: Any = None, dtype: Any = None, out: Any = None
) -> NDArray:
    return random.randint(low, high, shape, dtype, ctx, out)


def sample_exponential(lam: NDArray, shape: Any = None, dtype: Any = None, out: Any = None) -> NDArray:
    return random_exponential(lam, shape, None, dtype, out)


# These take arrays of parameters, in this order: parameters, shape, dtype.
sample_uniform = random.uniform
sample_normal = random.normal
sample_gamma = random.gamma
sample_poisson = random.poisson
sample_negative_binomial = random.negative_binomial
sample_generalized_negative_binomial = random.generalized_negative_binomial
sample_multinomial = random.multinomial
shuffle = random.shuffle
uniform, normal = random_uniform, random_normal
