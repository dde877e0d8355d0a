"""Rules about the values themselves: not finite, all zero, constant."""

from leafwise.core.path import plural
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, error, note, report, rule, warning
from leafwise.inspect.indices import Places
from leafwise.inspect.stats.rows import Row

_SPREADING = "the next step would spread them to the parameters: load an earlier optimizer state"


@rule("LW101", "not finite")
def not_finite(evidence: Evidence) -> Reports:
    """NaN or infinite values in parameters, buffers and optimizer state. Only a note for infinities in a buffer, since
    attention masks contain them. In other state, such as random states and metrics, infinities are usual; NaN is a
    warning, or a note if it is a single number, such as a loss."""
    for leaf, row in evidence.float_leaves:
        if row.finite == row.count:
            continue
        if leaf.section == "rest" and not row.nan:
            continue
        places = leaf.nonfinite()
        counts = f"{_count_nonfinite(row)} among {row.count:,} values"
        match leaf.section:
            case "rest":
                level: Level = "note" if row.count == 1 else "warning"
                what = "of other state, which is neither weights nor optimizer state"
                yield report(level, leaf, f"{counts} {what}{_at(places)}", places)
            case "optimizer":
                yield error(leaf, f"{counts} of optimizer state{_at(places)}; {_SPREADING}", places)
            case _ if leaf.kind == "buffer" and not row.nan:
                yield note(leaf, f"{counts}{_at(places)}; expected if this is a mask", places)
            case _:
                yield error(leaf, f"{counts}{_at(places)}; load the last checkpoint without them", places)
    for path, row, places in evidence.coverage.nonfinite_state:
        counts = f"{_count_nonfinite(row)} among {row.count:,} values"
        yield error(path, f"{counts} of optimizer state{_at(places)}; {_SPREADING}", places)


@rule("LW102", "gradient not finite")
def gradient_not_finite(evidence: Evidence) -> Reports:
    """NaN or infinite values in a gradient: the next step would spread them to the parameters."""
    for leaf in evidence.leaves:
        row = leaf.grad_stats if leaf.has_grad else None
        if row is not None and row.finite < row.count:
            places = leaf.nonfinite("grad")
            yield error(
                leaf,
                f"{_count_nonfinite(row)} among {row.count:,} values of the gradient{_at(places)}; clear the gradient "
                "before the next step, and look for the cause",
                places,
            )


def _at(places: Places) -> str:
    """The indices, for a message; a single number has none."""
    return f", at {places}" if any(places.indices) else ""


def _count_nonfinite(row: Row) -> str:
    return " and ".join(f"{count:,} {label}" for label, count in row.nonfinite_counts().items())


@rule("LW103", "all zero")
def all_zero(evidence: Evidence) -> Reports:
    """A weight or an embedding that contains only zeros. A warning if the same leaf is not zero in most
    other blocks. Otherwise only a note, since the last layer of a residual branch may start that way in every block."""
    for leaf, row in evidence.float_parameters:
        if row.zeros < row.count or not _is_weight_or_table(leaf):
            continue
        siblings = evidence.siblings(leaf)
        nonzero = sum(sibling.zeros < sibling.count for sibling in siblings)
        if leaf.is_frozen or 2 * nonzero < len(siblings) + 1:
            why = "which is fine for the last layer of a residual branch"
            yield note(leaf, f"all {row.count:,} values are zero, {why}; {leaf.reinitialize_hint('otherwise')}")
        else:
            others = plural(len(siblings), "other block", "other blocks")
            why = f"but not those of the same leaf in {nonzero} of {others}"
            yield warning(
                leaf, f"all {row.count:,} values are zero, {why}; {leaf.reinitialize_hint('to draw it again')}"
            )


@rule("LW104", "constant")
def constant(evidence: Evidence) -> Reports:
    """A weight whose values are all the same nonzero number: its units compute the same output, get the same gradient,
    and stay equal. Only a note if it is frozen or has a single unit, and for leaves that are not weights of a layer."""
    for leaf, row in evidence.float_parameters:
        if row.count > 1 and row.finite == row.count and row.min == row.max != 0 and _is_weight_or_table(leaf):
            several = leaf.is_weight and leaf.shape[leaf.out_axis] > 1
            yield report(
                "warning" if several and not leaf.is_frozen else "note",
                leaf,
                f"all {row.count:,} values are {row.min:.6g}; {leaf.reinitialize_hint('to break the symmetry')}",
            )


def _is_weight_or_table(leaf: LeafEvidence) -> bool:
    return leaf.is_weight or "embedding.table" in leaf.roles or (leaf.role is None and leaf.is_matrix)
