"""The texts about changes: how much values differ, and notes on shapes, dtypes and names."""

import math
from collections.abc import Iterator
from typing import Any

from leafwise.core.leaf import shape_text
from leafwise.core.opaque import Opaque
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.core.results.outline import Span
from leafwise.inspect.diff.changes import Change, nonfinite_text
from leafwise.render.phrases import value_text
from leafwise.render.results.stats import share_text

_MAX_REPR = 60  # characters of the repr of an object


def figures(changes: list[Change]) -> tuple[Span, ...]:
    """How much the values of leaves differ, as if they were one leaf; empty cells if no values differ."""
    comparisons = _differing(changes)
    return tuple(map(Span, figure_texts(merged_comparisons(comparisons)) if comparisons else ("", "", "", "")))


def figure_texts(comparison: Comparison) -> tuple[str, str, str, str]:
    """Relative L2, cosine, the largest difference, and the share of values that changed."""
    cosine = "" if math.isnan(comparison.cosine) else f"{comparison.cosine:.6f}"
    share = share_text(comparison.changed, comparison.size)
    return f"{comparison.relative_l2:.3g}", cosine, f"{comparison.largest:.3g}", share


def nonfinite(changes: list[Change]) -> tuple[Span, ...]:
    """How many values of the changed leaves are not finite; only those that changed, if any did."""
    whole = merged_comparisons(_differing(changes))
    text = nonfinite_text(whole) if whole.nonfinite_changed else f"{whole.nonfinite:,} not finite"
    return (Span("  "), Span(text, "warn")) if whole.nonfinite else ()


def _differing(changes: list[Change]) -> list[Comparison]:
    return [change.comparison for change in changes if change.comparison is not None and change.comparison.changed]


def notes(changes: list[Change]) -> Iterator[str]:
    """The notes on a change besides its figures; for several changes, the notes that they share."""
    first = changes[0]
    if len(changes) == 1 and first.other is not None:
        yield f"→ {first.other}"
    if first.values is not None:
        yield _values_text(first) if len(changes) == 1 else "plain values"
    else:
        if len({(change.shape, change.other_shape, change.dtype, change.other_dtype) for change in changes}) == 1:
            yield from _facts(first)
        if "reshaped" in first.kinds and first.comparison is not None and not first.comparison.changed:
            yield "same values in order"
    if len({change.notes for change in changes}) == 1:
        yield from first.notes


def _facts(change: Change) -> Iterator[str]:
    if change.kind in ("added", "removed"):
        dtype, shape = change.dtype or change.other_dtype, change.shape if change.dtype else change.other_shape
        yield f"{shape_text(shape)} {dtype}"
        return
    if change.shape != change.other_shape:
        yield f"{shape_text(change.shape)} → {shape_text(change.other_shape)}"
    if change.dtype != change.other_dtype:
        yield f"{change.dtype} → {change.other_dtype}"


def _values_text(change: Change) -> str:
    assert change.values is not None
    before, after = map(changed_value_text, change.values)
    if before == after and change.kind == "changed":
        before, after = _where_different(*change.values, before)
    return {"added": after, "removed": before}.get(change.kind, f"{before} → {after}" if after else before)


def _where_different(before: Any, after: Any, text: str) -> tuple[str, str]:
    """Two values that look the same when they are shortened: from the place on where they differ."""
    if isinstance(before, Opaque) and isinstance(after, Opaque):
        names = str(before), str(after)
        return names if names[0] != names[1] else (f"{text}, with other contents", "")
    for kind, is_list in ((str, False), (bytes, False), (list | tuple, True)):
        if isinstance(before, kind) and isinstance(after, kind):
            pairs = zip(before, after, strict=False)
            same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
            item = f"item {same:,}" if is_list else f"character {same:,}"
            return f"from {item} on: {value_text(before[same:])}", value_text(after[same:])
    return text, text


def changed_value_text(value: Any) -> str:
    """A plain value as in an outline, but an object by its repr if that is short and not just an address."""
    text = value_text(value)
    if not text.startswith("<"):
        return text
    try:
        described = repr(value)
    except Exception:  # the repr of a foreign object may raise anything
        return text
    return described if len(described) <= _MAX_REPR and " at 0x" not in described else text
