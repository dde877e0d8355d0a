"""The result of `lw.diff`, as an outline and as plain data."""

from collections import Counter
from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.comparison import merged_comparisons
from leafwise.core.results.outline import Doc, Span, Style
from leafwise.inspect.diff.changes import KINDS, Change, nonfinite_text
from leafwise.inspect.diff.difference import Diff
from leafwise.render.change_text import changed_value_text, figure_texts
from leafwise.render.change_tree import FIGURES, ChangeTree
from leafwise.render.data import TableRows, finite, plain_value
from leafwise.render.layout import MAX_LINES, fitting
from leafwise.render.proposals import proposal_lines

_MIN_LINES = 2  # minimum length of the outline: the title, and how many lines are left out
_MAX_REMARKS = 6  # notes of each kind shown below the outline
_ALL_LEVELS = 1_000_000  # a page opens everything that differs
_MAX_BYTES = 64  # bytes of a plain value shown in JSON


def to_doc(diff: Diff, *, depth: int | None = None, full: bool = False) -> Doc:
    """One line per changed leaf, below its parent nodes; then a summary."""
    footer = _footer(diff)
    if diff.same and not full:
        return Doc([], footer)
    outline = ChangeTree(diff, " → ".join(diff.names), fold=not full)
    chosen = full or depth is not None
    space = max(MAX_LINES - len(footer), _MIN_LINES)
    lines = list(outline.lines(depth)) if chosen else fitting(outline.lines, space)
    return Doc(
        lines,
        footer,
        right=frozenset({1, 2, 3, 4}),
        drop=(2, 3, 4, 1),
        columns=("change", *FIGURES),
        open_levels=_ALL_LEVELS,
    )


def _footer(diff: Diff) -> list[tuple[Span, ...]]:
    leaves = [change for change in diff if not change.is_plain]
    plain = [change for change in diff if change.is_plain]
    parts = [_counted(leaves, "leaf", "leaves")] if leaves or not plain else []
    parts += [_counted(plain, "plain value", "plain values")] if plain else []
    style: Style = "" if diff.same else "warn"
    footer: list[tuple[Span, ...]] = [(Span(" · ".join(parts), style),)]
    comparisons = [change.comparison for change in leaves if change.kind == "changed" and change.comparison is not None]
    if len(comparisons) > 1:
        whole = merged_comparisons(comparisons)
        relative, cosine, largest, share = figure_texts(whole)
        norms = f"relative L2 {relative}, {f'cosine {cosine}, ' if cosine else ''}largest {largest}"
        line = (Span(f"all changed leaves: {norms}, {share} of their values"),)
        footer.append((*line, Span(f"; {nonfinite_text(whole)}", "warn")) if whole.nonfinite_changed else line)
    if not diff.values:
        footer.append((Span("names, shapes and dtypes only: values were not compared", "dim"),))
    footer += [(Span(prefix.describe()),) for prefix in diff.prefixes]
    footer += [(Span(note, "dim"),) for note in diff.notes[:_MAX_REMARKS]]
    if len(diff.notes) > _MAX_REMARKS:
        footer.append((Span(f"… and {len(diff.notes) - _MAX_REMARKS:,} more", "dim"),))
    return footer + proposal_lines(diff.applied, diff.proposals, _MAX_REMARKS)


def _counted(changes: list[Change], noun: str, nouns: str) -> str:
    """The number of changes of each kind; one with several kinds counts for each."""
    words = plural(len(changes), noun, nouns)
    if all(change.kinds == ("same",) for change in changes):
        return f"{words}, all the same" if len(changes) > 1 else f"{words}, the same" if changes else words
    counts = Counter(kind for change in changes for kind in change.kinds)
    return f"{words}: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if kind in counts)


_FIGURES = ("relative_l2", "cosine", "largest", "share")


def to_table(diff: Diff) -> TableRows:
    """A row for each leaf and plain value that was compared."""
    columns = ["path", "kind", "kinds", "other", "shape", "other_shape", "dtype", "other_dtype", *_FIGURES]
    rows = []
    for change in diff:
        comparison = change.comparison
        figures = {name: None if comparison is None else getattr(comparison, name) for name in _FIGURES}
        rows.append({**change._asdict(), "kind": change.kind, **figures})
    return TableRows(columns, rows, "path")


def to_json(diff: Diff) -> dict[str, Any]:
    """Every leaf with its change, and the summary; NaN and infinity become null."""
    return {
        "same": diff.same,
        "a": diff.names[0],
        "b": diff.names[1],
        "values": diff.values,
        "counts": diff.counts,
        "leaves": [_leaf_json(change) for change in diff if not change.is_plain],
        "plain": [_plain_json(change) for change in diff if change.is_plain],
        "prefixes": [{"a": prefix.source, "b": prefix.target, "count": prefix.times} for prefix in diff.prefixes],
        "notes": diff.notes,
        "proposals": [proposal._asdict() for proposal in diff.proposals],
        "applied": [proposal._asdict() for proposal in diff.applied],
    }


def _leaf_json(change: Change) -> dict[str, Any]:
    comparison = change.comparison
    figures = None
    if comparison is not None:
        numbers = {**comparison._asdict(), "relative_l2": comparison.relative_l2, "share": comparison.share}
        del numbers["scaled"]
        figures = {name: finite(value) for name, value in numbers.items()}
    return {
        "kinds": list(change.kinds),
        "path": change.path,
        "other": change.other,
        "dtype": change.dtype,
        "other_dtype": change.other_dtype,
        "shape": change.shape and list(change.shape),
        "other_shape": change.other_shape and list(change.other_shape),
        "comparison": figures,
        "notes": list(change.notes),
    }


def _plain_json(change: Change) -> dict[str, Any]:
    assert change.values is not None
    values = [_json_value(value) for value in change.values]
    return {"kinds": list(change.kinds), "path": change.path, "other": change.other, "values": values}


def _json_value(value: Any) -> Any:
    """A plain value for JSON: the first bytes as hex digits, and other types that JSON lacks as text."""
    if isinstance(value, bytes | bytearray):
        return value[:_MAX_BYTES].hex()
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    plain = plain_value(value)
    return changed_value_text(value) if isinstance(plain, str) and plain == f"<{type(value).__name__}>" else plain
