"""The result of `lw.edit`, as a few lines and as plain data."""

from typing import Any

from leafwise.checkpoint.editing.result import Edit, EditSize, Step
from leafwise.core.path import plural, shown_url
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.render.data import TableRows
from leafwise.render.phrases import bytes_text

_BY_NAME = {"keep", "drop", "rename", "compute"}
_MAX_LINES = 30  # of one kind of step, unless `full` is given


def to_doc(edit: Edit, *, full: bool = False, outcome: bool = True) -> Doc:
    """A line for each step; below, how much there was, how much there is now, and whether it was written."""
    lines: list[Line] = []
    shown: dict[str, int] = {}
    has_ties = any(size.names > size.leaves for size in (edit.before, edit.after))
    verb_width = max((len(step.verb) for step in edit.steps), default=0)
    for step in edit.steps:
        shown[step.verb] = shown.get(step.verb, 0) + 1
        if full or shown[step.verb] <= _MAX_LINES:
            lines.append(_line(step, verb_width, has_ties))
    footer: list[tuple[Span, ...]] = []
    if not edit.steps:
        footer.append((Span("nothing is changed"),))
    for verb, count in shown.items():
        if not full and count > _MAX_LINES:
            footer.append((Span(f"… and {plural(count - _MAX_LINES, 'more step', 'more steps')}: {verb}", "dim"),))
    footer += [(Span(note, "warn"),) for note in edit.notes]
    footer.append((Span(f"{_size(edit.before)} → {_size(edit.after)}"),))
    if outcome:
        path = shown_url(edit.path)
        footer.append((Span(f"wrote {path}" if edit.written else f"dry run: {path} was not written"),))
    return Doc(lines, footer, right=frozenset({0, 1}), drop=(1,), columns=("leaves", "bytes"))


def _line(step: Step, verb_width: int, has_ties: bool) -> Line:
    leaves = len(step.names) - step.values
    # Of a tied leaf, each name is renamed or dropped by itself.
    noun, nouns = ("name", "names") if has_ties and step.verb in _BY_NAME else ("leaf", "leaves")
    counts = plural(leaves, noun, nouns) if leaves else ""
    if step.values and step.verb in ("drop", "rename", "delete") and not (leaves == 0 and step.values == 1):
        counts += (", " if counts else "") + plural(step.values, "value", "values")
    size = "" if not step.nbytes else ("−" if step.nbytes < 0 else "+") + bytes_text(abs(step.nbytes))
    label = (Span(f"{step.verb:<{verb_width}}  ", "type"), Span(step.what, "name"))
    return Line(0, label, (Span(counts), Span(size, "dim")), whole=True)


def _size(size: EditSize) -> str:
    parts = [plural(size.leaves, "leaf", "leaves"), bytes_text(size.nbytes) or "0 B"]
    if size.names > size.leaves:
        parts[0] += f" under {size.names:,} names"
    if size.values:
        parts.append(plural(size.values, "plain value", "plain values"))
    return ", ".join(parts)


def to_table(edit: Edit) -> TableRows:
    """A row for each name in the new checkpoint."""
    columns = ["path", "sources", "changes", "shape", "dtype", "bytes", "tied_to"]
    rows = [dict(zip(columns, leaf, strict=True)) | {"tied_to": leaf.tied_to or None} for leaf in edit.leaves]
    return TableRows(columns, rows, "path")


def to_json(edit: Edit) -> dict[str, Any]:
    return {
        "path": shown_url(edit.path),
        "written": edit.written,
        "steps": [
            {"verb": step.verb, "what": step.what, "names": step.names, "bytes": step.nbytes} for step in edit.steps
        ],
        "leaves": [{**leaf._asdict(), "shape": list(leaf.shape)} for leaf in edit.leaves],
        "before": edit.before._asdict(),
        "after": edit.after._asdict(),
        "notes": edit.notes,
    }
