"""The result of `t.top()`, as a table and as plain data."""

from typing import Any

from leafwise.core.leaf import shape_text
from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.core.results.totals import LargeLeaf, Largest
from leafwise.render.data import TableRows
from leafwise.render.phrases import bytes_text
from leafwise.render.results.stats import share_text

_COLUMNS = ("shape", "dtype", "bytes", "share")
_RIGHT = frozenset({2, 3})


def to_doc(largest: Largest, *, full: bool = False) -> Doc:
    """One line per leaf, the largest first, and what they are of the whole."""
    lines = [_line(leaf, largest.bytes, full) for leaf in largest]
    size = sum(leaf.bytes for leaf in largest)
    summary = f"{len(largest):,} of {plural(largest.leaves, 'leaf', 'leaves')}"
    if len(largest) < largest.leaves:
        share = share_text(min(size, largest.bytes), largest.bytes)
        summary += f" · {bytes_text(size) or '0 B'} of {bytes_text(largest.bytes) or '0 B'} ({share})"
    else:
        summary = f"{plural(largest.leaves, 'leaf', 'leaves')} · {bytes_text(largest.bytes) or '0 B'}"
    return Doc(lines, [(Span(summary),), *shared_line(largest.shared_bytes)], _RIGHT, (1, 0), columns=_COLUMNS)


def _line(leaf: LargeLeaf, whole: int, full: bool) -> Line:
    shape = "" if leaf.shape is None else shape_text(leaf.shape)
    cells = (
        Span(shape),
        Span(leaf.dtype, "dim"),
        Span(bytes_text(leaf.bytes) or "0 B", "number"),
        Span(share_text(leaf.bytes, whole) if leaf.bytes else "0"),
    )
    # A note is never dropped, so it must be short: the other names of a tied leaf may be long.
    tied = "" if not leaf.tied else f"→ {', '.join(leaf.tied)}" if full else f"{len(leaf.tied) + 1} names"
    return Line(0, (Span(leaf.path, "name"),), cells, (Span(tied, "tie"),) if tied else ())


def shared_line(nbytes: int) -> list[tuple[Span, ...]]:
    """A line about memory that several leaves share, if there is any."""
    text = f"{bytes_text(nbytes)} of memory is shared by several leaves, and counted once in the total"
    return [(Span(text, "dim"),)] if nbytes else []


def to_table(largest: Largest) -> TableRows:
    """A row for each leaf, the largest first."""
    return TableRows(list(LargeLeaf._fields), [leaf._asdict() for leaf in largest], "path")


def to_json(largest: Largest) -> dict[str, Any]:
    """The leaves, and the size of the tree."""
    return {
        "largest": [
            {**leaf._asdict(), "shape": leaf.shape and list(leaf.shape), "tied": list(leaf.tied)} for leaf in largest
        ],
        "leaves": largest.leaves,
        "bytes": largest.bytes,
        "shared_bytes": largest.shared_bytes,
    }
