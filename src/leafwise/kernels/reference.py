"""What is right: the statistics of an array, in NumPy and double precision. Kernels agree with it, or are wrong."""

from typing import Any

import numpy as np

from leafwise.core.moments import HIGHEST, LOWEST, Histogram, Moments, none_finite
from leafwise.kernels.dtypes import smallest_normal


def measure(array: Any, histogram: bool = True) -> Moments:
    """The moments of a NumPy array.

    >>> found = measure(np.array([1.0, -3.0, 0.0, np.nan, np.inf], np.float32))
    >>> found.size, found.nan, found.posinf, found.zeros, found.min, found.max, found.l1
    (5, 1, 1, 1, -3.0, 1.0, 4.0)
    >>> found.histogram
    Histogram(lowest=0, counts=(1, 1))
    """
    array = np.asarray(array).reshape(-1)
    whole = array.dtype.kind in "iub"
    with np.errstate(invalid="ignore"):  # of bits that are no number
        every = array.astype(np.float64)
    finite = np.isfinite(every)
    x = every if whole or finite.all() else every[finite]
    zeros = int(np.count_nonzero(x == 0))
    small = int(np.count_nonzero(np.abs(x) < smallest_normal(array.dtype.name)))
    counts = [
        array.size,
        int(np.count_nonzero(np.isnan(every))),
        int(np.count_nonzero(every == np.inf)),
        int(np.count_nonzero(every == -np.inf)),
        zeros,
        0 if whole else small - zeros,
    ]
    bins = _histogram(array if whole else x) if histogram else None
    if not x.size:
        return none_finite(counts, bins)
    least, largest = (int(array.min()), int(array.max())) if whole else (float(x.min()) + 0.0, float(x.max()) + 0.0)
    # By a power of two, so that squares neither overflow nor vanish.
    magnitude = max(-float(x.min()), float(x.max()))
    scale = 2.0 ** np.clip(np.frexp(magnitude)[1], -1000, 1000)
    x = x / scale
    rounded = x.mean() if least != largest else x[0]
    rest = (x - rounded).mean()  # as the sum of large numbers was rounded
    mean = rounded + rest
    with np.errstate(over="ignore"):  # a sum may be larger than any number
        return Moments._make(
            (
                *counts,
                least,
                largest,
                float(mean * scale),
                float(((rounded - mean) + rest) * scale),
                float(np.sqrt(np.mean((x - rounded - rest) ** 2)) * scale),
                float(np.sum(np.abs(x)) * scale),
                float(np.sqrt(np.sum(x * x)) * scale),
                bins,
            )
        )


def _histogram(x: Any) -> Histogram:
    x = x[x != 0]
    exponents = np.frexp(np.abs(x.astype(np.float64)))[1].astype(np.int64) - 1
    if x.dtype.kind in "iu" and x.size:
        # A large whole number may have been rounded up to a power of two.
        magnitudes = np.where(x < 0, 0 - x.astype(np.uint64), x.astype(np.uint64)) if x.dtype.kind == "i" else x
        magnitudes = magnitudes.astype(np.uint64)
        exponents -= (magnitudes >> np.minimum(exponents, 63).astype(np.uint64) == 0) | (exponents > 63)
    bins = np.bincount(np.clip(exponents, LOWEST, HIGHEST) - LOWEST, minlength=HIGHEST - LOWEST + 1)
    return Histogram.of_bins(bins.tolist())
