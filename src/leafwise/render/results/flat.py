"""The result of `lw.flat`, as a table and as plain data."""

from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.iterate.flat import Flat
from leafwise.render.data import TableRows
from leafwise.render.layout import MAX_LINES, cut


def to_doc(flat: Flat, *, full: bool = False) -> Doc:
    """For each vector, a line for each leaf with its slice."""
    lines = []
    vectors = flat.account()
    for dtype, slices in vectors:
        size = sum(part.stop - part.start for part in slices.values())
        lines.append(Line(0, (Span(f"{dtype} vector", "type"),), (Span(""), Span(f"{size:,}", "number"))))
        for path, part in slices.items():
            cells = (Span(f"[{part.start}:{part.stop}]", "dim"), Span(f"{part.stop - part.start:,}", "number"))
            lines.append(Line(1, (Span(path, "name"),), cells))
    leaves = sum(len(slices) for _, slices in vectors)
    size = sum(part.stop - part.start for _, slices in vectors for part in slices.values())
    if not full and len(lines) > MAX_LINES - 3:
        lines = cut(iter(lines), MAX_LINES - 3)
    counts = f"{plural(leaves, 'leaf', 'leaves')}, {plural(size, 'parameter', 'parameters')}"
    footer: list[tuple[Span, ...]] = [(Span(f"{counts} in {plural(len(vectors), 'vector', 'vectors')}"),)]
    if flat.is_undone:
        footer.append((Span("undone: every leaf has memory of its own again", "warn"),))
    return Doc(lines, footer, right=frozenset({0, 1}), drop=(0,), columns=("slice", "size"))


def to_table(flat: Flat) -> TableRows:
    """A row for each leaf."""
    rows = [
        {"path": path, "vector": number, "dtype": dtype, "start": part.start, "stop": part.stop}
        for number, (dtype, slices) in enumerate(flat.account())
        for path, part in slices.items()
    ]
    return TableRows(["path", "vector", "dtype", "start", "stop"], rows, "path")


def to_json(flat: Flat) -> dict[str, Any]:
    """The slices of every vector."""
    return {
        "vectors": [
            {"dtype": dtype, "slices": {path: [part.start, part.stop] for path, part in slices.items()}}
            for dtype, slices in flat.account()
        ],
        "undone": flat.is_undone,
    }
