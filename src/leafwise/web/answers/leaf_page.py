"""The page of a leaf: facts at once, and what is read from its values."""

import math
from typing import Any

import numpy as np

from leafwise.core.capabilities.measuring import reader
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.path import Path, escape
from leafwise.core.tree import Tree
from leafwise.errors import QueryError
from leafwise.inspect.image.grids import axis_down, boxes
from leafwise.render.phrases import bytes_text
from leafwise.render.pictures.pixels import png
from leafwise.render.pictures.scale import EMPTY, INFINITE, NAN, STEPS, css, numbers
from leafwise.web import pictures
from leafwise.web.answers import num
from leafwise.web.answers.comparison import change_json
from leafwise.web.answers.tables import finding_json
from leafwise.web.lines import LEAF
from leafwise.web.measured import statistics_json
from leafwise.web.session import Session
from leafwise.web.watched_files import is_local

AUTOMATIC = 256 << 20  # bytes that are measured and drawn when a leaf is opened
_AUTOMATIC_REMOTE = 16 << 20
_COLORS = 17  # of the scale that the page draws
_BINS = 512
_BAND_VALUES = 1 << 20  # values in memory at a time
_MOST_VALUES = 1 << 31  # values of a leaf


def leaf(session: Session, path: str) -> dict[str, Any]:
    """What is known at once: nothing is read for it."""
    shown = session.leaf(path)
    line = session.line(path)
    [data] = Tree(session.tree.columns, 0, [shown.row]).json()["leaves"]
    names, reason = pictures.layouts_of(shown)
    with session.lock:
        findings = session.findings_of_leaf.get(shown.number, [])
        change = session.changes.get(shown.number)
    return {
        "path": data["path"],
        "code": escape(_code(session.tree, shown)),
        "label": f"{shape_text(shown.shape)} {shown.dtype}",
        "shape": data["shape"],
        "dtype": shown.dtype,
        "size": shown.size,
        "bytes": shown.nbytes,
        "facts": [{"name": name, "value": escape(str(value))} for name, value in _facts(shown)],
        "names": [_name_json(name) for name in data["names"]],
        "views": [pictures.layout_of(shown, name).facts() for name in names],
        "no_view": escape(reason) or None,
        "findings": [finding_json(session, finding) for finding in findings],
        "change": None if change is None else change_json(session, change),
        "previous": _neighbour(session, range(line - 1, -1, -1)),
        "next": _neighbour(session, range(line + 1, len(session.lines))),
        "read_bytes": shown.nbytes,
        "automatic": shown.nbytes <= (AUTOMATIC if is_local(session.tree) else _AUTOMATIC_REMOTE),
    }


def _neighbour(session: Session, candidates: range) -> str | None:
    lines = session.lines
    return next((lines.path(line) for line in candidates if lines.kinds[line] == LEAF), None)


def _code(t: Tree, leaf: Leaf) -> str:
    """The expression that reaches a leaf: in a file, from what torch.load, load_file, np.load or lw.open return."""
    if not t.is_file:
        return leaf.path.code("model")
    entries = leaf.path.entries
    is_wrapped = bool(entries) and entries[0].hidden and entries[0].name == "content"  # by the object of an opened file
    return Path(entries[is_wrapped:]).code("checkpoint")


def _name_json(name: dict[str, Any]) -> dict[str, Any]:
    op = name["op"] if name["op"] == "same" else escape(f"{name['op']}: {name['view']}")
    return {
        "path": name["path"], "role": name["role"], "owner": escape(name["owner"] or ""), "axes": name["axes"], "op": op
    }  # fmt: skip


def _facts(leaf: Leaf) -> list[tuple[str, Any]]:
    axes = f" ({', '.join(leaf.axes)})" if leaf.axes else ""
    exact = f"{leaf.nbytes:,}"
    facts: list[tuple[str, Any]] = [
        ("elements", f"{leaf.size:,}"),
        ("bytes", f"{bytes_text(leaf.nbytes)} ({exact})" if leaf.nbytes >= 1024 else exact),
        ("role", f"{leaf.role or 'not known'}{axes}"),
        ("kind", leaf.kind if leaf.persistent else f"{leaf.kind}, not saved"),
    ]
    if leaf.owner:
        facts.append(("owner", leaf.owner))
    if leaf.section != "weights":
        facts.append(("section", leaf.section))
    if leaf.trainable is not None:
        facts.append(("trainable", "yes" if leaf.trainable else "no"))
    facts.append(("device", leaf.device))
    if leaf.sharding is not None:
        facts += [("sharding", leaf.sharding), ("bytes here", bytes_text(leaf.local_nbytes))]
    return facts


def statistics(session: Session, path: str) -> dict[str, Any]:
    number = session.leaf(path).number
    row = session.measured.row(number)
    return statistics_json(row, session.measured.skipped.get(number))


def norms(session: Session, path: str) -> dict[str, Any] | None:
    """The norms along the axis of the outputs and along the longest other one; None for a leaf with one axis."""
    leaf = session.leaf(path)
    names, _ = pictures.layouts_of(leaf)
    shape = leaf.shape or ()
    if not names or names == ["strip"]:
        return None
    if leaf.size > _MOST_VALUES:
        raise QueryError(f"{bytes_text(leaf.nbytes)} are too many to read for a curve")
    down = axis_down(shape, leaf.axes)
    rest = [axis for axis, size in enumerate(shape) if axis != down and size > 1]
    named = [axis for axis in rest if leaf.axes and leaf.axes[axis] == "in"]
    axes = [down, *(named or sorted(rest, key=lambda axis: -shape[axis]))[:1]]
    squares = {axis: np.zeros(shape[axis]) for axis in axes}
    columns = leaf.columns
    value = columns.current(leaf.row)
    read = reader(columns.home(value), value)
    for box in boxes(shape, _BAND_VALUES):
        with np.errstate(invalid="ignore", over="ignore"):
            part = np.asarray(read(box)).astype(np.float64) ** 2
            for axis, total in squares.items():
                others = tuple(other for other in range(len(shape)) if other != axis)
                total[box[axis]] += part.sum(axis=others)
    return {"axes": [_curve(leaf, axis, np.sqrt(total)) for axis, total in squares.items()], "note": None}


def _curve(leaf: Leaf, axis: int, norms: Any) -> dict[str, Any]:
    count = len(norms)
    per_bin = math.ceil(count / _BINS)
    starts = np.arange(0, count, per_bin)
    lengths = np.diff([*starts, count])
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(norms, starts) / lengths
    name = leaf.axes[axis] if leaf.axes else f"axis {axis}"
    return {
        "label": f"norms of {count:,} slices along {name}",
        "count": count,
        "per_bin": per_bin,
        "low": [num(value) for value in np.minimum.reduceat(norms, starts).tolist()],
        "mean": [num(value) for value in mean.tolist()],
        "high": [num(value) for value in np.maximum.reduceat(norms, starts).tolist()],
    }


def scale(session: Session, path: str, layout_name: str) -> dict[str, Any]:
    """The scale of the colors: up to the largest magnitude, from the statistics of a file if they are known. Those of a
    model may be older than the values that are drawn."""
    leaf = session.leaf(path)
    row = session.measured.rows.get(leaf.number)
    layout = pictures.layout_of(leaf, layout_name)
    note = None
    if row is not None and row.finite and leaf.device == "file":
        limit, signed = float(row.absmax), row.min < 0
    else:
        cells, sampled = pictures.tile(layout, layout.levels - 1, 0, 0)
        finite = cells[np.isfinite(cells)]
        limit = float(abs(finite).max(initial=0))
        signed = bool((finite < 0).any()) or (row is not None and row.min < 0)
        note = f"the scale is that of a sample: 1 of {sampled:,} values" if sampled > 1 else None
    first = 0 if signed else STEPS  # without negative values, only the upper half of the colors occurs
    shown = [first + round(place * (2 * STEPS - first) / (_COLORS - 1)) for place in range(_COLORS)]
    return {
        "limit": limit or 1.0,
        "signed": signed,
        "colors": [css(color) for color in shown],
        "nan": css(NAN),
        "infinite": css(INFINITE),
        "note": note,
    }


def tile(session: Session, path: str, layout_name: str, level: int, y: int, x: int, limit: float) -> tuple[bytes, int]:
    """A tile as a PNG, and one of how many rows was read."""
    layout = pictures.layout_of(session.leaf(path), layout_name)
    cells, sampled = pictures.tile(layout, level, y, x)
    colors = numbers(cells, limit)
    if level == 0:
        top, left = y * pictures.TILE, x * pictures.TILE
        gaps = layout.gaps(top, top + cells.shape[0], left, left + cells.shape[1])
        if gaps is not None:
            colors[gaps] = EMPTY
    return png(colors), sampled


def value(session: Session, path: str, layout_name: str, row: int, column: int) -> dict[str, Any]:
    """The index and the value at a pixel of level 0."""
    layout = pictures.layout_of(session.leaf(path), layout_name)
    if not (0 <= row < layout.rows and 0 <= column < layout.columns):
        raise QueryError(f"there is no value at row {row}, column {column}")
    index, at_pixel = layout.value(row, column)
    if index is None:
        return {"index": None, "text": ""}
    number = at_pixel.item() if hasattr(at_pixel, "item") else at_pixel
    text = f"{number:.6g}" if isinstance(number, float) else escape(str(number))
    return {"index": list(index), "text": text}
