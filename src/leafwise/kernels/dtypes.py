"""Dtypes in kernels: NumPy's objects for them, and the values of floats of one byte."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from leafwise.core.dtypes import BYTE_FLOAT, DTYPES
from leafwise.core.path import escape
from leafwise.errors import WriteError

KERNELS = {name: dtype.kernel for name, dtype in DTYPES.items() if dtype.kernel is not None}
_WHOLE = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in ("int", "bool"))


def unknown_dtype(dtype: str) -> str:
    """Why arrays of a dtype cannot be measured; empty if they can."""
    return "" if dtype in KERNELS else f"there are no statistics of {dtype}"


def check_known(dtypes: Iterable[str]) -> None:
    """Raises if a kernel would read values of one of these dtypes wrongly."""
    for dtype in dtypes:
        if reason := unknown_dtype(dtype):
            raise TypeError(escape(reason))


def is_whole(dtype: str) -> bool:
    return dtype in _WHOLE


def is_byte_float(dtype: str) -> bool:
    """Whether kernels look up the values of a dtype, in `byte_values`."""
    return KERNELS[dtype] == BYTE_FLOAT


def exact_extremes(dtype: str, least: int, largest: int) -> tuple[int, int]:
    """The extremes of integers, from the numbers that kernels return: for uint64, their first bit is flipped."""
    flip = 1 << 63 if dtype == "uint64" else 0
    return least + flip, largest + flip


def smallest_normal(dtype: str) -> float:
    """The smallest number that is not subnormal; 0 if no number is subnormal."""
    known = DTYPES.get(dtype)
    if known is None or known.range is None or known.range.smallest_normal is None:
        return 0.0
    return 2.0**known.range.smallest_normal


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of this name, from ml_dtypes if NumPy itself does not have it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise WriteError(f"neither NumPy nor ml_dtypes has a dtype {name!r}") from None
        return np.dtype(getattr(ml_dtypes, name))


@cache
def name_of(dtype: Any) -> str:
    """The name of a dtype, which NumPy makes anew each time that it is asked."""
    return str(dtype.name)


@cache
def item_bytes(dtype: str) -> int:
    """The number of bytes of an element in memory, for all dtypes of leafwise and of NumPy."""
    return int(numpy_dtype(dtype).itemsize)


@cache
def byte_values(dtype: str) -> Any:
    """The value of each of the 256 bytes, as float32. For dtypes with fewer bits, the values repeat."""
    codes = (np.arange(256) % (1 << DTYPES[dtype].bits)).astype(np.uint8)
    return codes.view(numpy_dtype(dtype)).astype(np.float32)


def values_of_bytes(dtypes: Iterable[str]) -> Any:
    """A row of `byte_values` for each dtype, where kernels look them up; zeros for dtypes of other kinds."""
    nothing = np.zeros(256, np.float32)
    return np.stack([byte_values(dtype) if is_byte_float(dtype) else nothing for dtype in dtypes])
