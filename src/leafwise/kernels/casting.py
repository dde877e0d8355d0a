"""The rules for casts in `save`, `load` and `convert`.

A cast rounds to the nearest number of the new dtype, and never changes a number otherwise: a value that would overflow,
lose its sign, or turn from an infinity or a zero into something else does not fit. Floats, integers and complex numbers
are never cast to another of these kinds.

Whether a value fits is decided from the value itself, not from the results of NumPy, ml_dtypes or PyTorch: these
disagree about float8 (one saturates, one returns nan, one drops the sign), and some round float64 twice.
"""

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from leafwise.core.dtypes import DTYPES, number_kind
from leafwise.errors import WriteError
from leafwise.kernels.dtypes import byte_values, numpy_dtype

_BLOCK = 1 << 16  # elements to process at a time, so that intermediate results stay in the cache


# Dtypes that are cast here. NumPy casts correctly to float64.
_FLOATS = {
    dtype.name: dtype.range
    for dtype in DTYPES.values()
    if dtype.is_stored and dtype.range and dtype.range.smallest_normal is not None and dtype.bits < 64
}
# The powers of two from 2^-127 to 2^127, and nan. Numbers halfway between two of them are rounded up.
_POWERS = "float8_e8m0fnu"
_SMALLEST_POWER, _LARGEST_POWER = 2.0**-127, 2.0**127


@np.errstate(all="ignore")  # overflows are found from the values, and signaling nan is nan
def cast_to(array: Any, dtype: str, saturate: bool = False) -> Any:
    """A NumPy array in another dtype of the same kind of number, each value rounded to the nearest. If a value does
    not fit, raises `WriteError`, or with `saturate`, uses the nearest finite number.

    >>> cast_to(np.array([0.1, 7e4]), "float16", saturate=True)
    array([1.00e-01, 6.55e+04], dtype=float16)
    >>> cast_to(np.array([0.1, 7e4]), "float16")
    Traceback (most recent call last):
    leafwise.errors.WriteError: some values do not fit into float16, whose largest number is 65504: 70000 for instance
    """
    array = _prepared(array, dtype)
    fits = _fits(array, dtype)
    if not fits and not saturate:
        raise WriteError(_reason(array, dtype))
    return _converted(array if fits else _clipped(array, dtype), dtype)


@np.errstate(all="ignore")
def misfit(array: Any, dtype: str) -> str:
    """Why a NumPy array cannot be cast to a dtype; empty if it can."""
    try:
        array = _prepared(array, dtype)
    except WriteError as error:
        return str(error)
    return "" if _fits(array, dtype) else _reason(array, dtype)


def cast_numbers(numbers: Any, dtype: str) -> Any:
    """Python numbers, or lists of them, in the dtype of the array that they are written into; integers may become
    floats. Raises `WriteError` if one does not fit."""
    kind = number_kind(dtype)
    if kind == "complex" or (kind == "float" and numbers.dtype.kind in "biuf"):
        numbers = numbers.astype(np.complex128 if kind == "complex" else np.float64)
    return cast_to(numbers, dtype)


def _prepared(array: Any, dtype: str) -> Any:
    """The array, without loss, in a dtype with which NumPy computes; complex numbers as pairs."""
    array = np.asarray(array)
    kinds = [number_kind(name) for name in (array.dtype.name, dtype)]
    if kinds[0] != kinds[1]:
        raise WriteError(f"cannot cast {array.dtype} to {dtype}, which is another kind of number")
    if dtype not in _FLOATS and dtype != _POWERS and not (_is_plain(dtype) and array.dtype.kind in "iubfcV"):
        raise WriteError(f"cannot cast {array.dtype} to {dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kinds[0] != "float" or array.dtype.itemsize > 2 or array.dtype.name == dtype:
        return array
    if array.dtype.itemsize == 1:
        return byte_values(array.dtype.name)[array.view(np.uint8)]
    return array.astype(np.float32)


# -- whether values fit ------------------------------------------------------------------------------------


def _fits(array: Any, dtype: str) -> bool:
    """Whether every value fits."""
    if array.dtype.name == dtype or not array.size:
        return True
    if array.dtype.kind == "c":
        return all(_fits(part, _part_dtype(dtype)) for part in (array.real, array.imag))
    if array.dtype.kind != "f":
        least, largest = _whole_range(dtype)
        return least <= int(array.min()) and int(array.max()) <= largest
    if _is_plain(dtype) and array.dtype.itemsize <= numpy_dtype(dtype).itemsize:
        return True
    # Usually the extremes are enough. With infinities or nan, every value is checked.
    extremes = np.array([array.min(), array.max()])
    return not _unfit(extremes, dtype, False).any() or not any(_unfit(part, dtype).any() for part in _blocks(array))


def _unfit(values: Any, dtype: str, special_fits: bool = True) -> Any:
    """Which floats do not fit. Nan always fits, and infinities fit if the dtype has them, unless `special_fits` is
    False."""
    if dtype == _POWERS:
        within = (values >= _SMALLEST_POWER / 2) & (values < 1.5 * _LARGEST_POWER)
        has_infinity = False
    elif dtype == "float64":  # from a wider float
        within, has_infinity = np.isfinite(values.astype(np.float64)), True
    else:
        range_ = _FLOATS[dtype]
        magnitude = np.abs(values)
        limit = values.dtype.type(range_.limit)
        within = magnitude <= limit if range_.rounds_limit_down else magnitude < limit
        has_infinity = range_.has_infinity
    if not special_fits:
        return ~within
    within |= np.isnan(values)
    return ~(within | np.isinf(values)) if has_infinity else ~within


def _is_plain(dtype: str) -> bool:
    """Whether NumPy itself has a dtype, and rounds only once when casting to it."""
    wanted = numpy_dtype(dtype)
    return wanted.kind in "iubfc" and wanted.type.__module__ == "numpy"


def _whole_range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _part_dtype(dtype: str) -> str:
    return str(np.empty(0, dtype).real.dtype)


def _blocks(array: Any) -> Iterator[Any]:
    """The values in any order, a block at a time."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel(order="K")
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _reason(array: Any, dtype: str) -> str:
    """The first value that does not fit, and why."""
    if array.dtype.kind == "c":
        parts = [part for part in (array.real, array.imag) if not _fits(part, _part_dtype(dtype))]
        return _reason(parts[0], _part_dtype(dtype))
    if array.dtype.kind != "f":
        least, largest = _whole_range(dtype)
        value = int(array.min()) if int(array.min()) < least else int(array.max())
        return f"some values do not fit into {dtype}, which goes from {least} to {largest}: {value} for instance"
    first = next(float(part[unfit.argmax()]) for part in _blocks(array) if (unfit := _unfit(part, dtype)).any())
    if dtype == _POWERS:
        why = "which has only the powers of two from 2^-127 to 2^127"
    elif np.isinf(first):
        why = "which has no infinity"
    else:
        why = f"whose largest number is {str(_largest(dtype)).removesuffix('.0')}"
    return f"some values do not fit into {dtype}, {why}: {str(first).removesuffix('.0')} for instance"


def _largest(dtype: str) -> float:
    return sys.float_info.max if dtype == "float64" else _FLOATS[dtype].largest


# -- casts of values that fit ------------------------------------------------------------------------------


def _clipped(array: Any, dtype: str) -> Any:
    """The array, with values that do not fit replaced by the nearest finite number of the dtype."""
    if array.dtype.kind == "c":
        parts = [_clipped(part, _part_dtype(dtype)) for part in (array.real, array.imag)]
        clipped = np.empty_like(array)
        clipped.real, clipped.imag = parts
        return clipped
    if array.dtype.kind != "f":
        least, largest = _whole_range(dtype)
        own_least, own_largest = _whole_range(array.dtype.name)
        return array.clip(max(least, own_least), min(largest, own_largest))
    if dtype == _POWERS:
        return array.clip(array.dtype.type(_SMALLEST_POWER), array.dtype.type(_LARGEST_POWER))
    bound = array.dtype.type(_largest(dtype))
    clipped = array.clip(-bound, bound)
    if dtype == "float64" or _FLOATS[dtype].has_infinity:
        clipped = np.where(np.isinf(array), array, clipped)
    return clipped


def _converted(array: Any, dtype: str) -> Any:
    """Values that fit, rounded to nearest, once."""
    wanted = numpy_dtype(dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind != "f" or (_is_plain(dtype) and dtype != "float16"):
        return array.astype(wanted)
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if dtype == "float16":
        return _to_float16(array)
    made = np.empty(array.shape, wanted)
    flat = made.reshape(-1).view(np.uint8 if wanted.itemsize == 1 else np.uint16)
    for number, block in enumerate(_blocks(np.ascontiguousarray(array))):
        single = _to_odd(block) if block.dtype.itemsize > 4 else block
        if wanted.itemsize == 2:
            codes = single.astype(wanted).view(np.uint16)
        else:
            codes = np.take(_byte_codes(dtype), _upper_half_to_odd(single))
        flat[number * _BLOCK : number * _BLOCK + len(codes)] = codes
    return made


def _to_float16(array: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and array.dtype == np.float32 and array.flags.c_contiguous and array.flags.writeable:
        # The same numbers, four times faster: PyTorch uses the CPU instruction for this.
        return torch.from_numpy(array).to(torch.float16).numpy()
    return array.astype(np.float16)


def _to_odd(wide: Any) -> Any:
    """float64 as float32, rounded to odd: inexact results have a last bit of one, so that rounding them again, to fewer
    bits, gives the same result as rounding only once."""
    single = wide.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    bits -= np.abs(back) > np.abs(wide)
    bits |= back != wide
    return single


def _upper_half_to_odd(single: Any) -> Any:
    """The upper sixteen bits of each float32, with a last bit of one if the lower bits are not all zero."""
    bits = single.view(np.uint32)
    upper = bits >> np.uint32(16)
    upper |= (bits & np.uint32(0xFFFF)) != 0
    return upper


@cache
def _byte_codes(dtype: str) -> Any:
    """For all upper sixteen bits of a float32, the byte of the nearest number of a float8 dtype."""
    every = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == _POWERS:
        fraction, exponent = np.frexp(every.astype(np.float64))
        codes = (exponent - 1 + (fraction >= 0.75) + 127).clip(0, 254)
        return np.where(np.isnan(every), 255, codes).astype(np.uint8)
    return every.astype(numpy_dtype(dtype)).view(np.uint8)
