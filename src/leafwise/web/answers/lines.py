"""Lines of the tree."""

from collections.abc import Sequence
from typing import Any

from leafwise.core.columns import Facts
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.render.phrases import value_text
from leafwise.web.answers import MOST_ROWS, cut
from leafwise.web.lines import LEAF, NODE, SORTS, LineRequest
from leafwise.web.measured import mini
from leafwise.web.searching import why_nothing
from leafwise.web.session import Session

_NO_FACTS = {
    "type": None, "open": False, "shape": None, "dtype": None, "role": None, "group": None, "trainable": None,
    "tied": None, "shared": 0, "health": None, "stats": None, "change": None, "value": None,
}  # fmt: skip


def rows(session: Session, asked: LineRequest, first: int, count: int) -> dict[str, Any]:
    """A window of the visible lines."""
    if asked.sort not in SORTS:
        raise QueryError(f"there is no order {asked.sort!r}; there are {', '.join(SORTS)}")
    with session.lock:
        try:
            visible, matches = session.listing.visible(asked, session.version)
        except QueryError as error:
            return {"total": 0, "from": 0, "rows": [], "matches": 0, "error": escape(str(error))}
        if asked.query and not visible:
            reason = why_nothing(session.tree, asked.query)
            return {"total": 0, "from": 0, "rows": [], "matches": 0, "error": reason}
        window = row_json(session, visible[first : first + min(count, MOST_ROWS)], asked)
        return {"total": len(visible), "from": first, "rows": window, "matches": matches, "error": None}


def find(session: Session, path: str, asked: LineRequest) -> dict[str, Any]:
    """Where a path is in the list, and what must be unfolded so that it is visible."""
    line = session.line(path)
    with session.lock:
        try:
            index, toggled = session.listing.place_of(line, asked, session.version)
        except QueryError:
            return {"index": None, "toggled": list(asked.toggled)}
    return {"index": index, "toggled": list(toggled)}


def row_json(session: Session, window: Sequence[int], asked: LineRequest) -> list[dict[str, Any]]:
    """Lines as the page shows them."""
    lines, columns = session.lines, session.tree.columns
    toggled = set(asked.toggled)
    depth = asked.depth if not asked.query else len(lines)
    names = [lines.places[line] for line in window if lines.kinds[line] == LEAF]
    facts = dict(zip(names, columns.facts(names), strict=True)) if names else {}
    roles = dict(zip(names, columns.row_roles(names), strict=True)) if names else {}
    answer = []
    for line in window:
        kind, place = lines.kinds[line], lines.places[line]
        leaves, size, memory = lines.totals(line)
        row: dict[str, Any] = {
            **_NO_FACTS,
            "id": line,
            "kind": ("node", "leaf", "value")[kind],
            "path": lines.path(line),
            "name": lines.name(line) or (session.title if line == 0 else '""'),
            "depth": lines.depths[line],
            "size": size,
            "bytes": memory,
            "leaves": leaves,
            "end": lines.ends[line],
        }
        if kind == NODE:
            row["open"] = (lines.depths[line] < depth) != (line in toggled)
            row["type"] = _type(session, place)
        elif kind == LEAF:
            row |= _leaf(session, line, facts[place], roles[place][0])
        else:
            row["value"] = cut(value_text(lines.values[place][1]))
        answer.append(row)
    return answer


def _type(session: Session, node: int) -> str:
    columns = session.tree.columns
    same = f", same as {columns.node_text(columns.repeats[node])}" if node in columns.repeats else ""
    return escape((columns.type_name(node) or "") + same) if not session.tree.is_file or same else ""


def _leaf(session: Session, line: int, facts: Facts, role: str | None) -> dict[str, Any]:
    lines, columns = session.lines, session.tree.columns
    place, leaf, spec = lines.places[line], lines.leaf(line), facts.spec
    is_further = line not in lines.counted
    measured, change = session.measured.rows.get(leaf), session.changes.get(leaf)
    return {
        "shape": None if spec.shape is None else list(spec.shape),
        "dtype": spec.dtype,
        "role": role,
        "group": facts.kind,
        "trainable": spec.trainable,
        "tied": {"to": columns.row_text(leaf), "op": str(columns.row_op(place))} if is_further else None,
        "shared": len(columns.further_rows[leaf]) + 1 if leaf in columns.further_rows else 0,
        "health": session.health(leaf),
        "stats": None if measured is None else mini(measured),
        "change": None if change is None else change.kind,
    }
