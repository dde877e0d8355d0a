"""The treemap of the page: the tree below a node as nested cells, pruned to what can be seen, and their colors."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from leafwise.core.leaf import shape_text
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.web.answers import num
from leafwise.web.lines import LEAF, NODE, TreeLines
from leafwise.web.session import Session

COLORS = ("dtype", "role", "health", "magnitude", "change")
_MAX_CELLS = 1_500
_SMALLEST_SHARE = 2_000  # a cell has at least one part of so many of the whole
_MAX_LINKS = 200
_MOST_LEVELS = 50  # levels of cells; a cell further down is shown when one above it is opened
_HEALTH = ("error", "warning", "note", "ok")


class Paint(NamedTuple):
    """What leaves are colored by: a function of their line, and, if it returns numbers, what they are. `odd` says what
    values that are not finite mean."""

    value: Callable[[int], str | float | None]
    is_number: bool = False
    label: str = ""
    odd: str = ""


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


class TreeMap:
    """The cells below a line."""

    def __init__(self, lines: TreeLines, line: int, paint: Paint) -> None:
        self._lines, self._paint, self._top = lines, paint, line
        self._total = max(lines.totals(line)[2], 1)
        self._cells = 0
        self._aliases: list[int] = []

    def json(self, title: str) -> dict[str, Any]:
        """The cells, the way to them from the root, the scale of their colors, and the ties to draw."""
        cell = self._cell(self._top)
        return {
            "path": self._lines.path(self._top),
            "crumbs": self._crumbs(title),
            "cell": cell,
            "scale": self._scale(),
            "links": [self._link(line) for line in self._aliases[:_MAX_LINKS]],
        }

    def _crumbs(self, title: str) -> list[dict[str, str]]:
        """Of a very deep node, the root and the last ones."""
        lines, line = self._lines, self._top
        above: list[int] = []
        while line >= 0:
            above.append(line)
            line = lines.parents[line]
        kept = [above[-1], *above[_MOST_LEVELS - 1 :: -1]] if len(above) > _MOST_LEVELS else above[::-1]
        return [{"path": lines.path(line), "name": lines.name(line) or title} for line in kept]

    def _cell(self, line: int) -> dict[str, Any]:
        lines = self._lines
        leaves, _, memory = lines.totals(line)
        self._cells += 1
        cell = {"path": lines.path(line), "name": lines.name(line), "bytes": memory, "leaves": leaves, "value": None}
        if lines.kinds[line] == LEAF:
            return {**cell, **self._leaf(line)}
        kind = escape(lines.tree.columns.type_name(lines.places[line]) or "")
        if lines.depths[line] - lines.depths[self._top] < _MOST_LEVELS:
            children = self._children(line)
        else:
            children = [self._more(line, [lines.totals(line)], "too deep to show here")] if memory else []
        return {**cell, "kind": "node", "text": kind, "children": children}

    def _leaf(self, line: int) -> dict[str, Any]:
        lines = self._lines
        columns, row = lines.tree.columns, lines.places[line]
        spec = columns.facts([row])[0].spec
        text = f"{shape_text(spec.shape)} {spec.dtype}"
        if line not in lines.counted:
            self._aliases.append(line)
            return {"kind": "alias", "text": text, "leaves": 0}
        return {"kind": "leaf", "text": text, "value": self._value(line)}

    def _value(self, line: int) -> str | float | None:
        value = self._paint.value(line)
        return num(value) if isinstance(value, float) else value

    def _children(self, line: int) -> list[dict[str, Any]]:
        """The children with a visible size, the largest first. Small ones share a cell; names of tied leaves stay."""
        lines = self._lines
        children, small = [], []
        child, end = line + 1, lines.ends[line]
        while child < end:
            if lines.kinds[child] in (NODE, LEAF):
                children.append(child)
            child = lines.ends[child]
        children.sort(key=lambda number: -lines.totals(number)[2])
        cells = []
        for child in children:
            memory = lines.totals(child)[2]
            if lines.kinds[child] == LEAF and child not in lines.counted and len(self._aliases) < _MAX_LINKS:
                cells.append(self._cell(child))
            elif memory * _SMALLEST_SHARE < self._total or self._cells >= _MAX_CELLS:
                small.append(child)
            else:
                cells.append(self._cell(child))
        # A node without bytes is listed if it has names of tied leaves, which are counted elsewhere.
        tied = [child for child in small if not lines.totals(child)[2] and self._has_aliases(child)]
        if tied and self._cells < _MAX_CELLS:
            cells += [self._cell(child) for child in tied[:_MAX_LINKS]]
            small = [child for child in small if child not in set(tied[:_MAX_LINKS])]
        rest = [lines.totals(child) for child in small]
        if sum(memory for *_, memory in rest):
            cells.append(self._more(line, rest, "too small to show one by one"))
        return cells

    def _has_aliases(self, line: int) -> bool:
        lines = self._lines
        return any(lines.kinds[below] == LEAF for below in range(line, min(lines.ends[line], line + 1_000)))

    def _more(self, line: int, rest: list[tuple[int, int, int]], text: str) -> dict[str, Any]:
        leaves, memory = sum(leaves for leaves, *_ in rest), sum(memory for *_, memory in rest)
        return {
            "kind": "more",
            "path": self._lines.path(line),
            "name": f"{leaves:,} more",
            "bytes": memory,
            "value": None,
            "leaves": leaves,
            "text": text,
        }

    def _link(self, line: int) -> dict[str, str]:
        lines, columns = self._lines, self._lines.tree.columns
        row = lines.places[line]
        leaf = columns.ties.get(row, row)
        return {"from": lines.path(line), "to": columns.row_text(leaf), "op": str(columns.row_op(row))}

    def _scale(self) -> dict[str, Any]:
        lines = self._lines
        below = [line for line in lines.counted if self._top <= line < lines.ends[self._top]]
        values = [(self._value(line), lines.counted[line].spec.nbytes) for line in below]
        if self._paint.is_number:
            numbers = [value for value, _ in values if isinstance(value, float) and value > 0]
            low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
            words = {"label": self._paint.label, "logarithmic": True, "odd": self._paint.odd}
            return {"kind": "number", "low": low, "high": high, **words}
        sizes: Counter[str] = Counter()
        for value, memory in values:
            if value is not None:
                sizes[str(value)] += memory
        is_health = set(sizes) <= set(_HEALTH)
        names = [name for name in _HEALTH if name in sizes] if is_health else [name for name, _ in sizes.most_common()]
        return {"kind": "category", "values": [{"name": name, "bytes": sizes[name]} for name in names]}
