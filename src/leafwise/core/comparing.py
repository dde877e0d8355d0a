"""How far two arrays are apart, and how such findings are put together."""

import math
from collections.abc import Iterable
from typing import NamedTuple


class Comparison(NamedTuple):
    """One pass over two arrays, pair by pair: how many differ in their bits, and how far apart the finite pairs are.

    `distance` is the Euclidean norm of the differences, `norm` that of the first array, `other_norm` that of the
    second, `largest` the largest difference; where a norm is zero, `cosine` is nan. In `nonfinite` pairs either is nan
    or infinite; they count as changed where their bits differ, and take no part in distances, norms and the cosine.
    `nonfinite_changed` is how many of them changed: where any did, nobody can say how far, so that `largest` and
    `relative_l2` are nan. Where nothing changed, nobody asked for the norms, and they are nan.
    """

    size: int
    changed: int
    nonfinite: int = 0
    distance: float = 0.0
    norm: float = math.nan
    other_norm: float = math.nan
    cosine: float = 1.0
    largest: float = 0.0
    nonfinite_changed: int = 0

    @property
    def share(self) -> float:
        """How many of the elements changed, from 0 to 1."""
        return self.changed / self.size if self.size else 0.0

    @property
    def relative_l2(self) -> float:
        """The norm of the differences, measured by that of the first array; infinite where that is all zero, and nan
        where something changed that is not finite."""
        if self.nonfinite_changed:
            return math.nan
        if math.isinf(self.distance) and 0 < self.norm < math.inf and self.other_norm < math.inf:
            # Further apart than any number: by the angle between them, which is then not small.
            ratio = self.other_norm / self.norm
            return math.hypot(1 - ratio * self.cosine, ratio * math.sqrt(max(0.0, 1 - self.cosine**2)))
        if not self.distance:
            return 0.0
        return self.distance / self.norm if self.norm else math.inf


def together(parts: Iterable[Comparison]) -> Comparison:
    """Comparisons of several pairs of arrays as if they were one pair; in whatever order. Of parts that are the same
    the norms must be known, or they must be left out.

    >>> one = Comparison(2, 1, 0, 3.0, 4.0, 5.0, 0.8, 3.0)
    >>> both = together([one, Comparison(2, 2, 0, 4.0, 3.0, 0.0, 0.0, 4.0)])
    >>> both.changed, both.distance, both.norm, both.relative_l2, both.share, both.largest
    (3, 5.0, 5.0, 1.0, 0.75, 4.0)
    """
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else Comparison(0, 0)
    norm, other_norm = (math.hypot(*(part[column] for part in parts)) for column in (4, 5))
    lost = sum(part.nonfinite_changed for part in parts)
    cosine = math.nan
    if norm and other_norm:
        terms = (part.cosine * (part.norm / norm) * (part.other_norm / other_norm) for part in parts)
        cosine = math.fsum(term for term in terms if term == term)
    return Comparison(
        sum(part.size for part in parts),
        sum(part.changed for part in parts),
        sum(part.nonfinite for part in parts),
        math.hypot(*(part.distance for part in parts)),
        norm,
        other_norm,
        cosine,
        math.nan if lost else max(part.largest for part in parts),
        lost,
    )
