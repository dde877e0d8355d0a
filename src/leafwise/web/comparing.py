"""The diff of two trees, and the plan of a load, as lines of the page."""

from typing import TYPE_CHECKING, Any

from leafwise.core.path import escape
from leafwise.inspect.diff.changes import KINDS, Change
from leafwise.render.change_text import changed_value_text
from leafwise.web.numbers import cut, num

if TYPE_CHECKING:
    from leafwise.checkpoint.planning.plan import Plan
    from leafwise.inspect.diff.difference import Diff


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


def kind_counts(diff: "Diff") -> list[dict[str, Any]]:
    """How many changes there are of each kind, the most important first."""
    return [{"kind": kind, "count": diff.counts[kind]} for kind in KINDS if kind in diff.counts]


def plan_rows(plan: "Plan") -> list[dict[str, Any]]:
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
