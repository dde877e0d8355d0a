"""Rules about initial values: whether their scale is usual, and whether they are distributed as declared."""

import math
from typing import NamedTuple, TypeAlias

from leafwise.core.capabilities.filling import Draw
from leafwise.inspect.check.distribution import deviates, distribution_name, mean_and_std, nearest_initializer
from leafwise.inspect.check.evidence import Evidence, place_in_layer
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, report, rule, warning
from leafwise.inspect.stats.rows import Row
from leafwise.iterate.initializers import InitializerError, Orthogonal, Padded, fans

_NOT_ORTHOGONAL = 0.05  # distance from the identity; rounding to bfloat16 alone gives 0.01
# Ratios of a standard deviation to that of the nearest usual initializer: too small, too large, and surely wrong. The
# last one is also applied to siblings, which differ by 10 to 30 times in trained models and by 50 in some fresh ones.
_SMALL, _LARGE_RATIO, _HUGE = 1 / 50, 8.0, 100.0
_SIBLINGS = 2  # siblings needed to know what is usual


@rule("LW201", "scale")
def scale(evidence: Evidence) -> Reports:
    """A weight much larger or smaller than the usual initializers make it for its fan-in and fan-out: activations would
    explode or vanish. Skips frozen weights and weights of one byte per value, which are scaled elsewhere. A warning if
    it is 100 times too large, or 100 times as large as its siblings: weights at the same place in other blocks, or of
    the same role in layers of the same type. Otherwise only a note, since models that are always loaded from a
    checkpoint may start with any values."""
    parameters = evidence.float_parameters
    known: _KnownFans = {}
    weights = [weight for leaf, row in parameters if (weight := _weight(evidence, leaf, row, known))]
    outliers = _sibling_outliers(weights)
    for weight in weights:
        leaf, row, fan_in, fan_out = weight[:4]
        if leaf.is_frozen:
            continue
        near = nearest_initializer(row.std, fan_in, fan_out)
        times = row.std / near.std
        siblings, is_by_place = outliers.get(leaf.number, ("", False))
        if not is_by_place:
            siblings = siblings if times > 1 else ""
            if _SMALL < times < _LARGE_RATIO:
                continue
        level: Level = "warning" if times > _HUGE or siblings else "note"
        factor = f"{times:.3g} ×" if times > 1 else f"1/{1 / times:.3g} of"
        yield report(
            level,
            leaf,
            f"std {row.std:.3g} is {siblings}{factor} that of {near.name} "
            f"({near.std:.3g}), the closest usual initializer for fan-in {fan_in:,} and fan-out {fan_out:,}; the "
            f"distribution looks {distribution_name(row)}; {leaf.reinitialize_hint('to draw it again')}",
        )


class _Weight(NamedTuple):
    """A weight with its fan-in and fan-out, and the kind (role and layer type) that it shares with its siblings."""

    leaf: LeafEvidence
    row: Row
    fan_in: int
    fan_out: int
    kind: tuple[str | None, str]

    def scales(self) -> tuple[float, float, float]:
        """Three measures of its scale: the standard deviation itself, the same among siblings that all start with one
        standard deviation; and relative to fan-in and to both fans, the same where initial values depend on these."""
        std = self.row.std
        return std, std * math.sqrt(self.fan_in), std * math.sqrt(self.fan_in + self.fan_out)


# The fans by axes, shape and role: models repeat a few of them thousands of times.
_KnownFans: TypeAlias = dict[tuple[object, ...], tuple[int, int] | None]


def _weight(evidence: Evidence, leaf: LeafEvidence, row: Row, known: _KnownFans) -> _Weight | None:
    if leaf.spec.nbytes <= leaf.spec.size or row.count < 16 or row.finite < row.count or not row.std:
        return None
    key = (leaf.axes, leaf.shape, leaf.role)
    # A tied leaf may have other axes under its first name, from which the fans are computed.
    is_tied = leaf.number in evidence.columns.further_rows
    fans_of_leaf = known[key] if key in known and not is_tied else _fans(leaf)
    if not is_tied:
        known[key] = fans_of_leaf
    if fans_of_leaf is None:
        return None
    owner = evidence.columns.type_name(evidence.columns.row_nodes[leaf.number])
    return _Weight(leaf, row, *fans_of_leaf, (leaf.role, owner))


def _sibling_outliers(weights: list[_Weight]) -> dict[int, tuple[str, bool]]:
    """For each weight that is 100 times larger than its siblings by every measure, a text that says so, and whether the
    siblings are the weights at the same place in other blocks, or those of the same kind; by the number of the leaf."""
    groups: dict[str, list[_Weight]] = {}
    for weight in weights:
        role, owner = weight.kind
        groups.setdefault(f"{role} leaves in {owner} layers", []).append(weight)
        place = place_in_layer(weight.leaf.path)
        if place != weight.leaf.path:
            groups.setdefault(f"leaves {place}", []).append(weight)
    outliers: dict[int, tuple[str, bool]] = {}
    for name, siblings in groups.items():
        if len(siblings) <= (1 if "*" in name else _SIBLINGS):
            continue
        measures = [sorted(scales) for scales in zip(*(weight.scales() for weight in siblings), strict=True)]
        for weight in siblings:
            scales = weight.scales()
            medians = [_median_without(measure, scale) for measure, scale in zip(measures, scales, strict=True)]
            times = min(scale / median for scale, median in zip(scales, medians, strict=True))
            if times > _HUGE:
                others = f"median {medians[0]:.3g} of {len(siblings) - 1:,} other {name}"
                outliers[weight.leaf.number] = f"{times:.3g} × that of its siblings ({others}) and ", "*" in name
    return outliers


def _median_without(ordered: list[float], number: float) -> float:
    """The median of all numbers except this one. With two numbers in the middle it is the larger, so that a single
    outlier among few numbers does not make the rest look small."""
    middle = (len(ordered) - 1) // 2
    return ordered[middle + 1] if number <= ordered[middle] else ordered[middle]


def _fans(leaf: LeafEvidence) -> tuple[int, int] | None:
    """Fan-in and fan-out of a weight; None if they are not known."""
    try:
        fan_in, fan_out = fans(leaf.handle) if leaf.is_weight else (0, 0)
    except InitializerError:
        return None
    return (fan_in, fan_out) if fan_in and fan_out else None


@rule("LW202", "not as declared")
def not_as_declared(evidence: Evidence) -> Reports:
    """Values that do not follow the distribution that `init=` declares, judged by their mean, standard deviation and
    histogram."""
    hint = (
        "initialize it in the model this file was saved from"
        if evidence.tree.is_file
        else "lw.initialize(model, rules) draws it as declared, and all other leaves again"
    )
    for number, rule_text, drawn in evidence.declared:
        leaf = evidence.by_number[number]
        row = leaf.stats
        if row is None or not row.finite:
            continue
        if isinstance(drawn, Orthogonal):
            if reason := _not_orthogonal(leaf, row, drawn, rule_text):
                yield warning(leaf, f"{reason}; {hint}")
            continue
        draw, zeros = (drawn.draw, 1 / leaf.shape[0]) if isinstance(drawn, Padded) else (drawn, 0.0)
        if deviates(row, draw, zeros):
            mean, std = mean_and_std(draw)
            yield warning(
                leaf,
                f"looks {distribution_name(row)} with mean {row.mean:.3g}, std {row.std:.3g}, but {rule_text} declares "
                f"{_draw_name(draw)} with mean {mean:.3g}, std {std:.3g}; {hint}",
            )


def _not_orthogonal(leaf: LeafEvidence, row: Row, drawn: Orthogonal, rule_text: str) -> str:
    """Why the rows or columns of a matrix are not orthogonal as declared; empty if they are."""
    from leafwise.inspect.check.spectrum import orthogonality_error

    expected = abs(drawn.gain) * math.sqrt(min(leaf.shape[0], math.prod(leaf.shape[1:])))
    if not math.isclose(row.l2, expected, rel_tol=0.02):
        return f"its norm is {row.l2:.4g}, but {rule_text} declares an orthogonal matrix with norm {expected:.4g}"
    error = orthogonality_error(leaf, drawn.gain)
    if error <= _NOT_ORTHOGONAL:
        return ""
    return f"it is not orthogonal (relative error {error:.2g}), but {rule_text} declares an orthogonal matrix"


def _draw_name(draw: Draw) -> str:
    if not draw.scale:
        return "constant"
    return ("normal" if draw.narrow >= 1 else "truncated normal") if draw.shape == "normal" else draw.shape
