"""Rules about values as such: not finite, all zero, all one number."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, error, note, report, rule
from leafwise.inspect.stats.rows import Row


@rule("LW101", "not finite")
def not_finite(evidence: Evidence) -> Reports:
    """Values that are NaN or infinite, in the state of optimizers too. In buffers, infinities are only noted: masks are
    made of them."""
    for leaf, row in evidence.float_leaves():
        if row.finite == row.count:
            continue
        counts = f"{_count_nonfinite(row)} of {row.count:,} values"
        if leaf.kind == "buffer" and not row.nan:
            yield note(leaf, f"{counts}; right for a mask")
        else:
            yield error(leaf, f"{counts}; load the last checkpoint without them")
    for path, row in evidence.coverage.state_stats:
        if row.finite < row.count:
            yield error(
                path,
                f"{_count_nonfinite(row)} of {row.count:,} values; the next step would spread them: load the last "
                "state",
            )


@rule("LW102", "gradient not finite")
def gradient_not_finite(evidence: Evidence) -> Reports:
    """Gradients that are NaN or infinite; the next step would spread them."""
    for leaf in evidence.leaves:
        row = leaf.grad_stats if leaf.has_grad else None
        if row is not None and row.finite < row.count:
            yield error(
                leaf,
                f"{_count_nonfinite(row)} of {row.count:,} values of the gradient; do not step: clear it, and look "
                "for what made it so",
            )


def _count_nonfinite(row: Row) -> str:
    return " and ".join(f"{count:,} {label}" for label, count in row.nonfinite_counts().items())


@rule("LW103", "all zero")
def all_zero(evidence: Evidence) -> Reports:
    """A weight or a table of nothing but zeros. Only noted: the last layer of a residual branch often begins so."""
    for leaf, row in evidence.float_leaves(kind="parameter"):
        if row.zeros == row.count and _is_weight_or_table(leaf):
            yield note(
                leaf,
                f"all of {row.count:,} values are zero; right for the last layer of a residual branch, elsewhere: "
                f"{leaf.reinitialize_hint}",
            )


@rule("LW104", "constant")
def constant(evidence: Evidence) -> Reports:
    """A weight whose values are all one number other than zero: all its units compute the same, and stay alike. Only
    noted where it is frozen, where there is but one unit, and for what is not a weight of a layer."""
    for leaf, row in evidence.float_leaves(kind="parameter"):
        if row.count > 1 and row.finite == row.count and row.min == row.max != 0 and _is_weight_or_table(leaf):
            several = leaf.is_weight and leaf.shape[leaf.out_axis] > 1
            yield report(
                "warning" if several and not leaf.is_frozen else "note",
                leaf,
                f"all of {row.count:,} values are {row.min:.6g}; to break the symmetry: {leaf.reinitialize_hint}",
            )


def _is_weight_or_table(leaf: LeafEvidence) -> bool:
    return leaf.is_weight or "embedding.table" in leaf.roles or (leaf.role is None and leaf.is_matrix)
