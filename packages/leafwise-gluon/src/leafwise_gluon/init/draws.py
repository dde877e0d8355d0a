"""Random numbers for initializers: from the stream of `np.random` in NumPy mode, and from that of `nd.random`
otherwise."""

import importlib
from typing import Any

import torch

from leafwise_gluon.arrays.values import plain
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.np import random as np_random


def fill_uniform(arr: Any, low: float, high: float) -> None:
    """Fills an array with numbers from a uniform distribution."""
    write(arr, draw("uniform", low, high, arr.shape, arr.dtype))


def fill_normal(arr: Any, mean: float, scale: float) -> None:
    """Fills an array with numbers from a normal distribution."""
    write(arr, draw("normal", mean, scale, arr.shape, arr.dtype))


def draw(distribution: str, first: float, second: float, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """An array of random numbers, from the stream of the current mode."""
    if is_np_array():
        return getattr(np_random, distribution)(first, second, shape, dtype=dtype)
    nd_random = importlib.import_module("leafwise_gluon.nd.random")
    return getattr(nd_random, distribution)(first, second, shape, dtype=dtype)


def write(arr: Any, values: Any) -> None:
    """Writes values into an array, in place; a number is written everywhere."""
    with torch.no_grad():
        target = plain(arr)
        target.copy_(torch.as_tensor(plain(values), dtype=target.dtype))
