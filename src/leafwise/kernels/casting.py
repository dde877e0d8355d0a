"""The one rule of casts, which `save`, `load` and `convert` share.

A cast rounds to the nearest number that the new dtype has, and never makes another number of one: what would
overflow, lose its sign, or turn from an infinity or a zero into something else does not fit. Which dtypes can be cast
to which is decided before: numbers with a fraction, whole and complex numbers stay what they are.

Whether values fit is told from the values themselves, not from what NumPy, ml_dtypes or PyTorch make of them: these
disagree about float8 (one saturates, one gives nan, one drops the sign), and some round float64 twice.
"""

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from leafwise.core.dtypes import DTYPES, number_kind
from leafwise.errors import WriteError
from leafwise.kernels.dtypes import byte_values, numpy_dtype

_BLOCK = 1 << 16  # elements that are worked on at a time, so that what is between them stays in the cache


# Those that are worked out here; to float64, NumPy casts right.
_FLOATS = {
    dtype.name: dtype.range
    for dtype in DTYPES.values()
    if dtype.is_stored and dtype.range and dtype.range.smallest_normal is not None and dtype.bits < 64
}
# The powers of two from 2^-127 to 2^127, and nan. What lies halfway goes up.
_POWERS = "float8_e8m0fnu"
_SMALLEST_POWER, _LARGEST_POWER = 2.0**-127, 2.0**127


@np.errstate(all="ignore")  # what overflows is told from the values, and signalling nan are nan
def cast_to(array: Any, dtype: str, saturate: bool = False) -> Any:
    """A NumPy array in another dtype of the same kind of number, each value rounded to the nearest. Raises `WriteError`
    where one does not fit; `saturate` takes the nearest finite number for it.

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
    """Why a NumPy array cannot be cast to a dtype; empty where it can."""
    try:
        array = _prepared(array, dtype)
    except WriteError as error:
        return str(error)
    return "" if _fits(array, dtype) else _reason(array, dtype)


def cast_numbers(numbers: Any, dtype: str) -> Any:
    """Python numbers, as NumPy takes them, in the dtype of what they are written into; whole ones may get a fraction.
    Raises `WriteError` where one does not fit."""
    kind = number_kind(dtype)
    if kind == "complex" or (kind == "float" and numbers.dtype.kind in "biuf"):
        numbers = numbers.astype(np.complex128 if kind == "complex" else np.float64)
    return cast_to(numbers, dtype)


def _prepared(array: Any, dtype: str) -> Any:
    """The array in a dtype that NumPy computes with, nothing lost; complex numbers as pairs."""
    array = np.asarray(array)
    kinds = [number_kind(name) for name in (array.dtype.name, dtype)]
    if kinds[0] != kinds[1]:
        raise WriteError(f"{array.dtype} is not cast to {dtype}, which is another kind of number")
    if dtype not in _FLOATS and dtype != _POWERS and not (_is_plain(dtype) and array.dtype.kind in "iubfcV"):
        raise WriteError(f"{array.dtype} is not cast to {dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kinds[0] != "float" or array.dtype.itemsize > 2 or array.dtype.name == dtype:
        return array
    if array.dtype.itemsize == 1:
        return byte_values(array.dtype.name)[array.view(np.uint8)]
    return array.astype(np.float32)


# -- what fits ---------------------------------------------------------------------------------------------


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
    # Most arrays are seen to fit by their extremes alone. Those with infinities or nan are looked at one by one.
    extremes = np.array([array.min(), array.max()])
    return not _unfit(extremes, dtype, False).any() or not any(_unfit(part, dtype).any() for part in _blocks(array))


def _unfit(values: Any, dtype: str, special_fits: bool = True) -> Any:
    """Which floats do not fit. Nan always does, and infinities where the dtype has some, unless nothing special
    shall."""
    if dtype == _POWERS:
        within = (values >= _SMALLEST_POWER / 2) & (values < 1.5 * _LARGEST_POWER)
        has_infinity = False
    elif dtype == "float64":  # of floats that are wider still
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
    """Whether NumPy has a dtype by itself, and rounds to it once."""
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
    """The values in some order, a block at a time."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel(order="K")
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _reason(array: Any, dtype: str) -> str:
    """Says of the first value that does not fit why it does not."""
    if array.dtype.kind == "c":
        parts = [part for part in (array.real, array.imag) if not _fits(part, _part_dtype(dtype))]
        return _reason(parts[0], _part_dtype(dtype))
    if array.dtype.kind != "f":
        least, largest = _whole_range(dtype)
        value = int(array.min()) if int(array.min()) < least else int(array.max())
        return f"some values do not fit into {dtype}, which goes from {least} to {largest}: {value} for instance"
    first = next(float(part[unfit.argmax()]) for part in _blocks(array) if (unfit := _unfit(part, dtype)).any())
    if dtype == _POWERS:
        return _misfit_text(first, dtype, "which has the powers of two from 2^-127 to 2^127 and nothing else")
    if np.isinf(first):
        return _misfit_text(first, dtype, "which has no infinity")
    return _misfit_text(first, dtype, f"whose largest number is {str(_largest(dtype)).removesuffix('.0')}")


def _misfit_text(value: float, dtype: str, why: str) -> str:
    return f"some values do not fit into {dtype}, {why}: {str(value).removesuffix('.0')} for instance"


def _largest(dtype: str) -> float:
    return sys.float_info.max if dtype == "float64" else _FLOATS[dtype].largest


# -- casts of what fits ------------------------------------------------------------------------------------


def _clipped(array: Any, dtype: str) -> Any:
    """What does not fit replaced by the nearest finite number that the dtype has."""
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
    """What fits, rounded to nearest, once."""
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
        # The same numbers four times as fast: PyTorch uses the instruction that rounds just so.
        return torch.from_numpy(array).to(torch.float16).numpy()
    return array.astype(np.float16)


def _to_odd(wide: Any) -> Any:
    """float64 as float32, where what is not exact gets a last bit of one: rounding that to fewer bits gives what
    rounding all of it at once would."""
    single = wide.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    bits -= np.abs(back) > np.abs(wide)
    bits |= back != wide
    return single


def _upper_half_to_odd(single: Any) -> Any:
    """The upper sixteen bits of each float32, with a last bit of one where the others are not all zero."""
    bits = single.view(np.uint32)
    upper = bits >> np.uint32(16)
    upper |= (bits & np.uint32(0xFFFF)) != 0
    return upper


@cache
def _byte_codes(dtype: str) -> Any:
    """For the upper sixteen bits of every float32, the byte that is the nearest number of a float8 dtype."""
    every = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == _POWERS:
        fraction, exponent = np.frexp(every.astype(np.float64))
        codes = (exponent - 1 + (fraction >= 0.75) + 127).clip(0, 254)
        return np.where(np.isnan(every), 255, codes).astype(np.uint8)
    return every.astype(numpy_dtype(dtype)).view(np.uint8)
