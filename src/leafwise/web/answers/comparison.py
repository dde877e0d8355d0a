"""The diff of two trees, and the plan of a load."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.inspect.diff.changes import KINDS, Change
from leafwise.render.change_text import changed_value_text
from leafwise.web.answers import MOST_LISTED, MOST_ROWS, cut, num
from leafwise.web.searching import path_test
from leafwise.web.session import Session, change_key

if TYPE_CHECKING:
    from leafwise.checkpoint.planning.plan import Plan
    from leafwise.inspect.diff.difference import Diff

ALL = "*"  # in place of a kind: equal leaves, too


def diff(
    session: Session, kind: str, query: str, sort: str, descending: bool, first: int, count: int, most: int = MOST_ROWS
) -> dict[str, Any]:
    """The changes of a kind; without one, all but those of equal leaves."""
    if session.other is None:
        raise QueryError("only one tree is shown; leafwise view A B compares two")
    if kind and kind not in (*KINDS, ALL):
        raise QueryError(f"{kind!r} is not a kind of change; the kinds are {', '.join(KINDS)}")
    if sort not in ("", "tree", "change"):
        raise QueryError(f"there is no order {sort!r}; there are tree and change")
    result = session.diff
    answer: dict[str, Any] = {
        "job": session.jobs["diff"].json(),
        "names": session.names,
        "same": result is not None and result.same,
        "values": result is not None and result.values,
        "counts": [] if result is None else _kind_counts(result),
        "total": 0,
        "from": first,
        "rows": [],
        "notes": [] if result is None else [escape(note) for note in result.notes],
        "error": session.structure.message if result is None else None,
    }
    if result is None:
        return answer
    try:
        changes = [
            change
            for change in _matching(session, list(result), query)
            if kind == ALL or (kind in change.kinds if kind else change.kind != "same")
        ]
    except QueryError as error:
        return {**answer, "error": escape(str(error))}
    if sort == "change":
        changes.sort(key=change_key, reverse=descending)
    window = changes[first : first + min(count, most)]
    return {
        **answer,
        "total": len(changes),
        "rows": [change_json(change, _opens(session, change)) for change in window],
    }


def change_json(change: Change, leaf: bool) -> dict[str, Any]:
    """A line of the diff. `leaf` says whether the page can open it."""
    comparison = change.comparison
    figures = dict.fromkeys(("relative_l2", "cosine", "largest", "share"))
    if comparison is not None:
        figures = {name: num(getattr(comparison, name)) for name in figures}
    return {
        "kinds": list(change.kinds),
        "path": change.path,
        "other": change.other,
        "dtype": change.dtype,
        "other_dtype": change.other_dtype,
        "shape": None if change.shape is None else list(change.shape),
        "other_shape": None if change.other_shape is None else list(change.other_shape),
        **figures,
        "values": None if change.values is None else [cut(changed_value_text(value)) for value in change.values],
        "notes": [escape(note) for note in change.notes],
        "leaf": leaf,
    }


def _kind_counts(diff: "Diff") -> list[dict[str, Any]]:
    """How many changes there are of each kind, the most important first."""
    return [{"kind": kind, "count": diff.counts[kind]} for kind in KINDS if kind in diff.counts]


def _matching(session: Session, changes: list[Change], query: str) -> list[Change]:
    """The changes whose paths match. What was added is searched in the second tree."""
    if not query or session.other is None:
        return changes
    in_first, in_second = path_test(session.tree, query), path_test(session.other, query)
    return [change for change in changes if (in_second if "added" in change.kinds else in_first)(change.path)]


def _opens(session: Session, change: Change) -> bool:
    return "added" not in change.kinds and not change.is_plain and session.leaf_number(change.path) is not None


def plan(session: Session, status: str, query: str, first: int, count: int, most: int = MOST_ROWS) -> dict[str, Any]:
    if session.other is None:
        raise QueryError("only one tree is shown; leafwise view MODEL CHECKPOINT also shows the plan of a load")
    with session.lock:
        loading, reason = session.plan
    answer: dict[str, Any] = {
        "names": session.names[::-1] if session.loads_into_other else session.names,
        "holds": False,
        "coverage": 0,
        "counts": [],
        "total": 0,
        "from": first,
        "rows": [],
        "notes": [],
        "proposals": [],
        "error": escape(reason) or None,
    }
    if loading is None:
        return answer
    if session.plan_rows is None:
        session.plan_rows = _plan_rows(loading)
    everything = session.plan_rows
    try:
        rows = [row for row in _matching_rows(session, everything, query) if not status or row["status"] == status]
    except QueryError as error:
        return {**answer, "error": escape(str(error))}
    return {
        **answer,
        "holds": loading.holds,
        "coverage": num(loading.coverage),
        "counts": [
            {"status": name, "count": times} for name, times in Counter(row["status"] for row in everything).items()
        ],
        "total": len(rows),
        "rows": [{**row, "leaf": _loads_here(session, row["path"])} for row in rows[first : first + min(count, most)]],
        "notes": [escape(note) for note in loading.notes],
        "proposals": [
            escape(f"{proposal.pattern} → {proposal.replacement}: {proposal.reason}")
            for proposal in loading.proposals[:MOST_LISTED]
        ],
    }


def _matching_rows(session: Session, rows: list[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    """The lines of a plan that match. What is not expected is searched in what is loaded."""
    if not query or session.other is None:
        return rows
    target, source = path_test(session.tree, query), path_test(session.other, query)
    if session.loads_into_other:
        target, source = source, target
    return [row for row in rows if (source if row["status"].startswith("unexpected") else target)(row["path"])]


def _loads_here(session: Session, path: str) -> bool:
    return not session.loads_into_other and session.leaf_number(path) is not None


def _plan_rows(plan: "Plan") -> list[dict[str, Any]]:
    """Every line of a plan: problems first, then what is loaded, then what the model keeps."""
    data = plan.json()
    rows = []
    for problems, suffix in ((data["problems"], ""), (data["allowed"], " (allowed)")):
        rows += [_row(problem["kind"] + suffix, problem["name"], message=problem["message"]) for problem in problems]
    for leaf in data["leaves"]:
        how = ", ".join(leaf["how"]) or "copy"
        row = _row("loads", leaf["target"], source=leaf["source"], how=how)
        rows.append({**row, "shape": leaf["shape"], "dtype": leaf["dtype"]})
    return rows + [_row("kept", name) for name in data["kept"]]


def _row(
    status: str, path: str, source: str | None = None, how: str = "", message: str | None = None
) -> dict[str, Any]:
    return {
        "status": status,
        "path": escape(path),
        "source": None if source is None else escape(source),
        "how": escape(how),
        "shape": None,
        "dtype": None,
        "message": None if message is None else escape(message),
    }
