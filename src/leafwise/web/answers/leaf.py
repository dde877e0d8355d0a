"""The page of a leaf: facts at once, and what is read from its values."""

from typing import Any

from leafwise.web.answers.tables import finding_json
from leafwise.web.comparing import change_json
from leafwise.web.lines import LEAF
from leafwise.web.measured import statistics_json
from leafwise.web.session import Session

AUTOMATIC = 256 << 20  # bytes that are measured and drawn when a leaf is opened
_AUTOMATIC_REMOTE = 16 << 20


# NumPy is imported with the first leaf that is opened: until then, the page is already there.


def leaf(session: Session, path: str) -> dict[str, Any]:
    from leafwise.web.leaf_facts import facts_json

    shown = session.leaf(path)
    line = session.line(path)
    with session.lock:
        findings = session.findings_of_leaf.get(shown.number, [])
        change = session.changes.get(shown.number)
    return {
        **facts_json(session.tree, shown),
        "findings": [finding_json(session, finding) for finding in findings],
        "change": None if change is None else change_json(change, True),
        "previous": _neighbour(session, line, -1),
        "next": _neighbour(session, line, 1),
        "read_bytes": shown.nbytes,
        "automatic": shown.nbytes <= (_AUTOMATIC_REMOTE if session.is_remote else AUTOMATIC),
    }


def _neighbour(session: Session, line: int, step: int) -> str | None:
    lines = session.lines
    at = line + step
    while 0 <= at < len(lines):
        if lines.kinds[at] == LEAF:
            return lines.path(at)
        at += step
    return None


def statistics(session: Session, path: str) -> dict[str, Any]:
    number = session.leaf(path).number
    row = session.measured.row(number)
    return statistics_json(row, session.measured.skipped.get(number))


def norms(session: Session, path: str) -> dict[str, Any] | None:
    from leafwise.web.norms import norms_of

    return norms_of(session.leaf(path))


def scale(session: Session, path: str, layout: str) -> dict[str, Any]:
    from leafwise.web.leaf_pictures import scale_of

    shown = session.leaf(path)
    return scale_of(shown, layout, session.measured.rows.get(shown.number))


def tile(session: Session, path: str, layout: str, level: int, y: int, x: int, limit: float) -> tuple[bytes, int]:
    from leafwise.web.pictures import layout_of, tile_png

    return tile_png(layout_of(session.leaf(path), layout), level, y, x, limit)


def value(session: Session, path: str, layout: str, row: int, column: int) -> dict[str, Any]:
    from leafwise.web.leaf_pictures import value_of

    return value_of(session.leaf(path), layout, row, column)
