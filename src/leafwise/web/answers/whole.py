"""What the page shows of the whole: counts, ties, notes, and how far the computations are."""

from itertools import islice
from typing import Any

from leafwise import __version__
from leafwise.core.parts import first_rows
from leafwise.core.path import escape, plural, without_secrets
from leafwise.core.results.totals import Total
from leafwise.core.tree import Tree
from leafwise.web.answers import MOST_LISTED, cut
from leafwise.web.session import Session, short_name


def summary(session: Session) -> dict[str, Any]:
    t = session.tree
    views = ["tree", "map", "stats", "findings"]
    if session.other is not None:
        views = ["diff", *views, *(["plan"] if session.plan[0] is not None else [])]
    return {
        "title": " → ".join(map(short_name, session.names)),
        "kind": _kind(t),
        "version": __version__,
        "names": session.names,
        "views": views,
        "counts": session.counts._asdict(),
        "ties": _ties(t),
        "tie_count": len({t.columns.ties[row] for row in t.rows if row in t.columns.ties}),
        "metadata": _metadata(t),
        "notes": _notes(t),
        "live": not t.is_file,
        "exported": False,
    }


def totals(session: Session) -> dict[str, Any]:
    """Sums by dtype and by role, which not everybody looks at."""
    by_dtype, by_role = session.tree.by("dtype"), session.tree.by("role")
    return {"dtypes": [_total_json(total) for total in by_dtype], "roles": [_total_json(total) for total in by_role]}


def progress(session: Session) -> dict[str, Any]:
    jobs = {name: job.json() for name, job in session.jobs.items()}
    return {"version": session.version, "diff": None, **jobs, "warning": session.files.warning()}


def _kind(t: Tree) -> str:
    root = t.columns.node_objects[0]
    return escape(str(getattr(root, "format", "checkpoint")) if t.is_file else t.columns.type_name(t.root))


def _total_json(total: Total) -> dict[str, Any]:
    sizes = {"leaves": total.leaves, "parameters": total.parameters, "bytes": total.bytes}
    return {"name": escape(str(total.name)), **sizes}


def _ties(t: Tree) -> list[dict[str, Any]]:
    columns = t.columns
    leaves = (columns.ties.get(row, row) for row in first_rows(t)) if columns.ties else ()
    return [
        {
            "path": columns.row_text(leaf),
            "names": [{"path": columns.row_text(row), "op": str(columns.row_op(row))} for row in columns.rows_of(leaf)],
        }
        for leaf in islice((leaf for leaf in leaves if leaf in columns.further_rows), MOST_LISTED)
    ]


def _metadata(t: Tree) -> list[dict[str, str]]:
    metadata = getattr(t.columns.node_objects[0], "metadata", None) if t.is_file else None
    items = list(metadata.items())[:MOST_LISTED] if isinstance(metadata, dict) else []
    return [{"name": cut(str(name)), "value": cut(str(value))} for name, value in items]


def _notes(t: Tree) -> list[str]:
    notes = [f"{undone}; {undone.repair()}" for undone in t.undone[:MOST_LISTED]]
    if shared := t.shared_memory:
        groups = plural(len(shared), "group", "groups")
        paths = ", ".join(str(leaf.path) for leaf in shared[0].leaves[:3])
        notes.append(
            f"{groups} of leaves: {shared[0].reason}, such as {paths}; in the tree and the map, their bytes count for "
            "each of them"
        )
    if opaque := t.opaque:
        objects = plural(len(opaque), "object is", "objects are")
        notes.append(f"{objects} of a class that leafwise does not load: {opaque[0].class_name}")
    return [escape(without_secrets(note)) for note in notes]
