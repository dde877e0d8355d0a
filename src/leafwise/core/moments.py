"""What one pass over an array finds, and how such findings are put together.

Homes give them, by the kernels; whoever wants statistics of a part of a tree folds them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LOWEST, HIGHEST = -127, 128  # the exponents of the first and the last bin


class Histogram(NamedTuple):
    """How many values have which magnitude: the number at place i counts those from 2**(lowest + i) up to twice that.

    Zeros and what is not finite are in no bin. That of exponent -127 holds all that is smaller than 2**-126, that of
    128 all from 2**128 on. Only the bins between the first and the last that hold something are there.
    """

    lowest: int
    counts: tuple[int, ...]

    @classmethod
    def of_bins(cls, bins: Sequence[int]) -> "Histogram":
        """From the counts of all 256 bins."""
        used = [number for number, count in enumerate(bins) if count]
        return cls(LOWEST + used[0], tuple(bins[used[0] : used[-1] + 1])) if used else NOTHING


NOTHING = Histogram(0, ())


class Moments(NamedTuple):
    """One pass over an array: what is counted of all its values, and what is said of the finite ones.

    `mean_rest` is by how much the mean was rounded, as far as that is known: between means far from zero, distances
    would be too rough without it. `std` is the root of the mean squared distance from the mean. Without a finite value,
    `min`, `max` and `mean` are nan, and `std` is 0.
    """

    size: int
    nan: int
    posinf: int
    neginf: int
    zeros: int
    subnormals: int
    min: float
    max: float
    mean: float
    mean_rest: float
    std: float
    l1: float
    l2: float
    histogram: Histogram | None

    @property
    def finite(self) -> int:
        return self.size - self.nan - self.posinf - self.neginf


def nothing(histogram: Histogram | None) -> Moments:
    """The moments of an array without elements."""
    return none_finite((0, 0, 0, 0, 0, 0), histogram)


def none_finite(counts: Sequence[int], histogram: Histogram | None) -> Moments:
    """The moments of an array of which there is only what is counted: its size, and all that follows it."""
    return Moments._make((*counts, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0, 0.0, histogram))


def together(parts: Iterable[Moments]) -> Moments:
    """The moments of several arrays as if they were one; in whatever order.

    >>> one = Moments(2, 0, 0, 0, 0, 0, 1.0, 3.0, 2.0, 0.0, 1.0, 4.0, 10**0.5, None)
    >>> two = Moments(1, 0, 0, 0, 1, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None)
    >>> both = together([one, two])
    >>> both.size, both.zeros, both.min, both.max, round(both.mean, 4), round(both.std**2, 4)
    (3, 1, 0.0, 3.0, 1.3333, 1.5556)
    """
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else nothing(NOTHING)
    counts = [sum(column) for column in zip(*(part[:6] for part in parts), strict=True)]
    full = [part for part in parts if part.finite]
    histogram = _joined([part.histogram for part in parts])
    if not full:
        return none_finite(counts, histogram)
    finite = sum(part.finite for part in full)
    shares = [part.finite / finite for part in full]
    # By halves where the distance between two means may be larger than any float, many times where a share of it may be
    # smaller than any.
    magnitude = max(abs(part.mean) for part in full)
    scale = 0.5 if magnitude > 1e307 else 2.0**500 if magnitude < 1e-200 else 1.0
    base = full[0].mean * scale
    away = [(part.mean * scale - base) + part.mean_rest * scale for part in full]
    step = math.fsum(distance * share for distance, share in zip(away, shares, strict=True))
    mean = base + step
    spreads = [part.std * math.sqrt(share) for part, share in zip(full, shares, strict=True)]
    apart = [(distance - step) * math.sqrt(share) / scale for distance, share in zip(away, shares, strict=True)]
    return Moments._make(
        (
            *counts,
            min(part.min for part in full),
            max(part.max for part in full),
            mean / scale,
            ((base - mean) + step) / scale,
            math.hypot(*spreads, *apart),
            _sum(part.l1 for part in full),
            math.hypot(*(part.l2 for part in full)),
            histogram,
        )
    )


def _sum(numbers: Iterable[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:  # larger than any float
        return math.inf


def _joined(histograms: list[Histogram | None]) -> Histogram | None:
    if any(histogram is None for histogram in histograms):
        return None
    bins = [0] * (HIGHEST - LOWEST + 1)
    for histogram in histograms:
        assert histogram is not None
        for number, count in enumerate(histogram.counts, histogram.lowest - LOWEST):
            bins[number] += count
    return Histogram.of_bins(bins)
