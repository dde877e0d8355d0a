"""A row of statistics: of one leaf, or of several leaves combined."""

import math
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple

from leafwise.core.dtypes import DTYPES
from leafwise.core.path import escape, plural
from leafwise.core.results.moments import FIELDS, HIGHEST, Histogram, Moments
from leafwise.errors import QueryError

_VALUES = attrgetter(*FIELDS)
# The dtypes that `outside` supports: stored floats within the range of the histogram bins; the widest first. Each with
# powers of two: below which values vanish (those in the bin below the smallest number are rounded up to it), from which
# they are normal, and the largest. Then the smallest number that overflows.
_LIMITS = {
    dtype.name: (floats.smallest_normal - floats.fraction_bits - 1, floats.smallest_normal, floats.largest_exponent,
                 floats.overflows_from)
    for dtype in sorted(DTYPES.values(), key=lambda dtype: (-dtype.bits, dtype.name))
    if dtype.is_stored and (floats := dtype.range) and floats.smallest_normal is not None
    and floats.largest_exponent < HIGHEST
}  # fmt: skip


class CastLosses(NamedTuple):
    """How many values another dtype could not represent: `overflow` would become infinite, `subnormal` would lose
    digits, `vanish` would become zero. Since the bins are powers of two, there are three inaccuracies: if the largest
    value overflows, all values in the bin of the dtype's largest number count as overflowing; a value of exactly half
    the smallest number counts as `subnormal`, though it would vanish; and values below 2**-126 share one bin and all
    count as `subnormal`."""

    overflow: int
    subnormal: int
    vanish: int


class Row(Moments):
    """The statistics of one leaf, or of several leaves combined; see `lw.stats`.

    If leaves are combined, as in `total`, `path`, `dtype` and `shape` are None.

    >>> import torch, leafwise as lw
    >>> row = lw.stats({"w": torch.tensor([3.0, -4.0, 0.0])})["w"]
    >>> row.l2, row.absmax, row.zeros, row.dtype
    (5.0, 4.0, 1, 'float32')
    """

    __slots__ = ("dtype", "path", "shape")

    def __init__(
        self, moments: Moments, path: str | None = None, dtype: str | None = None, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(*_VALUES(moments))
        self.path = path
        self.dtype = dtype
        self.shape = shape

    def quantile(self, q: float) -> float:
        """The magnitude that a share `q` of the values does not exceed, estimated from the histogram. It is in the same
        bin as the exact value, so it is right up to a factor of two, and exact for zeros and for the largest value.
        Magnitudes below 2**-126 share one bin, and so do those from 2**128 on.

        >>> import torch, leafwise as lw
        >>> row = lw.stats({"w": torch.tensor([0.0, 0.5, -3.0, 100.0])})["w"]
        >>> row.quantile(0.25), row.quantile(0.5), row.quantile(1)
        (0.0, 0.75, 100.0)
        """
        number: Any = q
        if not isinstance(number, Real) or not 0 <= float(number) <= 1:
            raise QueryError(f"quantile() takes a number between 0 and 1, not {q!r}")
        histogram = self._histogram("quantile")
        wanted = q * self.finite
        passed = float(self.zeros)
        if not self.finite:
            return math.nan
        if q == 1:
            return float(self.absmax)
        if self.zeros and wanted <= passed:
            return 0.0
        for exponent, count in enumerate(histogram.counts, histogram.lowest):
            if count and wanted <= passed + count:
                # The position within the bin, as if its values were evenly distributed.
                share = max(wanted - passed - 0.5, 0) / count
                low, high = 2.0**exponent, min(2.0 ** (exponent + 1), float(self.absmax))
                return low + share * (max(high, low) - low)
            passed += count
        return float(self.absmax)

    def outside(self, dtype: Any) -> CastLosses:
        """How many values would overflow, become subnormal, or vanish in another floating dtype, from the histogram.

        >>> import torch, leafwise as lw
        >>> row = lw.stats({"w": torch.tensor([1e6, 1.0, 1e-5, 1e-9])})["w"]
        >>> row.outside("float16")
        CastLosses(overflow=1, subnormal=1, vanish=1)
        """
        name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        if name not in _LIMITS:
            raise QueryError(f"outside() supports the dtypes {', '.join(_LIMITS)}, not {dtype!r}")
        histogram = self._histogram("outside")
        vanishing, normal, largest, overflows_from = _LIMITS[name]
        # If the largest value is rounded to infinity, the bin of the largest finite number counts as overflowing.
        over = largest + (not self.finite or self.absmax < overflows_from) - histogram.lowest
        below, from_normal = max(vanishing - histogram.lowest, 0), max(normal - histogram.lowest, 0)
        counts = histogram.counts
        return CastLosses(sum(counts[max(over, 0) :]), sum(counts[below:from_normal]), sum(counts[:below]))

    def _histogram(self, method: str) -> Histogram:
        if self.histogram is None:
            raise QueryError(f"{method}() needs the histogram; call lw.stats without histogram=False")
        return self.histogram

    def numbers(self) -> dict[str, Any]:
        """The dtype and all statistics except the histogram, by name."""
        return {"dtype": self.dtype, **self.statistics()}

    def _key(self) -> tuple[Any, ...]:
        # Two NaN are equal here.
        return self.path, self.dtype, self.shape, *(None if value != value else value for value in _VALUES(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        nonfinite = "".join(f", {count:,} {label}" for label, count in self.nonfinite_counts().items())
        return escape(
            f"<{path}{plural(self.count, 'value', 'values')}, mean {self.mean:.4g}, std {self.std:.4g}, "
            f"from {self.min:.4g} to {self.max:.4g}{nonfinite}>"
        )
