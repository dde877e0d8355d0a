"""`mxnet.np.random`: the same numbers as MXNet on a CPU, for the same seed."""

from typing import Any

import torch

from leafwise.gluon.arrays.dtypes import torch_dtype
from leafwise.gluon.arrays.ndarray import ndarray, wrap
from leafwise.gluon.arrays.random_stream import STREAM
from leafwise.gluon.base import missing

__all__ = ["normal", "rand", "randn", "seed", "uniform"]

_Size = int | tuple[int, ...] | None


def seed(seed: int = 0) -> None:
    """Restarts the random numbers from a seed; MXNet's default is 0."""
    STREAM.seed(seed)


def uniform(
    low: float = 0.0, high: float = 1.0, size: _Size = None, dtype: Any = None, ctx: Any = None, device: Any = None
) -> ndarray:
    """Uniform random numbers in [low, high).

    >>> from leafwise.gluon import np
    >>> np.random.seed(0)
    >>> np.random.uniform(size=(2, 2))
    array([[0.5488135 , 0.5928446 ],
           [0.71518934, 0.84426576]])
    """
    return _array(STREAM.uniform(low, high, _shape(size)), dtype)


def normal(
    loc: float = 0.0, scale: float = 1.0, size: _Size = None, dtype: Any = None, ctx: Any = None, device: Any = None
) -> ndarray:
    """Random numbers from a normal distribution."""
    return _array(STREAM.normal(loc, scale, _shape(size)), dtype)


def rand(*size: int) -> ndarray:
    return uniform(size=size)


def randn(*size: int) -> ndarray:
    return normal(size=size)


def _shape(size: _Size) -> tuple[int, ...]:
    if size is None:
        return ()
    return (size,) if isinstance(size, int) else tuple(size)


def _array(values: Any, dtype: Any) -> ndarray:
    return wrap(torch.from_numpy(values).to(torch_dtype(dtype)))


__getattr__ = missing("np.random", {}, "use np.random.uniform or np.random.normal, or NumPy and np.array")
