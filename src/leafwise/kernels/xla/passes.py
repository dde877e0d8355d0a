"""Passes over arrays that XLA compiles: sums, extremes and counts, and windows of the histogram.

An array is viewed as rows, and one reduction with many results reads the values of a row once. Sums are doubles, so
these functions must be called with 64-bit numbers enabled (`jax.enable_x64`). Extremes, zeros and subnormals are found
in the bits of the values, because XLA may treat subnormal numbers as zero in arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from leafwise.kernels.dtypes import is_whole, smallest_normal

# Arrays up to this size are one row each, and arrays of one shape are stacked. The histogram counts the values of a row
# in fields of 16 bits.
SMALL = 1 << 15
WINDOW = 40  # exponents that one pass of the histogram counts: five words of eight fields
BINS = 256
_AT_A_TIME = 8  # values that are counted in fields of four bits, before these are moved to fields of 16 bits
_WORDS = WINDOW // 8

COUNTED = ("zeros", "small")
SUMMED = ("total", "l1", "square")
COUNTED_WITH_CARE = (*COUNTED, "nan", "posinf", "neginf")
SUMMED_WITH_CARE = (*SUMMED, "distance", "deviation")
FOLDS = [*[lax.add] * (len(COUNTED) + len(SUMMED)), lax.min, lax.max]  # of the results of the first pass


class Figures(NamedTuple):
    """The results of a pass, one row for each array: counts, sums, and the extremes as integers of the same order
    (xla.py decodes them). `lowest` is the first of the exponents that `bins` counts."""

    counts: Any
    sums: Any
    extremes: Any
    lowest: Any = None
    bins: Any = None


class _Values(NamedTuple):
    """Values in the forms in which they are measured."""

    number: Any  # as doubles
    key: Any  # as integers of the same order
    magnitude: Any  # the bits without the sign; for integers, their magnitude
    infinity: int | None  # the bits of infinity; None for integers
    tiny: int  # the bits of the smallest normal number
    exponent: Callable[[], Any]  # the bin of the histogram: 0 for zero, and the last one for what is not finite


def _values(x: Any) -> _Values:
    name = x.dtype.name
    if is_whole(name):
        return _whole_values(x)
    if name == "float64":
        bits = lax.bitcast_convert_type(x, jnp.int64)
        magnitude = bits & jnp.int64(0x7FFFFFFFFFFFFFFF)
        return _Values(
            x, bits ^ ((bits >> 63) & jnp.int64(0x7FFFFFFFFFFFFFFF)), magnitude, 0x7FF << 52, 1 << 52,
            lambda: jnp.clip((magnitude >> 52) - 896, 0, BINS - 1).astype(jnp.int32),
        )  # fmt: skip
    if name == "bfloat16":  # the upper half of a float32
        bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32) << 16
    else:
        bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    magnitude = bits & jnp.int32(0x7FFFFFFF)
    tiny = int(np.float32(smallest_normal(name)).view(np.int32))
    number = lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.float64)
    key = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))
    return _Values(number, key, magnitude, 0xFF << 23, tiny, lambda: magnitude >> 23)


def _whole_values(x: Any) -> _Values:
    key = x if x.dtype.itemsize >= 4 else x.astype(jnp.int32)
    unsigned = jnp.uint64 if key.dtype.itemsize == 8 else jnp.uint32
    magnitude = jnp.where(key < 0, unsigned(0) - key.astype(unsigned), key.astype(unsigned))
    top = 127 + 8 * key.dtype.itemsize - 1
    return _Values(
        x.astype(jnp.float64), key, magnitude, None, 0,
        lambda: jnp.where(magnitude == 0, 0, top - lax.clz(magnitude).astype(jnp.int32)),
    )  # fmt: skip


def reduced(values: Sequence[Any], folds: Sequence[Callable[[Any, Any], Any]], axis: int) -> list[Any]:
    """Reduces several arrays along an axis in one pass; `folds` are `lax.add`, `lax.min` and `lax.max`."""

    def start(value: Any, fold: Any) -> Any:
        if fold is lax.add:
            return np.zeros((), value.dtype)
        limits = jnp.iinfo(value.dtype)
        return np.array(limits.max if fold is lax.min else limits.min, value.dtype)

    def combine(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(fold(a, b) for fold, a, b in zip(folds, left, right, strict=True))

    starts = tuple(map(start, values, folds))
    return list(lax.reduce(tuple(values), starts, combine, (axis,)))


def columns_of(size: int) -> int:
    """The length of the rows into which a large array is cut: if possible, one that leaves no rest.

    >>> columns_of(4096 * 4096), columns_of(50_257 * 768), columns_of(1_000_003)
    (8192, 27728, 8192)
    """
    whole = (columns for columns in (8192, *range(SMALL, 2047, -_AT_A_TIME)) if size % columns == 0)
    return next(whole, 8192)


def _rows(x: Any) -> list[Any]:
    """A large array as rows: a matrix, and a row for the rest if there is one."""
    flat = x.reshape(-1)
    if flat.size <= SMALL:
        return [flat[None]]
    columns = columns_of(flat.size)
    cut = flat.size - flat.size % columns
    rows = [flat[:cut].reshape(-1, columns)]
    return rows if cut == flat.size else [*rows, flat[cut:][None]]


class _Reduction(NamedTuple):
    """What a pass reduces: counts, sums and extremes, in this order."""

    values: list[Any]
    folds: list[Callable[[Any, Any], Any]]

    @classmethod
    def of(cls, counted: Sequence[Any], summed: Sequence[Any], least: Any, largest: Any) -> "_Reduction":
        values = [*(count.astype(jnp.int32) for count in counted), *summed, least, largest]
        return cls(values, [*[lax.add] * (len(counted) + len(summed)), lax.min, lax.max])

    def over_rows(self) -> list[Any]:
        return reduced(self.values, self.folds, 1)


def _over_large(parts: list[_Reduction]) -> list[Any]:
    """The results for all parts of an array together."""
    by_part = [part.over_rows() for part in parts]
    joined = [jnp.concatenate(rows) for rows in zip(*by_part, strict=True)]
    wide = [rows.astype(jnp.int64) if rows.dtype == jnp.int32 else rows for rows in joined]
    return reduced(wide, parts[0].folds, 0)


def measured(results: list[Any], counts: int) -> Figures:
    *sums, least, largest = results[counts:]
    return Figures(
        jnp.stack([count.astype(jnp.int64) for count in results[:counts]], -1),
        jnp.stack(sums, -1),
        jnp.stack([least, largest], -1).astype(jnp.uint64 if least.dtype == jnp.uint64 else jnp.int64),
    )


def fast(x: Any) -> _Reduction:
    values = _values(x)
    number = values.number
    counted = [values.magnitude == 0, values.magnitude < values.tiny]
    return _Reduction.of(counted, [number, abs(number), number * number], values.key, values.key)


def _with_care(x: Any, shift: Any) -> _Reduction:
    values = _values(x)
    number, key, magnitude = values.number, values.key, values.magnitude
    counted = [magnitude == 0, magnitude < values.tiny]
    least = largest = key
    distance = number - shift
    if values.infinity is None:
        counted += [jnp.zeros(x.shape, bool)] * 3
    else:
        infinite, finite = magnitude == values.infinity, magnitude < values.infinity
        counted += [magnitude > values.infinity, infinite & (key > 0), infinite & (key < 0)]
        number, distance = jnp.where(finite, number, 0.0), jnp.where(finite, distance, 0.0)
        limits = jnp.iinfo(key.dtype)
        least, largest = jnp.where(finite, key, limits.max), jnp.where(finite, key, limits.min)
    summed = [number, abs(number), number * number, distance, distance * distance]
    return _Reduction.of(counted, summed, least, largest)


_measure_large = jax.jit(lambda x: _over_large([fast(part) for part in _rows(x)]))  # traced once for all of a shape


def _first_pass(arrays: tuple[Any, ...], histogram: bool) -> Figures:
    """Measures arrays of one shape and dtype. The bins of large arrays are left to `window_pass`, because compiling
    them for each array takes long."""
    if arrays[0].size <= SMALL:
        stacked = jnp.stack([x.reshape(-1) for x in arrays])
        figures = measured(fast(stacked).over_rows(), len(COUNTED))
    else:
        each = map(_measure_large, arrays)
        figures = measured([jnp.stack(results) for results in zip(*each, strict=True)], len(COUNTED))
    if not histogram:
        return figures
    lowest = window_below(figures.extremes, arrays[0].dtype)
    if arrays[0].size > SMALL:
        return figures._replace(lowest=tuple(lowest))
    return figures._replace(lowest=lowest, bins=window_counts(stacked, lowest[:, None]).astype(jnp.int64))


def _careful_pass(x: Any, shift: Any) -> Figures:
    return measured(_over_large([_with_care(part, shift) for part in _rows(x)]), len(COUNTED_WITH_CARE))


# -- the histogram ---------------------------------------------------------------------------------------------------


def window_below(extremes: Any, dtype: Any) -> Any:
    """The first exponent of the window that ends with the exponent of the largest magnitude."""
    if is_whole(dtype.name):
        values = _whole_values(extremes)
        top = values.exponent()
    else:
        magnitude = jnp.where(extremes < 0, -1 - extremes, extremes)
        top = magnitude >> 23 if dtype.itemsize < 8 else jnp.clip((magnitude >> 52) - 896, 0, BINS - 1)
    return jnp.clip(top.max(-1) - WINDOW + 1, 0, BINS - WINDOW).astype(jnp.int32)


def _count_window(x: Any, lowest: Any) -> Any:
    """How many values of an array have each of the exponents from `lowest` on."""
    by_row = [window_counts(part, lowest) for part in _rows(x)]
    return sum(counts.astype(jnp.int64).sum(0) for counts in by_row)


def window_counts(x: Any, lowest: Any) -> Any:
    """How many values of each row have each of the exponents from `lowest` on.

    Each value adds a one to one of eight fields of four bits, in one of five words. After eight values, the fields are
    moved to fields of 16 bits, two in a word, which are added up over the row.
    """
    place = _values(x).exponent().astype(jnp.int32) - lowest
    rest = -x.shape[1] % _AT_A_TIME
    if rest:
        place = jnp.pad(place, ((0, 0), (0, rest)), constant_values=-1)  # in no window
    place = lax.bitcast_convert_type(place, jnp.uint32).reshape(len(place), _AT_A_TIME, -1)
    bit, word = jnp.uint32(1) << ((place & 7) << 2), place >> 3
    wide = []
    for number in range(_WORDS):
        ones = jnp.where(word == number, bit, jnp.uint32(0))
        fields = sum((ones[:, turn] for turn in range(1, _AT_A_TIME)), ones[:, 0])
        wide += [(fields >> (4 * field)) & jnp.uint32(0x000F000F) for field in range(4)]
    sums = jnp.stack(reduced(wide, [lax.add] * len(wide), 1), -1).reshape(len(place), _WORDS, 1, 4)
    return jnp.concatenate([sums & 0xFFFF, sums >> 16], 2).reshape(len(place), WINDOW)


first_pass = jax.jit(_first_pass, static_argnames="histogram")
careful_pass = jax.jit(_careful_pass)
window_pass = jax.jit(_count_window)
join_bins = jax.jit(lambda bins: jnp.stack(bins))
