"""The treemap, and what its cells are colored by."""

import math
from typing import Any

from leafwise.errors import QueryError
from leafwise.web.session import Session
from leafwise.web.treemap import Paint, TreeMap

COLORS = ("dtype", "role", "health", "magnitude", "change")


def treemap(session: Session, path: str, color: str) -> dict[str, Any]:
    node = session.lines.node_at(path)
    line = session.lines.parents[session.line(path)] if node is None else node
    colors = [name for name in COLORS if name != "change" or session.other is not None]
    if color not in colors:
        raise QueryError(f"there is no color {color!r}; there are {', '.join(colors)}")
    with session.lock:
        return {
            "color": color,
            "colors": colors,
            **TreeMap(session.lines, line, _paint(session, color)).json(session.title),
        }


def _paint(session: Session, color: str) -> Paint:
    columns = session.tree.columns
    if color == "dtype":
        return Paint(lambda leaf: columns.facts([leaf])[0].spec.dtype)
    if color == "role":
        return Paint(lambda leaf: columns.row_role(leaf)[0] or "no role")
    if color == "health":
        return Paint(session.health)
    if color == "change":
        return Paint(lambda leaf: _change(session, leaf), True, "relative L2 distance")
    return Paint(lambda leaf: _magnitude(session, leaf), True, "log2 of the root mean square")


def _magnitude(session: Session, leaf: int) -> float | None:
    row = session.measured.rows.get(leaf)
    if row is None or not row.finite or not row.l2:
        return None
    return math.log2(row.l2 / math.sqrt(row.finite))


def _change(session: Session, leaf: int) -> float | None:
    change = session.changes.get(leaf)
    if change is None or session.diff is None or not session.diff.values:
        return None
    if change.comparison is not None:
        return float(change.comparison.relative_l2)
    return 0.0 if change.kind in ("same", "renamed", "tied", "untied") else None
