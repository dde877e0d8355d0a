"""`mxnet.npx.random`: the seed, and distributions that NumPy does not have."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.np import random
from leafwise_gluon.random import seed

__all__ = ["bernoulli", "normal_n", "seed", "uniform_n"]


def bernoulli(
    prob: Any = None,
    logit: Any = None,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    ctx: Any = None,
) -> ndarray:
    """Ones with the probability `prob`, or with the logarithm `logit` of its odds, and otherwise zeros."""
    if (prob is None) == (logit is None):
        raise ValueError("Either `prob` or `logit` must be specified, but not both.")
    given = prob if logit is None else logit
    parameter = plain(given).detach() if isinstance(given, ArrayValues) else torch.tensor(given, dtype=torch.float32)
    threshold = torch.from_numpy(STREAM.uniform(random.sample_shape(size, parameter)))
    if logit is not None:
        threshold = torch.log(threshold) - torch.log(1 - threshold)
    return random.result((parameter > threshold).float(), dtype, device or ctx, out)


def uniform_n(
    low: Any = 0.0, high: Any = 1.0, batch_shape: Any = None, dtype: Any = None, device: Any = None, ctx: Any = None
) -> ndarray:
    """Uniform random numbers: a sample of `batch_shape` for each element of the parameters."""
    return random.uniform(low, high, _batch(batch_shape, low, high), dtype, device, None, ctx)


def normal_n(
    loc: Any = 0.0, scale: Any = 1.0, batch_shape: Any = None, dtype: Any = None, device: Any = None, ctx: Any = None
) -> ndarray:
    """Normal random numbers: a sample of `batch_shape` for each element of the parameters."""
    return random.normal(loc, scale, _batch(batch_shape, loc, scale), dtype, device, None, ctx)


def _batch(batch_shape: Any, *parameters: Any) -> tuple[int, ...]:
    shapes = [parameter.shape for parameter in parameters if isinstance(parameter, ArrayValues)]
    return (*(() if batch_shape is None else random.sample_shape(batch_shape)), *numpy.broadcast_shapes(*shapes))


__getattr__ = names_of("mxnet.numpy_extension.random")
