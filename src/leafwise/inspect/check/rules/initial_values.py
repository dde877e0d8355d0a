"""Rules about initial values: their scale, and whether they are what was declared."""

import math
from typing import NamedTuple

from leafwise.core.capabilities.filling import Draw
from leafwise.inspect.check.distribution import deviates, distribution_name, mean_and_std, nearest_initializer
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, report, rule, warning
from leafwise.inspect.stats.rows import Row
from leafwise.iterate.initializers import InitializerError, Orthogonal, Padded, fans

_HINT = "lw.initialize(model, rules) draws it so, and all others anew"
_NOT_ORTHOGONAL = 0.05  # from the identity; in bfloat16, rounding makes a hundredth
# How many times what the nearest of the usual initializers gives: what is far, and what is surely wrong. The latter
# also of siblings: those of trained models differ by ten to thirty times, of some fresh ones by fifty.
_SMALL, _LARGE, _HUGE = 1 / 50, 8.0, 100.0
_SIBLINGS = 2  # that there must be, for them to say what is usual


@rule("LW201", "scale")
def scale(evidence: Evidence) -> Reports:
    """A weight much larger or smaller than the usual initializers make it for its fan-in and fan-out: activations would
    explode, or vanish. Not of what is frozen, or a byte each and scaled elsewhere. A warning when it is a hundred times
    too large, or a hundred times as large as its siblings, the weights of the same role in layers of the same type;
    otherwise noted: models that are only ever loaded begin with anything."""
    parameters = evidence.float_leaves(kind="parameter")
    weights = [weight for leaf, row in parameters if (weight := _weight(evidence, leaf, row))]
    outliers = _sibling_outliers(weights)
    for weight in weights:
        leaf, row, fan_in, fan_out = weight[:4]
        if leaf.is_frozen:
            continue
        near = nearest_initializer(row.std, fan_in, fan_out)
        times = row.std / near.std
        if _SMALL < times < _LARGE:
            continue
        siblings = outliers.get(leaf.number, "") if times > 1 else ""
        level: Level = "warning" if times > _HUGE or siblings else "note"
        factor = f"{times:.3g} ×" if times > 1 else f"1/{1 / times:.3g} of"
        yield report(
            level,
            leaf,
            f"std {row.std:.3g} is {siblings}{factor} that of {near.name} "
            f"({near.std:.3g}), the nearest of the usual for fan-in {fan_in:,} and fan-out {fan_out:,}; its shape is "
            f"{distribution_name(row)}; {leaf.reinitialize_hint}",
        )


class _Weight(NamedTuple):
    """A weight with its fans, and what its siblings have in common."""

    leaf: LeafEvidence
    row: Row
    fan_in: int
    fan_out: int
    kind: tuple[str | None, str]

    def scales(self) -> tuple[float, float, float]:
        """Its scale as it is, which is alike where all layers begin with the same deviation; for its fan-in, and for
        both fans, which are alike where that depends on them."""
        std = self.row.std
        return std, std * math.sqrt(self.fan_in), std * math.sqrt(self.fan_in + self.fan_out)


def _weight(evidence: Evidence, leaf: LeafEvidence, row: Row) -> _Weight | None:
    fans_of_leaf = _fans(leaf) if leaf.spec.nbytes > leaf.spec.size else None
    if fans_of_leaf is None or row.count < 16 or row.finite < row.count or not row.std:
        return None
    owner = evidence.columns.type_name(evidence.columns.row_nodes[leaf.number])
    return _Weight(leaf, row, *fans_of_leaf, (leaf.role, owner))


def _sibling_outliers(weights: list[_Weight]) -> dict[int, str]:
    """For each weight that is a hundred times larger than its siblings by every measure: text that says so, by the
    number of the leaf."""
    kinds: dict[tuple[str | None, str], list[_Weight]] = {}
    for weight in weights:
        kinds.setdefault(weight.kind, []).append(weight)
    outliers = {}
    for (role, owner), siblings in kinds.items():
        if len(siblings) <= _SIBLINGS:
            continue
        measures = [sorted(scales) for scales in zip(*(weight.scales() for weight in siblings), strict=True)]
        for weight in siblings:
            scales = weight.scales()
            medians = [_median_without(measure, scale) for measure, scale in zip(measures, scales, strict=True)]
            times = min(scale / median for scale, median in zip(scales, medians, strict=True))
            if times > _HUGE:
                outliers[weight.leaf.number] = (
                    f"{times:.3g} × that of its siblings (the median of {len(siblings) - 1:,} other {role} of {owner} "
                    f"is {medians[0]:.3g}), and "
                )
    return outliers


def _median_without(ordered: list[float], number: float) -> float:
    """The median of all numbers but this; of two in the middle the larger, so that a single outlier among few does not
    make the rest look small."""
    middle = (len(ordered) - 1) // 2
    return ordered[middle + 1] if number <= ordered[middle] else ordered[middle]


def _fans(leaf: LeafEvidence) -> tuple[int, int] | None:
    """How many numbers go into an output, and come out of an input; None where nobody says."""
    try:
        fan_in, fan_out = fans(leaf.handle) if leaf.is_weight else (0, 0)
    except InitializerError:
        return None
    return (fan_in, fan_out) if fan_in and fan_out else None


@rule("LW202", "not as declared")
def not_as_declared(evidence: Evidence) -> Reports:
    """Values that are not from the distribution that `init=` declares: by their mean, their deviation, or the shape of
    their histogram."""
    for number, rule_text, drawn in evidence.declared:
        leaf = evidence.by_number[number]
        row = leaf.stats
        if row is None or not row.finite:
            continue
        if isinstance(drawn, Orthogonal):
            if reason := _not_orthogonal(leaf, row, drawn):
                yield warning(leaf, f"{reason} by {rule_text}; {_HINT}")
            continue
        draw, zeros = (drawn.draw, 1 / leaf.shape[0]) if isinstance(drawn, Padded) else (drawn, 0.0)
        if deviates(row, draw, zeros):
            mean, std = mean_and_std(draw)
            yield warning(
                leaf,
                f"mean {row.mean:.3g}, std {row.std:.3g}, {distribution_name(row)}; declared is {_draw_name(draw)} "
                f"with mean {mean:.3g}, std {std:.3g} by {rule_text}; {_HINT}",
            )


def _not_orthogonal(leaf: LeafEvidence, row: Row, drawn: Orthogonal) -> str:
    """Why a matrix has no orthogonal rows or columns; empty where it has."""
    from leafwise.inspect.check.spectrum import orthogonality_error

    expected = abs(drawn.gain) * math.sqrt(min(leaf.shape[0], math.prod(leaf.shape[1:])))
    if not math.isclose(row.l2, expected, rel_tol=0.02):
        return f"its norm is {row.l2:.4g}; declared is orthogonal with norm {expected:.4g}"
    error = orthogonality_error(leaf, drawn.gain)
    return f"it is {error:.2g} off being orthogonal, which is declared" if error > _NOT_ORTHOGONAL else ""


def _draw_name(draw: Draw) -> str:
    if not draw.scale:
        return "constant"
    return ("normal" if draw.narrow >= 1 else "truncated normal") if draw.shape == "normal" else draw.shape
