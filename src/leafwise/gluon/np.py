"""`mxnet.np`: arrays that look like NumPy's and default to float32, as far as the deck and its neighbourhood go."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from leafwise.gluon import random
from leafwise.gluon.array import dot, ndarray, plain, torch_dtype, wrap
from leafwise.gluon.base import missing

pi, e, inf, nan, newaxis = numpy.pi, numpy.e, numpy.inf, numpy.nan, None
# dtypes, not types, as in MXNet: so that they equal the names, and print as them.
float16, float32, float64 = numpy.dtype("float16"), numpy.dtype("float32"), numpy.dtype("float64")
int8, int32, int64 = numpy.dtype("int8"), numpy.dtype("int32"), numpy.dtype("int64")
uint8, bool_ = numpy.dtype("uint8"), numpy.dtype("bool")

_Shape = int | Sequence[int]


def array(object: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    """An array of numbers, in float32 unless told otherwise.

    >>> from leafwise.gluon import np
    >>> np.array([1, 2])
    array([1., 2.])
    """
    if isinstance(object, torch.Tensor):
        return wrap(plain(object).clone().to(_own_dtype(object) if dtype is None else torch_dtype(dtype)))
    given = numpy.array(_unwrapped(object))
    return wrap(torch.from_numpy(given).to(torch_dtype(dtype)))


def _own_dtype(tensor: torch.Tensor) -> torch.dtype:
    return plain(tensor).dtype


def _unwrapped(object: Any) -> Any:
    if isinstance(object, ndarray):
        return object.asnumpy()
    return [_unwrapped(item) for item in object] if isinstance(object, list | tuple) else object


def zeros(shape: _Shape = (), dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    return wrap(torch.zeros(_sizes(shape), dtype=torch_dtype(dtype)))


def ones(shape: _Shape = (), dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    return wrap(torch.ones(_sizes(shape), dtype=torch_dtype(dtype)))


def full(shape: _Shape, fill_value: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    own = torch.int64 if type(fill_value) is int else torch.bool if type(fill_value) is bool else torch.float32
    return wrap(torch.full(_sizes(shape), fill_value, dtype=own if dtype is None else torch_dtype(dtype)))


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: Any = None, ctx: Any = None, device: Any = None
) -> ndarray:
    first, last = (0, start) if stop is None else (start, stop)
    return wrap(torch.arange(first, last, step, dtype=torch_dtype(dtype)))


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    return wrap(torch.from_numpy(numpy.eye(N, M, k)).to(torch_dtype(dtype)))


def _sizes(shape: _Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def zeros_like(a: ndarray) -> ndarray:
    return torch.zeros_like(a)  # type: ignore[return-value]


def ones_like(a: ndarray) -> ndarray:
    return torch.ones_like(a)  # type: ignore[return-value]


def concatenate(seq: Sequence[ndarray], axis: int = 0) -> ndarray:
    return torch.cat(list(seq), dim=axis)  # type: ignore[return-value]


def stack(arrays: Sequence[ndarray], axis: int = 0) -> ndarray:
    return torch.stack(list(arrays), dim=axis)  # type: ignore[return-value]


def expand_dims(a: ndarray, axis: int) -> ndarray:
    return torch.unsqueeze(a, axis)  # type: ignore[return-value]


def reshape(a: ndarray, newshape: _Shape) -> ndarray:
    return torch.reshape(a, _sizes(newshape))  # type: ignore[return-value]


def transpose(a: ndarray, axes: Sequence[int] | None = None) -> ndarray:
    return torch.permute(a, tuple(reversed(range(a.ndim))) if axes is None else tuple(axes))  # type: ignore[return-value]


def array_equal(a: ndarray, b: ndarray) -> bool:
    return torch.equal(plain(a), plain(b))


# What PyTorch has under the same name, with NumPy's `axis` and `keepdims` understood.
abs, exp, log, sqrt, square, sign = torch.abs, torch.exp, torch.log, torch.sqrt, torch.square, torch.sign
sin, cos, tanh, matmul, where, allclose = torch.sin, torch.cos, torch.tanh, torch.matmul, torch.where, torch.allclose
sum, mean, max, min, argmax, argmin = torch.sum, torch.mean, torch.amax, torch.amin, torch.argmax, torch.argmin


def maximum(x1: Any, x2: Any) -> ndarray:
    return torch.maximum(*_both(x1, x2))  # type: ignore[return-value]


def minimum(x1: Any, x2: Any) -> ndarray:
    return torch.minimum(*_both(x1, x2))  # type: ignore[return-value]


def _both(x1: Any, x2: Any) -> tuple[Any, Any]:
    return tuple(x if isinstance(x, torch.Tensor) else array(x) for x in (x1, x2))  # type: ignore[return-value]


__getattr__ = missing("np", {}, "arrays are tensors: torch.{name}, if PyTorch has it, takes and gives them")
__all__ = ["array", "dot", "ndarray", "random"]
