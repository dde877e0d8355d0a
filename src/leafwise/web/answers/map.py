"""The treemap, and what its cells are colored by."""

import math
from typing import Any

from leafwise.errors import QueryError
from leafwise.web.session import Session
from leafwise.web.treemap import Paint, TreeMap

COLORS = ("dtype", "role", "health", "magnitude", "change")


def treemap(session: Session, path: str, color: str) -> dict[str, Any]:
    node = session.lines.node_at(path) if path else 0  # the root of a part has a path of its own
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
    lines = session.lines
    if color == "dtype":
        return Paint(lambda line: str(lines.counted[line].spec.dtype))
    if color == "role":
        return Paint(lambda line: lines.roles[line] or "no role")
    if color == "health":
        return Paint(lambda line: session.health(lines.leaf(line)))
    if color == "change":
        distance = "relative L2 distance"
        return Paint(lambda line: _change(session, lines.leaf(line)), True, distance, "changed from all zero")
    return Paint(lambda line: _magnitude(session, lines.leaf(line)), True, "root mean square", "no finite value")


def _magnitude(session: Session, leaf: int) -> float | None:
    row = session.measured.rows.get(leaf)
    if row is None:
        return None
    return row.l2 / math.sqrt(row.finite) if row.finite else math.nan


def _change(session: Session, leaf: int) -> float | None:
    change = session.changes.get(leaf)
    if change is None or session.diff is None or not session.diff.values:
        return None
    if change.comparison is not None:
        return float(change.comparison.relative_l2)
    return 0.0 if change.kind in ("same", "renamed", "tied", "untied") else None
