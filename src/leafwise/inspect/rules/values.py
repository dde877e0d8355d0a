"""Rules about values as such: not finite, all zero, all one number."""

from leafwise.inspect.looking import Looked
from leafwise.inspect.rows import Row
from leafwise.inspect.rules.registry import Found, error, note, rule, told
from leafwise.inspect.seen import Seen


@rule("LW101", "not finite")
def not_finite(looked: Looked) -> Found:
    """Values that are NaN or infinite, in the state of optimizers too. In buffers, infinities are only noted: masks are
    made of them."""
    for seen, row in looked.where():
        if row.finite == row.count:
            continue
        said = f"{_wrong(row)} of {row.count:,} values"
        if seen.kind == "buffer" and not row.nan:
            yield note(seen, f"{said}; right for a mask")
        else:
            yield error(seen, f"{said}; load the last checkpoint without them")
    for path, row in looked.stepped.state_rows:
        if row.finite < row.count:
            yield error(
                path, f"{_wrong(row)} of {row.count:,} values; the next step would spread them: load the last state"
            )


@rule("LW102", "gradient not finite")
def gradient_not_finite(looked: Looked) -> Found:
    """Gradients that are NaN or infinite; the next step would spread them."""
    for seen in looked.leaves:
        row = seen.grad if seen.has_grad else None
        if row is not None and row.finite < row.count:
            yield error(
                seen,
                f"{_wrong(row)} of {row.count:,} values of the gradient; do not step: clear it, and look for what made "
                "it so",
            )


def _wrong(row: Row) -> str:
    return " and ".join(f"{count:,} {label}" for label, count in row.nonfinite_counts().items())


@rule("LW103", "all zero")
def all_zero(looked: Looked) -> Found:
    """A weight or a table of nothing but zeros. Only noted: the last layer of a residual branch often begins so."""
    for seen, row in looked.where(kind="parameter"):
        if row.zeros == row.count and _is_weight(seen):
            yield note(
                seen,
                f"all of {row.count:,} values are zero; right for the last layer of a residual branch, elsewhere: "
                f"{seen.drawn_anew}",
            )


@rule("LW104", "constant")
def constant(looked: Looked) -> Found:
    """A weight whose values are all one number other than zero: all its units compute the same, and stay alike. Only
    noted where it is frozen, where there is but one unit, and for what is not a weight of a layer."""
    for seen, row in looked.where(kind="parameter"):
        if row.count > 1 and row.finite == row.count and row.min == row.max != 0 and _is_weight(seen):
            several = seen.is_weight and seen.shape[seen.out_axis] > 1
            yield told(
                "warning" if several and not seen.is_fixed else "note",
                seen,
                f"all of {row.count:,} values are {row.min:.6g}; to break the symmetry: {seen.drawn_anew}",
            )


def _is_weight(seen: Seen) -> bool:
    return seen.is_weight or "embedding.table" in seen.roles or (seen.role is None and seen.is_matrix)
