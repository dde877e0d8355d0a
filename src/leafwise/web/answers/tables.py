"""The tables of statistics and of findings."""

from collections import Counter
from typing import Any

from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.inspect.check.findings import LEVELS, Finding
from leafwise.inspect.stats.rows import Row
from leafwise.web.answers import MOST_LISTED, MOST_ROWS
from leafwise.web.measured import columns_json, sums, table_row
from leafwise.web.searching import matching_lines
from leafwise.web.session import Session, stats_key


def findings(session: Session, level: str, code: str, first: int, count: int, most: int = MOST_ROWS) -> dict[str, Any]:
    if level and level not in LEVELS:
        raise QueryError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
    result = session.findings
    rows = [
        finding
        for finding in result or ()
        if (not level or finding.level == level) and (not code or finding.code == code)
    ]
    codes = Counter((finding.code, finding.level) for finding in result or ())
    return {
        "job": session.jobs["findings"].json(),
        "total": len(rows),
        "from": first,
        "rows": [finding_json(session, finding) for finding in rows[first : first + min(count, most)]],
        "levels": {name: 0 if result is None else len(result.of(name)) for name in LEVELS},
        "codes": [{"code": code, "level": level, "count": times} for (code, level), times in codes.items()],
        "checked": 0 if result is None else result.checked,
        "skipped": [] if result is None else _reasons(result.skipped),
    }


def finding_json(session: Session, finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "level": finding.level,
        "path": escape(finding.path),
        "message": escape(finding.message),
        "leaf": bool(finding.path) and session.leaf_number(finding.path) is not None,
    }


def table(
    session: Session, query: str, sort: str, descending: bool, first: int, count: int, most: int = MOST_ROWS
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "job": session.jobs["stats"].json(),
        "columns": columns_json(),
        "total": 0,
        "from": first,
        "rows": [],
        "sums": [],
        "skipped": [],
        "error": None,
    }
    version = session.version  # before the statistics are copied, so that sums are never older than their version
    rows = dict(session.measured.rows)
    skipped = dict(session.measured.skipped)
    try:
        with session.lock:
            order = _order(session, rows, query, sort, descending)
    except QueryError as error:
        return {**answer, "error": escape(str(error))}
    lines, columns = session.lines, session.tree.columns
    reasons = {columns.row_text(leaf): reason for leaf, reason in list(skipped.items())[:MOST_LISTED]}
    return {
        **answer,
        "total": len(order),
        "rows": [
            table_row(rows[lines.leaf(line)], lines.path(line)) for line in order[first : first + min(count, most)]
        ],
        "sums": _sums(session, version, rows),
        "skipped": _reasons(reasons),
    }


def _sums(session: Session, version: int, rows: dict[int, Row]) -> list[dict[str, Any]]:
    """The sums of all leaves, computed once and not for every window of the table."""
    if session.sums[0] != version:
        session.sums = version, sums(session.tree, rows) if rows else []
    return session.sums[1]


def _order(session: Session, rows: dict[int, Any], query: str, sort: str, descending: bool) -> list[int]:
    """The lines of measured leaves that match the query, sorted."""
    lines = session.lines
    matches = matching_lines(lines, query) if query else None
    order = [line for line in lines.counted if lines.leaf(line) in rows and (matches is None or line in matches)]
    if sort in ("", "tree"):
        return order
    if sort == "path":
        return sorted(order, key=lines.path, reverse=descending)
    names = [column["name"] for column in columns_json()]
    if sort not in names:
        raise QueryError(f"there is no column {sort!r}; there are {', '.join(names)}")
    return sorted(order, key=lambda line: stats_key(rows[lines.leaf(line)], sort), reverse=descending)


def _reasons(skipped: dict[str, str]) -> list[dict[str, str]]:
    return [{"path": escape(path), "reason": escape(reason)} for path, reason in list(skipped.items())[:MOST_LISTED]]
