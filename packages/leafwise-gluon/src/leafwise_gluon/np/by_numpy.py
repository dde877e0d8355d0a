"""Functions that MXNet leaves to NumPy. They have no gradient, and cannot be used under `autograd.record()`."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.ndarray import wrap
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import refusal
from leafwise_gluon.dialect import is_v1

_NAMES = (
    "allclose alltrue apply_along_axis apply_over_axes argpartition argwhere array_equal array_equiv choose compress "
    "corrcoef correlate count_nonzero cov cumprod digitize divmod extract float_power frexp heaviside histogram2d "
    "histogram_bin_edges histogramdd i0 in1d intersect1d isclose isin ix_ lexsort min_scalar_type modf msort "
    "nanargmax nanargmin nancumprod nancumsum nanmax nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum "
    "nanvar ndim packbits partition piecewise poly polyadd polydiv polyfit polyint polymul polysub promote_types ptp "
    "real roots "
    "searchsorted select setdiff1d setxor1d signbit size spacing take_along_axis trapz tril_indices_from trim_zeros "
    "union1d unpackbits unwrap vander"
)
FINANCIAL = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")  # NumPy has dropped these


def _msort(a: Any) -> Any:
    return numpy.sort(a, axis=0)


def _count_nonzero(a: Any, axis: Any = None, **options: Any) -> Any:
    computed = numpy.count_nonzero(a, axis, **options)
    return computed if isinstance(computed, numpy.ndarray) else int(computed)


def _histogram2d(x: Any, y: Any, *args: Any, **options: Any) -> Any:
    counts, *edges = numpy.histogram2d(x, y, *args, **options)
    return counts, *(numpy.asarray(edge, "float64") for edge in edges)


def _in1d(ar1: Any, ar2: Any, **kwargs: Any) -> Any:
    return numpy.isin(ar1, ar2, **kwargs).reshape(-1)


def _wide(name: str) -> Callable[..., Any]:
    """A function whose result, if it is one number, is float64."""

    def function(*args: Any, **kwargs: Any) -> Any:
        computed = getattr(numpy, name)(*args, **kwargs)
        return numpy.float64(computed) if isinstance(computed, numpy.generic) else computed

    return function


# What newer versions of NumPy have dropped, renamed or changed.
_NOW: dict[str, Callable[..., Any]] = {
    "alltrue": numpy.all,
    "count_nonzero": _count_nonzero,
    "histogram2d": _histogram2d,
    "in1d": _in1d,
    "msort": _msort,
    "nanpercentile": _wide("nanpercentile"),
    "nanquantile": _wide("nanquantile"),
    "trapz": getattr(numpy, "trapezoid", None) or numpy.trapz,  # type: ignore[attr-defined]
}


def by_numpy(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function of NumPy with NumPy arrays in place of arrays, and returns arrays in place of NumPy arrays."""
    arrays: list[ArrayValues] = []
    args, kwargs = _to_numpy(args, arrays), _to_numpy(kwargs, arrays)
    if arrays and STATE.recording:
        raise ValueError(
            f"np.{name} is computed by NumPy, which autograd does not record; call it outside of autograd.record()"
        )
    computed = function(*args, **kwargs)
    return _from_numpy(computed, arrays[0]) if arrays else computed


def _to_numpy(value: Any, arrays: list[ArrayValues]) -> Any:
    if isinstance(value, ArrayValues):
        arrays.append(value)
        return value.asnumpy()
    if type(value) in (list, tuple):
        return type(value)(_to_numpy(item, arrays) for item in value)
    return {name: _to_numpy(item, arrays) for name, item in value.items()} if type(value) is dict else value


def _from_numpy(value: Any, example: ArrayValues) -> Any:
    if isinstance(value, numpy.ndarray):
        tensor = torch.from_numpy(numpy.ascontiguousarray(value).reshape(value.shape).copy())
        # As in MXNet 2.x, the result is on the CPU, whatever device the arrays are on.
        return wrap(tensor.to(example.tensor.device), example.ctx) if is_v1() else wrap(tensor)
    if isinstance(value, list):
        return [_from_numpy(item, example) for item in value]
    return tuple(_from_numpy(item, example) for item in value) if isinstance(value, tuple) else value


def _function(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return by_numpy(name, _NOW.get(name) or getattr(numpy, name), *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`numpy.{name}`, without gradients."
    return function


def _financial(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise refusal(f"np.{name}, which NumPy has dropped", f"use numpy_financial.{name}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Raises an error: NumPy has dropped its financial functions."
    return function


FUNCTIONS = {**{name: _function(name) for name in _NAMES.split()}, **{name: _financial(name) for name in FINANCIAL}}
