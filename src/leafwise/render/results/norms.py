"""The result of `lw.clip`, as a table and as plain data."""

import math
from typing import Any

from leafwise.core.path import listed, plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.iterate.clipping import Norms
from leafwise.render.data import TableRows, finite
from leafwise.render.layout import MAX_LINES, cut


def to_doc(norms: Norms, *, full: bool = False) -> Doc:
    """A line for each gradient, the largest first."""
    largest_first = sorted(norms.items(), key=lambda item: -item[1] if item[1] == item[1] else -math.inf)
    lines = [Line(0, (Span(path, "name"),), (Span(f"{norm:.4g}", "number"),)) for path, norm in largest_first]
    if not full and len(lines) > MAX_LINES - 4:
        lines = cut(iter(lines), MAX_LINES - 4)
    gradients = plural(len(norms), "gradient", "gradients")
    footer: list[tuple[Span, ...]] = [(Span(f"{gradients} · total norm before clipping {norms.total:.4g}"),)]
    if norms.nonfinite:
        footer.append((Span(f"not finite, and not clipped: {listed(norms.nonfinite)}", "warn"),))
    return Doc(lines, footer, right=frozenset({0}))


def to_table(norms: Norms) -> TableRows:
    """A row for each gradient, in the order of the tree."""
    return TableRows(["path", "norm"], [{"path": path, "norm": norm} for path, norm in norms.items()], "path")


def to_json(norms: Norms) -> dict[str, Any]:
    """Every norm; what is not finite is null."""
    return {
        "total": finite(norms.total),
        "norms": {path: finite(norm) for path, norm in norms.items()},
        "nonfinite": list(norms.nonfinite),
    }
