"""Rules about initial values: their scale, and whether they are what was declared."""

import math
from typing import NamedTuple

from leafwise.core.capabilities.filling import Draw
from leafwise.inspect.findings import Level
from leafwise.inspect.fitting import is_off, moments, nearest, shape_of
from leafwise.inspect.looking import Looked
from leafwise.inspect.rows import Row
from leafwise.inspect.rules.registry import Found, rule, told, warning
from leafwise.inspect.seen import Seen
from leafwise.iterate.initializers import InitializerError, Orthogonal, Padded, fans

_DRAWN_SO = "lw.initialize(model, rules) draws it so, and all others anew"
_OFF = 0.05  # from the identity; in bfloat16, rounding makes a hundredth
# How many times what the nearest of the usual initialisers gives: what is far, and what is surely wrong. The latter
# also of siblings: those of trained models differ by ten to thirty times, of some fresh ones by fifty.
_SMALL, _LARGE, _HUGE = 1 / 50, 8.0, 100.0
_SIBLINGS = 2  # that there must be, for them to say what is usual


@rule("LW201", "scale")
def scale(looked: Looked) -> Found:
    """A weight much larger or smaller than the usual initialisers make it for its fan-in and fan-out: activations would
    explode, or vanish. Not of what is frozen, or a byte each and scaled elsewhere. A warning when it is a hundred times
    too large, or a hundred times as large as its siblings, the weights of the same role in layers of the same type;
    otherwise noted: models that are only ever loaded begin with anything."""
    weights = [weight for seen, row in looked.where(kind="parameter") if (weight := _weight(looked, seen, row))]
    beside = _beside_siblings(weights)
    for weight in weights:
        seen, row, fan_in, fan_out = weight[:4]
        if seen.is_fixed:
            continue
        near = nearest(row.std, fan_in, fan_out)
        times = row.std / near.std
        if _SMALL < times < _LARGE:
            continue
        siblings = beside.get(seen.leaf, "") if times > 1 else ""
        level: Level = "warning" if times > _HUGE or siblings else "note"
        factor = f"{times:.3g} ×" if times > 1 else f"1/{1 / times:.3g} of"
        yield told(
            level,
            seen,
            f"std {row.std:.3g} is {siblings}{factor} that of {near.name} "
            f"({near.std:.3g}), the nearest of the usual for fan-in {fan_in:,} and fan-out {fan_out:,}; its shape is "
            f"{shape_of(row)}; {seen.drawn_anew}",
        )


class _Weight(NamedTuple):
    """A weight with its fans, and what its siblings have in common."""

    seen: Seen
    row: Row
    fan_in: int
    fan_out: int
    kind: tuple[str | None, str]

    def scales(self) -> tuple[float, float, float]:
        """Its scale as it is, which is alike where all layers begin with the same deviation; for its fan-in, and for
        both fans, which are alike where that depends on them."""
        std = self.row.std
        return std, std * math.sqrt(self.fan_in), std * math.sqrt(self.fan_in + self.fan_out)


def _weight(looked: Looked, seen: Seen, row: Row) -> _Weight | None:
    found = _fans(seen) if seen.spec.nbytes > seen.spec.size else None
    if found is None or row.count < 16 or row.finite < row.count or not row.std:
        return None
    owner = looked.columns.type_name(looked.columns.row_nodes[seen.leaf])
    return _Weight(seen, row, *found, (seen.role, owner))


def _beside_siblings(weights: list[_Weight]) -> dict[int, str]:
    """Of each weight that is a hundred times larger than its siblings, however that is measured: words that say so."""
    kinds: dict[tuple[str | None, str], list[_Weight]] = {}
    for weight in weights:
        kinds.setdefault(weight.kind, []).append(weight)
    found = {}
    for (role, owner), its in kinds.items():
        if len(its) <= _SIBLINGS:
            continue
        measures = [sorted(scales) for scales in zip(*(weight.scales() for weight in its), strict=True)]
        for weight in its:
            medians = [_median_of_others(measure, one) for measure, one in zip(measures, weight.scales(), strict=True)]
            times = min(one / median for one, median in zip(weight.scales(), medians, strict=True))
            if times > _HUGE:
                found[weight.seen.leaf] = (
                    f"{times:.3g} × that of its siblings (the median of {len(its) - 1:,} other {role} of {owner} is "
                    f"{medians[0]:.3g}), and "
                )
    return found


def _median_of_others(ordered: list[float], one: float) -> float:
    """The median without one of them; of two in the middle the larger, so that a single outlier among few does not make
    the others look small."""
    middle = (len(ordered) - 1) // 2
    return ordered[middle + 1] if one <= ordered[middle] else ordered[middle]


def _fans(seen: Seen) -> tuple[int, int] | None:
    """How many numbers go into an output, and come out of an input; None where nobody says."""
    try:
        found = fans(seen.handle) if seen.is_weight else (0, 0)
    except InitializerError:
        return None
    return found if all(found) else None


@rule("LW202", "not as declared")
def not_as_declared(looked: Looked) -> Found:
    """Values that are not from the distribution that `init=` declares: by their mean, their deviation, or the shape of
    their histogram."""
    for leaf, rule_text, drawn in looked.declared:
        seen = looked.by_leaf[leaf]
        row = seen.row
        if row is None or not row.finite:
            continue
        if isinstance(drawn, Orthogonal):
            if off := _not_orthogonal(seen, row, drawn):
                yield warning(seen, f"{off} by {rule_text}; {_DRAWN_SO}")
            continue
        draw, zeros = (drawn.draw, 1 / seen.shape[0]) if isinstance(drawn, Padded) else (drawn, 0.0)
        if is_off(row, draw, zeros):
            mean, std = moments(draw)
            yield warning(
                seen,
                f"mean {row.mean:.3g}, std {row.std:.3g}, {shape_of(row)}; declared is {_called(draw)} with mean "
                f"{mean:.3g}, std {std:.3g} by {rule_text}; {_DRAWN_SO}",
            )


def _not_orthogonal(seen: Seen, row: Row, drawn: Orthogonal) -> str:
    """Why a matrix has no orthogonal rows or columns; empty where it has."""
    from leafwise.inspect.spectrum import off_orthogonal

    expected = abs(drawn.gain) * math.sqrt(min(seen.shape[0], math.prod(seen.shape[1:])))
    if not math.isclose(row.l2, expected, rel_tol=0.02):
        return f"its norm is {row.l2:.4g}; declared is orthogonal with norm {expected:.4g}"
    off = off_orthogonal(seen, drawn.gain)
    return f"it is {off:.2g} off being orthogonal, which is declared" if off > _OFF else ""


def _called(draw: Draw) -> str:
    if not draw.scale:
        return "constant"
    return ("normal" if draw.narrow >= 1 else "truncated normal") if draw.normal else "uniform"
