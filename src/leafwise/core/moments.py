"""Statistics of arrays: what one pass over the values finds, how the findings of parts become those of the whole, and
how each is shown.

A new statistic is declared here, and nothing else has to know of it: `lw.stats`, its table, JSON, pandas and the
command line go by `STATISTICS`. One that follows from others is a property of `Moments` and an entry there. One that
has to be measured is a field of `Moments` and an entry, and is computed in three places: `kernels/reference.py`, which
says what is right, the C code (`kernels/chunk.h`), and Triton's (`kernels/triton_kernels.py`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

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


@dataclass(slots=True)
class Moments:
    """The statistics of an array, or of several as one. `count`, `nan`, `posinf` and `neginf` are of all values,
    everything else is of the finite ones.

    Without a finite value, `min`, `max`, `mean` and `std` are nan; a property must not raise there. First come all
    counts, then all numbers, and kernels give them in this order: a new one goes to the end of its kind.
    """

    count: int  # values, whatever they are
    nan: int
    posinf: int
    neginf: int
    zeros: int
    subnormals: int  # so small, in their own dtype, that they have fewer digits than others
    min: float  # of whole numbers, as of `max`: exact, an int
    max: float
    mean: float
    mean_rest: float  # by how much the mean was rounded: without it, distances of means far from zero are too rough
    std: float  # of these very values: the root of their mean squared distance from the mean
    l1: float  # the sum of magnitudes
    l2: float  # the Euclidean norm
    histogram: Histogram | None

    @classmethod
    def of(cls, counts: Iterable[int], numbers: Iterable[float], histogram: Histogram | None) -> "Moments":
        """From all counts and all numbers, in their order."""
        return cls(*counts, *numbers, histogram)  # type: ignore[call-arg, arg-type]

    @property
    def finite(self) -> int:
        """How many values are neither nan nor infinite."""
        return self.count - self.nan - self.posinf - self.neginf

    @property
    def absmax(self) -> float:
        """The largest magnitude."""
        return max(abs(self.min), abs(self.max))

    def statistics(self) -> dict[str, Any]:
        """All that is to be shown but the histogram, by name."""
        return {statistic.name: getattr(self, statistic.name) for statistic in STATISTICS if not statistic.is_hidden}

    def nonfinite_counts(self) -> dict[str, int]:
        """How many values are NaN, +inf and -inf, as these are written; only what there is."""
        counts = {statistic.warning: getattr(self, statistic.name) for statistic in STATISTICS if statistic.warning}
        return {label: count for label, count in counts.items() if count}

    def order_free(self) -> tuple[float, ...]:
        """The counts and the extremes: to the last bit the same in whatever order the values lie."""
        return (*(getattr(self, name) for name in COUNTS), self.min, self.max)


class TableColumn(NamedTuple):
    """How a statistic is printed."""

    place: int  # columns are printed in the order of these
    heading: str
    form: Literal["count", "number", "share"]  # share: of the finite values, in percent
    drop: int = 0  # where room is short, the column with the lowest number goes first; 0 stays


class Statistic(NamedTuple):
    """A field or a property of `Moments`; its name is the key in JSON, too, and the column in pandas."""

    name: str
    fold: Callable[[Iterable[float]], float] | None = None  # makes the number of the whole from those of parts
    empty: float = 0.0  # the number where no value is finite
    column: TableColumn | None = None  # None: it is not printed
    warning: str = ""  # what is printed beside the count as a warning, where it is not zero
    is_hidden: bool = False


def _sum(numbers: Iterable[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:  # larger than any float
        return math.inf


def _norm(numbers: Iterable[float]) -> float:
    return math.hypot(*numbers)


HISTOGRAM_DROP = 20  # when the histogram goes, among the columns

# In the order of JSON and pandas. Counts are added up. `together` works out the mean and what belongs to it; the others
# without `fold` are properties.
STATISTICS = [
    Statistic("count", column=TableColumn(0, "values", "count", drop=10)),
    Statistic("finite"),
    Statistic("nan", warning="NaN"),
    Statistic("posinf", warning="+inf"),
    Statistic("neginf", warning="-inf"),
    Statistic("zeros", column=TableColumn(50, "zeros", "share", drop=40)),
    Statistic("subnormals"),
    Statistic("min", min, math.nan, TableColumn(30, "min", "number", drop=30)),
    Statistic("max", max, math.nan, TableColumn(40, "max", "number")),
    Statistic("mean", None, math.nan, TableColumn(10, "mean", "number", drop=50)),
    Statistic("mean_rest", is_hidden=True),
    Statistic("std", None, math.nan, TableColumn(20, "std", "number")),
    Statistic("l1", _sum),
    Statistic("l2", _norm),
    Statistic("absmax"),
]

FIELDS = tuple(field.name for field in fields(Moments))
COUNTS = tuple(field.name for field in fields(Moments) if field.type is int)
NUMBERS = tuple(field.name for field in fields(Moments) if field.type is float)
_BY_NAME = {statistic.name: statistic for statistic in STATISTICS}
_EMPTY = tuple(_BY_NAME[name].empty for name in NUMBERS)
_FOLDS = {name: fold for name in NUMBERS if (fold := _BY_NAME[name].fold)}


def nothing(histogram: Histogram | None) -> Moments:
    """The moments of an array without elements."""
    return none_finite([0] * len(COUNTS), histogram)


def none_finite(counts: Iterable[int], histogram: Histogram | None) -> Moments:
    """The moments of an array without a finite value, of which there are only counts."""
    return Moments.of(counts, _EMPTY, histogram)


def together(parts: Iterable[Moments]) -> Moments:
    """The moments of several arrays as if they were one; in whatever order.

    >>> import numpy, leafwise.kernels.reference as reference
    >>> both = together([reference.measure(numpy.array([1.0, 3.0])), reference.measure(numpy.array([0.0]))])
    >>> both.count, both.zeros, both.min, both.max, round(both.mean, 4), round(both.std**2, 4)
    (3, 1, 0.0, 3.0, 1.3333, 1.5556)
    """
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else nothing(NOTHING)
    counts = [sum([getattr(part, name) for part in parts]) for name in COUNTS]
    full = [part for part in parts if part.finite]
    histogram = _joined([part.histogram for part in parts])
    if not full:
        return none_finite(counts, histogram)
    numbers = {name: fold([getattr(part, name) for part in full]) for name, fold in _FOLDS.items()}
    numbers |= _joint_mean(full)
    return Moments.of(counts, [numbers[name] for name in NUMBERS], histogram)


def _joint_mean(parts: list[Moments]) -> dict[str, float]:
    """The mean of all, with its rest, and the deviation from it."""
    finite = sum(part.finite for part in parts)
    shares = [part.finite / finite for part in parts]
    # By halves where the distance between two means may be larger than any float, many times where a share of it may be
    # smaller than any.
    magnitude = max(abs(part.mean) for part in parts)
    scale = 0.5 if magnitude > 1e307 else 2.0**500 if magnitude < 1e-200 else 1.0
    base = parts[0].mean * scale
    away = [(part.mean * scale - base) + part.mean_rest * scale for part in parts]
    step = math.fsum(distance * share for distance, share in zip(away, shares, strict=True))
    mean = base + step
    spreads = [part.std * math.sqrt(share) for part, share in zip(parts, shares, strict=True)]
    apart = [(distance - step) * math.sqrt(share) / scale for distance, share in zip(away, shares, strict=True)]
    return {
        "mean": mean / scale,
        "mean_rest": ((base - mean) + step) / scale,
        "std": math.hypot(*spreads, *apart),
    }


def _joined(histograms: list[Histogram | None]) -> Histogram | None:
    if any(histogram is None for histogram in histograms):
        return None
    bins = [0] * (HIGHEST - LOWEST + 1)
    for histogram in histograms:
        assert histogram is not None
        for number, count in enumerate(histogram.counts, histogram.lowest - LOWEST):
            bins[number] += count
    return Histogram.of_bins(bins)
