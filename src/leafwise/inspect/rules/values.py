"""Rules about values as such: not finite, all zero, all one number."""

from leafwise.inspect.findings import Level
from leafwise.inspect.looking import Looked, Seen
from leafwise.inspect.rows import Row
from leafwise.inspect.rules.registry import Found, error, note, rule, told


@rule("LW101", "not finite")
def not_finite(looked: Looked) -> Found:
    """Values that are NaN or infinite. In buffers, infinities are only noted: masks are made of them."""
    for seen, row in looked.where():
        if row.finite == row.count:
            continue
        level: Level = "note" if seen.kind == "buffer" and not row.nan else "error"
        yield told(level, seen, f"{_wrong(row)} of {row.count:,} values; load the last checkpoint without them")


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
    counts = ((row.nan, "NaN"), (row.posinf, "+inf"), (row.neginf, "-inf"))
    return " and ".join(f"{count:,} {what}" for count, what in counts if count)


@rule("LW103", "all zero")
def all_zero(looked: Looked) -> Found:
    """A weight or a table of nothing but zeros. Only noted: the last layer of a residual branch often begins so."""
    for seen, row in looked.where(kind="parameter"):
        if row.zeros == row.count and _is_weight(seen):
            yield note(
                seen,
                f"all of {row.count:,} values are zero; right for the last layer of a residual branch, elsewhere "
                f"initialise it: {seen.drawn_anew}",
            )


@rule("LW104", "constant")
def constant(looked: Looked) -> Found:
    """A weight whose values are all one number other than zero: all its units compute the same, and stay alike."""
    for seen, row in looked.where(kind="parameter"):
        if row.count > 1 and row.finite == row.count and row.min == row.max != 0 and _is_weight(seen):
            yield told(
                "warning" if seen.is_weight else "note",
                seen,
                f"all of {row.count:,} values are {row.min:.6g}; break the symmetry: {seen.drawn_anew}",
            )


def _is_weight(seen: Seen) -> bool:
    return seen.is_weight or "embedding.table" in seen.roles or (seen.role is None and seen.is_matrix)
