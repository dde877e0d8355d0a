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
    changes: list[Change] = []
    error = session.structure.message if result is None else None
    if result is not None:
        try:  # what was added is searched in the second tree
            in_first, in_second = path_test(session.tree, query), path_test(session.other, query)
            changes = [
                change
                for change in result
                if (kind == ALL or (kind in change.kinds if kind else change.kind != "same"))
                and (in_second if "added" in change.kinds else in_first)(change.path)
            ]
        except QueryError as wrong:
            error = escape(str(wrong))
    if sort == "change":
        changes.sort(key=change_key, reverse=descending)
    counts = {} if result is None else result.counts
    return {
        "job": session.jobs["diff"].json(),
        "names": session.names,
        "same": result is not None and result.same,
        "values": result is not None and result.values,
        "counts": [{"kind": name, "count": times} for name, times in counts.items()],
        "total": len(changes),
        "from": first,
        "rows": [change_json(session, change) for change in changes[first : first + min(count, most)]],
        "notes": [] if result is None else [escape(note) for note in result.notes],
        "error": error,
    }


def change_json(session: Session, change: Change) -> dict[str, Any]:
    """A line of the diff. `leaf` says whether the page can open it."""
    is_shown = "added" not in change.kinds and not change.is_plain and session.leaf_number(change.path) is not None
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
        "leaf": is_shown,
    }


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
    try:  # what is not expected is searched in what is loaded
        target, source = path_test(session.tree, query), path_test(session.other, query)
    except QueryError as error:
        return {**answer, "error": escape(str(error))}
    if session.loads_into_other:
        target, source = source, target
    rows = [
        row
        for row in everything
        if (not status or row["status"] == status)
        and (source if row["status"].startswith("unexpected") else target)(row["path"])
    ]
    return {
        **answer,
        "holds": loading.holds,
        "coverage": num(loading.coverage),
        "counts": [
            {"status": name, "count": times} for name, times in Counter(row["status"] for row in everything).items()
        ],
        "total": len(rows),
        "rows": [
            {**row, "leaf": not session.loads_into_other and session.leaf_number(row["path"]) is not None}
            for row in rows[first : first + min(count, most)]
        ],
        "notes": [escape(note) for note in loading.notes],
        "proposals": [
            escape(f"{proposal.pattern} → {proposal.replacement}: {proposal.reason}")
            for proposal in loading.proposals[:MOST_LISTED]
        ],
    }


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
