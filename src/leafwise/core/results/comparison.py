"""How much two arrays differ, and how the comparisons of several pairs are combined."""

import math
from collections.abc import Iterable
from typing import NamedTuple

Scaled = tuple[float, int]  # a number, and the power of two that it is multiplied by


class Comparison(NamedTuple):
    """One pass over the pairs of elements of two arrays: how many differ in their bits, and by how much.

    `distance` is the Euclidean norm of the differences, `norm` the norm of the first array, `other_norm` that of the
    second, `largest` the largest difference; if a norm is zero, `cosine` is nan. In `nonfinite` pairs, one element or
    both are nan or infinite. They count as changed if their bits differ, and are left out of distances, norms and the
    cosine. `nonfinite_changed` is how many of them changed; if any did, the size of the change is not known, and
    `largest` and `relative_l2` are nan. If nothing changed, the norms are not computed, and are nan.

    `scaled` has the distance and both norms if a float might overflow or lose digits, as for the norm of two numbers of
    1.7e308 or of 5e-324, so that values computed from them are right even then.
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
    scaled: tuple[Scaled, ...] = ()

    @classmethod
    def of(
        cls,
        counts: tuple[int, int, int],
        norms: tuple[Scaled, Scaled, Scaled],
        cosine: float,
        largest: float,
        nonfinite_changed: int,
    ) -> "Comparison":
        """From the size, the counts of changed and of nonfinite pairs, and the distance and both norms, scaled."""
        scaled = norms if any(power for _, power in norms) else ()
        distance, norm, other_norm = (_float(*norm) for norm in norms)
        return cls(*counts, distance, norm, other_norm, cosine, largest, nonfinite_changed, scaled)

    @property
    def share(self) -> float:
        """The fraction of elements that changed, from 0 to 1."""
        return self.changed / self.size if self.size else 0.0

    @property
    def relative_l2(self) -> float:
        """The norm of the differences divided by the norm of the first array; infinite if that array is all zero, and
        nan if an element changed that is not finite."""
        if self.nonfinite_changed:
            return math.nan
        (distance, power), (norm, its_power), _ = _norms(self)
        if not distance:
            return 0.0
        return _float(distance / norm, power - its_power) if norm else math.inf


def _float(number: float, power: int) -> float:
    """A scaled number as a float; infinite if it is larger than any float."""
    try:
        return math.ldexp(number, power)
    except OverflowError:
        return math.copysign(math.inf, number)


def _norms(comparison: Comparison) -> tuple[Scaled, ...]:
    return comparison.scaled or ((comparison.distance, 0), (comparison.norm, 0), (comparison.other_norm, 0))


def _hypot(norms: list[Scaled]) -> Scaled:
    """The norm of norms, scaled by the power of two of the largest, if it needs to be."""
    top = max((math.frexp(number)[1] + power for number, power in norms if number), default=0)
    top = 0 if -400 < top < 400 else top
    return math.hypot(*(_float(number, power - top) for number, power in norms)), top


def merged_comparisons(parts: Iterable[Comparison]) -> Comparison:
    """Combines the comparisons of several pairs of arrays, as if they were one pair; the order does not matter. Pairs
    without changes must have norms, or must be left out.

    >>> one = Comparison(2, 1, 0, 3.0, 4.0, 5.0, 0.8, 3.0)
    >>> both = merged_comparisons([one, Comparison(2, 2, 0, 4.0, 3.0, 0.0, 0.0, 4.0)])
    >>> both.changed, both.distance, both.norm, both.relative_l2, both.share, both.largest
    (3, 5.0, 5.0, 1.0, 0.75, 4.0)
    """
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else Comparison(0, 0)
    distances, norms, other_norms = (list(column) for column in zip(*map(_norms, parts), strict=True))
    norm, other_norm = _hypot(norms), _hypot(other_norms)
    lost = sum(part.nonfinite_changed for part in parts)
    cosine = math.nan
    if norm[0] and other_norm[0]:
        terms = (
            part.cosine * _share(part_norm, norm) * _share(part_other_norm, other_norm)
            for part, part_norm, part_other_norm in zip(parts, norms, other_norms, strict=True)
        )
        cosine = math.fsum(term for term in terms if term == term)
    return Comparison.of(
        (sum(part.size for part in parts), sum(part.changed for part in parts), sum(part.nonfinite for part in parts)),
        (_hypot(distances), norm, other_norm),
        cosine,
        math.nan if lost else max(part.largest for part in parts),
        lost,
    )


def _share(part: Scaled, whole: Scaled) -> float:
    return _float(part[0] / whole[0], part[1] - whole[1])
