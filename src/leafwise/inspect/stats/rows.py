"""A row of statistics: of a leaf, or of many as one."""

import math
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple

from leafwise.core.dtypes import DTYPES
from leafwise.core.moments import FIELDS, HIGHEST, Histogram, Moments
from leafwise.core.path import escape
from leafwise.errors import QueryError

_VALUES = attrgetter(*FIELDS)
# The floats that `outside` knows: all that are cast to, whose numbers the bins of a histogram reach. The widest first.
_RANGES = {
    dtype.name: dtype.range
    for dtype in sorted(DTYPES.values(), key=lambda dtype: (-dtype.bits, dtype.name))
    if dtype.is_stored and dtype.range and dtype.range.smallest_normal is not None
    and dtype.range.largest_exponent < HIGHEST
}  # fmt: skip


class Outside(NamedTuple):
    """How many values would not survive in another dtype: `overflow` would be infinite, `subnormal` keep fewer digits,
    `vanish` be zero. As bins are powers of two, this is exact but for three: if the largest value overflows, so do all
    in the bin of the dtype's largest number; what is exactly half its smallest number is `subnormal`, though it would
    vanish; and below 2**-126 nothing is told apart, and all is `subnormal`."""

    overflow: int
    subnormal: int
    vanish: int


class Row(Moments):
    """Statistics of one leaf, or of many as one, which have no path, dtype and shape; see `lw.stats`."""

    __slots__ = ("dtype", "path", "shape")

    def __init__(
        self, moments: Moments, path: str | None = None, dtype: str | None = None, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(*_VALUES(moments))
        self.path = path
        self.dtype = dtype
        self.shape = shape

    def quantile(self, q: float) -> float:
        """The magnitude that this share of the values does not exceed, read from the histogram: within the bin of the
        value that is there, so right up to a factor of two, and exact where that is zero or the largest. Of magnitudes
        below 2**-126 or from 2**128 on no more is known than that.

        >>> import torch, leafwise as lw
        >>> row = lw.stats({"w": torch.tensor([0.0, 0.5, -3.0, 100.0])})["w"]
        >>> row.quantile(0.25), row.quantile(0.5), row.quantile(1)
        (0.0, 0.75, 100.0)
        """
        number: Any = q
        if not isinstance(number, Real) or not 0 <= float(number) <= 1:
            raise QueryError(f"a quantile is between 0 and 1, not {q!r}")
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
                # Where in the bin, as if all values in it were equally likely.
                share = max(wanted - passed - 0.5, 0) / count
                low, high = 2.0**exponent, min(2.0 ** (exponent + 1), float(self.absmax))
                return low + share * (max(high, low) - low)
            passed += count
        return float(self.absmax)

    def outside(self, dtype: Any) -> Outside:
        """How many values would overflow, become subnormal, or vanish in another floating dtype, from the histogram.

        >>> import torch, leafwise as lw
        >>> row = lw.stats({"w": torch.tensor([1e6, 1.0, 1e-5, 1e-9])})["w"]
        >>> row.outside("float16")
        Outside(overflow=1, subnormal=1, vanish=1)
        """
        name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        if name not in _RANGES:
            raise QueryError(f"outside() knows the floating dtypes {', '.join(_RANGES)}, not {dtype!r}")
        histogram = self._histogram("outside")
        floats = _RANGES[name]
        normal = floats.smallest_normal
        assert normal is not None  # as _RANGES has only those
        smallest = normal - floats.fraction_bits
        # Values in the last bin that fits may be rounded to infinity, if the largest of all is.
        partly = floats.largest_exponent + (not self.finite or self.absmax < floats.overflows_from)
        counts = [0, 0, 0]
        for exponent, count in enumerate(histogram.counts, histogram.lowest):
            if exponent >= partly:
                counts[0] += count
            elif exponent < smallest - 1:  # just below the smallest, they are rounded up
                counts[2] += count
            elif exponent < normal:
                counts[1] += count
        return Outside(*counts)

    def _histogram(self, method: str) -> Histogram:
        if self.histogram is None:
            raise QueryError(f"{method}() needs the histogram; leave out histogram=False")
        return self.histogram

    def numbers(self) -> dict[str, Any]:
        """The dtype, and all statistics but the histogram, by name."""
        return {"dtype": self.dtype, **self.statistics()}

    def _key(self) -> tuple[Any, ...]:
        # nan is nothing's equal, and here it is.
        return self.path, self.dtype, self.shape, *(None if value != value else value for value in _VALUES(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        nonfinite = "".join(f", {count:,} {label}" for label, count in self.nonfinite_counts().items())
        return escape(
            f"<{path}{self.count:,} value{'s' * (self.count != 1)}, mean {self.mean:.4g}, std {self.std:.4g}, "
            f"from {self.min:.4g} to {self.max:.4g}{nonfinite}>"
        )
