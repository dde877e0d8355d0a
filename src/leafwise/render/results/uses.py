"""The result of `lw.uses`, as a table and as plain data."""

from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.render.data import TableRows, finite
from leafwise.render.layout import MAX_LINES, cut
from leafwise.share.uses import Uses


def to_doc(uses: Uses, *, full: bool = False) -> Doc:
    """A line for each leaf that was used, and below it one for each use, with the norm of its gradient."""
    lines = []
    account = uses.account()
    for path, norms in account.items():
        if norms:
            lines.append(Line(0, (Span(path, "name"),), (Span(""),)))
            lines += [Line(1, (Span(str(use)),), (Span(f"{norm:.4g}", "number"),)) for use, norm in norms.items()]
    if not full and len(lines) > MAX_LINES - 3:
        lines = cut(iter(lines), MAX_LINES - 3)
    used = sum(bool(norms) for norms in account.values())
    uses_text = plural(sum(map(len, account.values())), "use", "uses")
    leaves = plural(len(account), "leaf", "leaves")
    if used:
        summary = Span(f"{uses_text} of {used:,} of {leaves} · the numbers are norms of gradients")
    else:
        summary = Span(f"no uses of {leaves} so far; run forward and backward inside the with", "dim")
    return Doc(lines, [(summary,)], right=frozenset({0}))


def to_table(uses: Uses) -> TableRows:
    """A row for each use of each leaf."""
    rows = [
        {"path": path, "module": use.path, "call": use.call, "operation": use.operation, "turn": use.turn, "norm": norm}
        for path, norms in uses.account().items()
        for use, norm in norms.items()
    ]
    return TableRows(["path", "module", "call", "operation", "turn", "norm"], rows)


def to_json(uses: Uses) -> dict[str, Any]:
    """Every use of every leaf, with the norm of its gradient; what is not finite is null."""
    return {
        "leaves": {
            path: [{**use._asdict(), "norm": finite(norm)} for use, norm in norms.items()]
            for path, norms in uses.account().items()
        }
    }
