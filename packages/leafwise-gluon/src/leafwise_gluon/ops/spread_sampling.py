"""Random samples of `nd.random`, drawn as MXNet draws them: each number by itself, from one of many generators.

Parameters are numbers, or flat arrays with one element for each number of a sample. Results are flat NumPy arrays.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.twister import Twister

_Sampler = Callable[..., float]


def _one_by_one(count: int, sampler: _Sampler, *parameters: Any) -> Any:
    columns = [np.broadcast_to(np.asarray(parameter, np.float32), (count,)) for parameter in parameters]

    def draw(twister: Twister, part: slice) -> Any:
        rows = zip(*(column[part].tolist() for column in columns), strict=True)
        return np.array([sampler(twister, *row) for row in rows], np.float64)

    return STREAM.spread(count, draw)


def gamma(alpha: Any, beta: Any, count: int, dtype: Any = np.float32) -> Any:
    def sampler(twister: Twister, a: float, b: float) -> float:
        return _gamma(twister, a, b, dtype)

    return _one_by_one(count, sampler, alpha, beta)


def poisson(lam: Any, count: int) -> Any:
    return _one_by_one(count, _poisson, lam)


def negative_binomial(k: Any, p: Any, count: int) -> Any:
    def sampler(twister: Twister, k: float, p: float) -> float:
        return _poisson(twister, _gamma(twister, k, float(np.float32((1 - p) / p)), np.float32))

    return _one_by_one(count, sampler, k, p)


def generalized_negative_binomial(mu: Any, alpha: Any, count: int) -> Any:
    def sampler(twister: Twister, mu: float, alpha: float) -> float:
        if not alpha:
            return _poisson(twister, mu)
        a, b = float(np.float32(1) / np.float32(alpha)), float(np.float32(alpha) * np.float32(mu))
        return _poisson(twister, _gamma(twister, a, b, np.float32))

    return _one_by_one(count, sampler, mu, alpha)


def _gamma(twister: Twister, a: float, b: float, dtype: Any) -> float:
    """Marsaglia and Tsang's method, with MXNet's rounding to `dtype` after each step."""
    d = dtype(a + 2 / 3 if a < 1 else a - 1 / 3)
    k = dtype(math.sqrt(9 * float(d)))
    c = dtype(1 / float(k))
    while True:
        z = twister.separate_normal(1, dtype)[0]
        if z <= -k:
            continue
        x = dtype(1 + float(c * z))
        v = x * x * x
        uniform = float(twister.uniform(1, dtype)[0])
        bound = 0.5 * float(z) * float(z) + float(d) * (1 - float(v) + math.log(v))
        if math.log(1 - uniform) < bound:
            sample = d * v * dtype(b)
            break
    if a < 1:
        sample = sample * dtype(float(twister.uniform(1, dtype)[0]) ** float(dtype(1 / a)))
    return float(sample)


def _poisson(twister: Twister, lam: float) -> float:
    """Products of uniform numbers for a small `lam`, and otherwise rejection from a Cauchy distribution."""
    if lam < 12:
        least, count = np.float32(math.exp(-lam)), 0
        product = twister.uniform(1)[0]
        while product > least:
            product *= twister.uniform(1)[0]
            count += 1
        return count
    width, logarithm = np.float32(math.sqrt(2 * lam)), np.float32(math.log(lam))
    peak = np.float32(np.float32(lam) * logarithm - np.float32(math.lgamma(lam + 1)))
    while True:
        y = np.float32(math.tan(float(np.float32(3.1415926) * twister.uniform(1)[0])))
        rounded = np.float32(width * y + np.float32(lam))
        if rounded < 0:
            continue
        rounded = np.floor(rounded)
        exponent = rounded * logarithm - np.float32(math.lgamma(float(rounded) + 1)) - peak
        if twister.uniform(1)[0] <= 0.9 * (1 + float(y) * float(y)) * math.exp(float(exponent)):
            return float(rounded)
