"""How far numbers of a dtype may be apart."""

import numbers
from typing import Any

import numpy

_FLOATS = (numpy.float16, numpy.float32, numpy.float64)
_EXACT = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")
_DOUBLE = numpy.dtype(numpy.float64)
Tolerances = dict[Any, float]


def _by_dtype(*floats: float) -> Tolerances:
    tolerances: Tolerances = {numpy.dtype(dtype): value for dtype, value in zip(_FLOATS, floats, strict=True)}
    return tolerances | {numpy.dtype(name): 0 for name in _EXACT}


def default_rtols() -> Tolerances:
    """Relative tolerances by dtype."""
    return _by_dtype(1e-2, 1e-4, 1e-5)


def default_atols() -> Tolerances:
    """Absolute tolerances by dtype."""
    return _by_dtype(1e-1, 1e-3, 1e-20)


def default_numeric_eps() -> Tolerances:
    """Steps for numeric gradients by dtype."""
    return {numpy.dtype(dtype): 2.0**-power for dtype, power in zip(_FLOATS, (6, 9, 14), strict=True)}


def effective_dtype(dat: Any) -> Any:
    """The dtype by which tolerances are chosen."""
    return numpy.dtype(dat.dtype)


def get_tolerance(dat: Any, tol: Any, default_tol: Tolerances) -> float:
    if isinstance(tol, numbers.Number):
        return tol  # type: ignore[return-value]
    dtype = effective_dtype(dat)
    return float((tol or {}).get(dtype, default_tol[dtype]))


def get_tols(x: Any, y: Any, rtol: Any, atol: Any) -> tuple[float, float]:
    """The larger of the tolerances of two arrays, where they are not given."""
    arrays = [numpy.array(value) if isinstance(value, numbers.Number) else value for value in (x, y)]
    return (
        max(get_tolerance(array, rtol, default_rtols()) for array in arrays),
        max(get_tolerance(array, atol, default_atols()) for array in arrays),
    )


def get_atol(atol: float | None = None, dtype: Any = _DOUBLE) -> float:
    return default_atols()[dtype] if atol is None else atol


def get_rtol(rtol: float | None = None, dtype: Any = _DOUBLE) -> float:
    return default_rtols()[dtype] if rtol is None else rtol


def get_etol(etol: float | None = None) -> float:
    return 0 if etol is None else etol
