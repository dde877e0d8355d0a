"""The result of `t.by()`, as a table and as plain data."""

from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.core.results.totals import Total, Totals
from leafwise.render.data import TableRows
from leafwise.render.layout import MAX_LINES
from leafwise.render.phrases import bytes_text
from leafwise.render.results.largest import shared_line
from leafwise.render.results.stats import share_text

_MOST_ROWS = MAX_LINES - 4


def to_doc(totals: Totals, *, full: bool = False) -> Doc:
    """One line per group, and one for the total."""
    rows = list(totals)
    # Elements are a column of their own only where they differ from the parameters: with buffers or state.
    both = any(row.elements != row.parameters for row in rows)
    elements = sum(row.elements for row in rows)
    header = ["leaves", "parameters", *(["elements"] if both else []), "bytes", "share"]
    lines = [Line(0, (Span(totals.what, "dim"),), tuple(Span(name, "dim") for name in header))]
    shown = rows if full or len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS - 1]
    lines += [_line(row, totals.bytes, both) for row in shown]
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        leaves, parameters, elements_left, nbytes = map(sum, zip(*(row[1:5] for row in rest), strict=True))
        more = Total(f"… {len(rest):,} more", leaves, parameters, elements_left, nbytes, 0.0, 0)
        lines.append(_line(more, totals.bytes, both))
    total = Total("total", totals.leaves, totals.parameters, elements, totals.bytes, 1.0, 0)
    lines.append(_line(total, totals.bytes, both, "type"))
    groups = len(rows) - bool(totals.others) + totals.others
    footer: list[tuple[Span, ...]] = [(Span(f"{plural(groups, 'group', 'groups')} by {totals.what}"),)]
    if any(row.tied for row in rows):
        footer.append((Span("tied: names of a leaf that is counted in another group", "dim"),))
    drop = (2, 1, 0) if both else (1, 0)
    return Doc(lines, [*footer, *shared_line(totals.shared_bytes)], right=frozenset(range(len(header))), drop=drop)


def _line(row: Total, whole: int, both: bool, style: Any = "name") -> Line:
    counts = [row.leaves, row.parameters, *([row.elements] if both else [])]
    cells = [Span(f"{count:,}", "number" if count else "dim") for count in counts]
    cells.append(Span(bytes_text(row.bytes) or "0 B"))
    cells.append(Span(share_text(min(row.bytes, whole), whole) if whole else "0", "" if row.bytes else "dim"))
    note = (Span(f"{row.tied:,} tied", "tie"),) if row.tied else ()
    return Line(0, (Span(row.name, style),), tuple(cells), note)


def to_table(totals: Totals) -> TableRows:
    """A row for each group, the largest first."""
    columns = [totals.what, *Total._fields[1:]]
    return TableRows(columns, [dict(zip(columns, row, strict=True)) for row in totals], totals.what)


def to_json(totals: Totals) -> dict[str, Any]:
    """The groups, and the total."""
    return {
        "by": totals.what,
        "groups": [row._asdict() for row in totals],
        "others": totals.others,
        "total": {"leaves": totals.leaves, "parameters": totals.parameters, "bytes": totals.bytes},
        "shared_bytes": totals.shared_bytes,
    }
