"""Statistics of arrays: the results of one pass over the values, how the results of parts are combined, and how each
statistic is shown.

A new statistic is declared only here: `lw.stats`, its table, JSON, pandas and the command line read `STATISTICS`. A
statistic that follows from others is a property of `Moments` and a row there. A statistic that has to be measured is a
field of `Moments` and a row, and is computed in four places: the reference (`kernels/reference.py`), the C code
(`kernels/c/chunk.h`), the Triton code (`kernels/triton/triton_kernels.py`), and the code for JAX
(`kernels/xla/passes.py`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

LOWEST, HIGHEST = -127, 128  # the exponents of the first and the last bin


class Histogram(NamedTuple):
    """The histogram of magnitudes: `counts[i]` is the number of values from 2**(lowest + i) up to twice that.

    Zeros and values that are not finite are in no bin. The bin of exponent -127 has all values smaller than 2**-126,
    the bin of 128 all values from 2**128 on. Empty bins at both ends are left out.
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
    """The statistics of an array, or of several arrays together. `count`, `nan`, `posinf` and `neginf` are about all
    values, the others about the finite values.

    Without a finite value, `min`, `max`, `mean` and `std` are nan, and properties must not raise. The counts come
    first, then the numbers, in the order in which kernels return them: add a new field at the end of its kind.
    """

    count: int  # all values
    nan: int
    posinf: int
    neginf: int
    zeros: int
    subnormals: int  # too small for full precision in their dtype
    min: float  # like `max`, an exact int for integer dtypes
    max: float
    mean: float
    mean_rest: float  # what rounding took off the mean: without it, differences of means far from zero lose precision
    std: float  # of the population: the root of the mean squared distance from the mean
    l1: float  # the sum of magnitudes
    l2: float  # the Euclidean norm
    histogram: Histogram | None

    @classmethod
    def of(cls, counts: Iterable[int], numbers: Iterable[float], histogram: Histogram | None) -> "Moments":
        """From all counts and all numbers, in the order of the fields."""
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
        """All statistics to show, except the histogram, by name."""
        return {statistic.name: getattr(self, statistic.name) for statistic in STATISTICS if not statistic.is_hidden}

    def nonfinite_counts(self) -> dict[str, int]:
        """How many values are NaN, +inf and -inf; counts of zero are left out."""
        counts = {statistic.warning: getattr(self, statistic.name) for statistic in STATISTICS if statistic.warning}
        return {label: count for label, count in counts.items() if count}

    def order_free(self) -> tuple[float, ...]:
        """The counts and the extremes, which do not depend on the order of the values, not even in the last bit."""
        return (*(getattr(self, name) for name in COUNTS), self.min, self.max)


class TableColumn(NamedTuple):
    """How a statistic is printed."""

    place: int  # columns are sorted by it
    heading: str
    form: Literal["count", "number", "share"]  # share: percentage of the finite values
    drop: int = 0  # in a narrow terminal, the column with the lowest number is left out first; 0 is never left out


class Statistic(NamedTuple):
    """A field or a property of `Moments`. Its name is also the key in JSON and the column in pandas."""

    name: str
    fold: Callable[[Iterable[float]], float] | None = None  # combines the numbers of parts
    empty: float = 0.0  # the number if no value is finite
    column: TableColumn | None = None  # None if it is not printed
    warning: str = ""  # printed next to the count as a warning, unless the count is zero
    is_hidden: bool = False


def _sum(numbers: Iterable[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:  # the sum is larger than any float
        return math.inf


HISTOGRAM_DROP = 20  # as `TableColumn.drop`, for the histogram

# In the order of JSON and pandas. Counts are added up. `merged_moments` computes the mean and everything that depends
# on it; the others without `fold` are properties.
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
    Statistic("l2", lambda numbers: math.hypot(*numbers)),
    Statistic("absmax"),
]


def table_columns() -> list[tuple[str, TableColumn]]:
    """The printed statistics, from left to right. NaN and infinity counts follow, then the histogram."""
    columns = [(statistic.name, statistic.column) for statistic in STATISTICS if statistic.column is not None]
    return sorted(columns, key=lambda column: column[1].place)


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
    """The moments of an array without a finite value, which has only counts."""
    return Moments.of(counts, _EMPTY, histogram)


def merged_moments(parts: Iterable[Moments]) -> Moments:
    """Combines the moments of several arrays, as if they were one array; the order does not matter.

    >>> import numpy, leafwise.kernels.reference as reference
    >>> both = merged_moments([reference.measure(numpy.array([1.0, 3.0])), reference.measure(numpy.array([0.0]))])
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
    """The mean of all values, with its rest, and the standard deviation."""
    finite = sum(part.finite for part in parts)
    shares = [part.finite / finite for part in parts]
    # Scaled down if the difference of two means could overflow, and up if a fraction of it could underflow.
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
