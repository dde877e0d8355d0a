"""The reference for all kernels: statistics of an array, comparison of two, and weighted sums, in NumPy and double
precision."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leafwise.core.results.comparison import Comparison
from leafwise.core.results.moments import COUNTS, HIGHEST, LOWEST, NUMBERS, Histogram, Moments, none_finite
from leafwise.errors import WriteError
from leafwise.kernels.casting import cast_to
from leafwise.kernels.dtypes import smallest_normal


def measure(array: Any, histogram: bool = True) -> Moments:
    """The moments of a NumPy array.

    >>> moments = measure(np.array([1.0, -3.0, 0.0, np.nan, np.inf], np.float32))
    >>> moments.count, moments.nan, moments.posinf, moments.zeros, moments.min, moments.max, moments.l1
    (5, 1, 1, 1, -3.0, 1.0, 4.0)
    >>> moments.histogram
    Histogram(lowest=0, counts=(1, 1))
    """
    array = np.asarray(array).reshape(-1)
    whole = array.dtype.kind in "iub"
    with np.errstate(invalid="ignore"):  # for signaling nan
        every = array.astype(np.float64)
    finite = np.isfinite(every)
    x = every if whole or finite.all() else every[finite]
    zeros = int(np.count_nonzero(x == 0))
    small = int(np.count_nonzero(np.abs(x) < smallest_normal(array.dtype.name)))
    counts = {
        "count": array.size,
        "nan": int(np.count_nonzero(np.isnan(every))),
        "posinf": int(np.count_nonzero(every == np.inf)),
        "neginf": int(np.count_nonzero(every == -np.inf)),
        "zeros": zeros,
        "subnormals": 0 if whole else small - zeros,
    }
    bins = _histogram(array if whole else x) if histogram else None
    if not x.size:
        return none_finite((counts[name] for name in COUNTS), bins)
    least, largest = (int(array.min()), int(array.max())) if whole else (float(x.min()) + 0.0, float(x.max()) + 0.0)
    # Scaled by a power of two, so that squares neither overflow nor underflow.
    magnitude = max(-float(x.min()), float(x.max()))
    scale = 2.0 ** np.clip(np.frexp(magnitude)[1], -1000, 1000)
    x = x / scale
    rounded = x.mean() if least != largest else x[0]
    rest = (x - rounded).mean()  # because the sum of large numbers was rounded
    mean = rounded + rest
    with np.errstate(over="ignore"):  # a sum may be larger than any float
        numbers = {
            "min": least,
            "max": largest,
            "mean": float(mean * scale),
            "mean_rest": float(((rounded - mean) + rest) * scale),
            "std": float(np.sqrt(np.mean((x - rounded - rest) ** 2)) * scale),
            "l1": float(np.sum(np.abs(x)) * scale),
            "l2": float(np.sqrt(np.sum(x * x)) * scale),
        }
    return Moments.of((counts[name] for name in COUNTS), (numbers[name] for name in NUMBERS), bins)


def _histogram(x: Any) -> Histogram:
    x = x[x != 0]
    exponents = np.frexp(np.abs(x.astype(np.float64)))[1].astype(np.int64) - 1
    if x.dtype.kind in "iu" and x.size:
        # As a float, a large integer may have been rounded up to a power of two.
        magnitudes = np.where(x < 0, 0 - x.astype(np.uint64), x.astype(np.uint64)) if x.dtype.kind == "i" else x
        magnitudes = magnitudes.astype(np.uint64)
        exponents -= (magnitudes >> np.minimum(exponents, 63).astype(np.uint64) == 0) | (exponents > 63)
    bins = np.bincount(np.clip(exponents, LOWEST, HIGHEST) - LOWEST, minlength=HIGHEST - LOWEST + 1)
    return Histogram.of_bins(bins.tolist())


def compare(x: Any, y: Any, between: Any = None) -> Comparison:
    """Compares two NumPy arrays of one dtype and size. `between` are their differences, if they are known more
    precisely than from the arrays, which may have been rounded.

    >>> comparison = compare(np.array([3.0, 4.0, np.nan]), np.array([3.0, 0.0, 1.0]))
    >>> comparison.changed, comparison.nonfinite, comparison.distance, comparison.norm, comparison.cosine
    (2, 1, 4.0, 5.0, 0.6)
    >>> comparison.largest
    nan
    """
    x, y = x.reshape(-1), y.reshape(-1)
    differ = _bits_differ(x, y)
    if between is not None:
        differ = differ | (between != 0)
    is_complex = x.dtype.kind == "c"
    with np.errstate(invalid="ignore"):
        wide = np.complex128 if is_complex else np.float64
        a, b = x.astype(wide), y.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    nonfinite = int(x.size - np.count_nonzero(finite))
    lost = int(np.count_nonzero(differ & ~finite))
    if nonfinite:
        x, y, a, b = x[finite], y[finite], a[finite], b[finite]
        between = None if between is None else between[finite]
    a, b = a.view(np.float64), b.view(np.float64)
    apart, half = _apart(a, b) if between is None else (between.view(np.float64), 0)
    if x.dtype.kind in "iu":  # exactly, because large integers would be rounded as doubles
        whole, other = x.astype(np.uint64), y.astype(np.uint64)
        apart = np.where(x > y, whole - other, other - whole).astype(np.float64)
    # Each is scaled by its own power of two: one side may be huge, the other small, and the differences even smaller.
    (a, power), (b, other_power), (apart, apart_power) = map(_scaled, (a, b, apart))
    norm, other_norm, distance = (float(np.sqrt(np.sum(side * side))) for side in (a, b, apart))
    both = norm * other_norm
    steps = np.hypot(apart[::2], apart[1::2]) if is_complex else np.abs(apart)
    with np.errstate(over="ignore"):  # a difference may be larger than any float
        largest = math.nan if lost else float(np.ldexp(steps.max(initial=0), apart_power + half))
    return Comparison.of(
        (finite.size, int(np.count_nonzero(differ)), nonfinite),
        ((distance, apart_power + half), (norm, power), (other_norm, other_power)),
        float(np.sum(a * b)) / both if both else math.nan,
        largest,
        lost,
    )


def _apart(a: Any, b: Any) -> tuple[Any, int]:
    """The differences, and how often they were halved: a difference of finite floats may be larger than any float."""
    with np.errstate(over="ignore"):
        apart = a - b
    return (apart, 0) if np.isfinite(apart).all() else (a / 2 - b / 2, 1)


def _scaled(x: Any) -> tuple[Any, int]:
    """The numbers divided by a power of two, so that squares neither overflow nor underflow, and that power."""
    power = int(np.frexp(float(np.abs(x).max(initial=0)))[1])
    if -480 <= power <= 480:
        return x, 0
    power = max(power, -1000)
    return np.ldexp(x, -power), power


def _bits_differ(x: Any, y: Any) -> Any:
    items = [array.view(np.uint8).reshape(array.size, array.itemsize) for array in (x, y)]
    return (items[0] != items[1]).any(1) if x.size else np.zeros(0, bool)


@np.errstate(all="ignore")  # what overflows is found from the values
def combine(arrays: Sequence[Any], weights: Sequence[float], dtype: str, saturate: bool = False) -> Any:
    """The sum of flat arrays, each multiplied by its weight. Products and sums are rounded to float64 (both parts of
    complex numbers), in the order of the arrays, and the result is rounded once, to a dtype. All NaN have equal bits.

    >>> combine([np.array([1.0, np.inf]), np.array([0.5, 2.0])], [0.5, -1.0], "float32")
    array([ 0., inf], dtype=float32)
    """
    wide = np.complex128 if any(array.dtype.kind == "c" for array in arrays) else np.float64
    total, finite = None, True
    for array, weight in zip(arrays, weights, strict=True):
        values = array.astype(wide).view(np.float64)
        finite = finite & np.isfinite(values)
        product = values * np.float64(weight)
        total = product if total is None else total + product
    assert total is not None
    if (finite & ~np.isfinite(total)).any():
        raise WriteError("some sums are larger than any number of float64; use smaller weights")
    total[np.isnan(total)] = np.nan
    return cast_to(total.view(wide), dtype, saturate)
