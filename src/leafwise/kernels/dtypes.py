"""The dtypes that kernels know."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from leafwise.core.path import escape

# Each with the number that the C code has for it.
KINDS = {
    "float32": 0, "float64": 1, "bfloat16": 2, "float16": 3,
    "int8": 5, "int16": 6, "int32": 7, "int64": 8, "uint8": 9, "uint16": 10, "uint32": 11, "uint64": 12, "bool": 13,
}  # fmt: skip
BYTE_FLOAT = 4  # floats of a byte or less, each value of which stands in a table

# The smallest normal number, by how many bits there are below it: none that is subnormal, where there are none.
_BYTE_FLOATS = {
    "float8_e3m4": -2, "float8_e4m3": -6, "float8_e4m3b11fnuz": -10, "float8_e4m3fn": -6, "float8_e4m3fnuz": -7,
    "float8_e5m2": -14, "float8_e5m2fnuz": -15, "float8_e8m0fnu": None,
    "float6_e2m3fn": 0, "float6_e3m2fn": -2, "float4_e2m1fn": 0,
}  # fmt: skip
_SMALLEST = {"float32": -126, "float64": -1022, "bfloat16": -126, "float16": -14, **_BYTE_FLOATS}
_WHOLE = frozenset(name for name, number in KINDS.items() if number > BYTE_FLOAT)


def unknown_dtype(dtype: str) -> str:
    """Why there are no statistics of a dtype; empty where there are."""
    return "" if dtype in KINDS or dtype in _BYTE_FLOATS else f"there are no statistics of {dtype}"


def check_known(dtypes: Iterable[str]) -> None:
    """Raises where a kernel would take values for something else than they are."""
    for dtype in dtypes:
        if reason := unknown_dtype(dtype):
            raise TypeError(escape(reason))


def is_whole(dtype: str) -> bool:
    return dtype in _WHOLE


def exact_extremes(dtype: str, least: int, largest: int) -> tuple[int, int]:
    """The extremes of whole numbers, as kernels order them: those of uint64 with their first bit flipped."""
    flip = 1 << 63 if dtype == "uint64" else 0
    return least + flip, largest + flip


def smallest_normal(dtype: str) -> float:
    """Below this, a number is subnormal; 0 where none is."""
    exponent = _SMALLEST.get(dtype)
    return 0.0 if exponent is None else 2.0**exponent


def item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize if dtype in KINDS else 1


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a plain name, through ml_dtypes where NumPy has none."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


@cache
def byte_values(dtype: str) -> Any:
    """What each of the 256 bytes stands for, as float32; those of fewer bits repeat."""
    bits = {"float6": 6, "float4": 4}.get(dtype.partition("_")[0], 8)
    codes = (np.arange(256) % (1 << bits)).astype(np.uint8)
    return codes.view(numpy_dtype(dtype)).astype(np.float32)
