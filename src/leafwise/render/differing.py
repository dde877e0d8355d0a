"""What `lw.diff` found, as an outline in which equal parts close and repeated changes fold, and as plain data."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from leafwise.core.comparing import Comparison, together
from leafwise.core.doc import Doc, Line, Span, Style
from leafwise.core.leaf import shape_text
from leafwise.core.path import quote, split_names
from leafwise.inspect.diff.changes import KINDS, Change, nonfinite_text
from leafwise.inspect.diff.difference import Diff
from leafwise.render.measuring import share_text
from leafwise.render.outline import FOLD_FROM, MAX_LINES, follows, plural, value_text
from leafwise.render.plain import plain_value
from leafwise.render.planning import proposed

_MAX_REMARKS = 6  # of each kind, below the outline
_MAX_SAID = 60  # characters of what an object says of itself
_MAX_BYTES = 64  # that JSON tells of a plain value
_HEADER = ("", "relative L2", "cosine", "largest", "changed")
_STYLES: dict[str, Style] = {"changed": "warn", "removed": "warn", "added": "tie", "unknown": "warn", "same": "dim"}


class _Node:
    """A step of paths: the changes that end here, and what goes on below."""

    __slots__ = ("below", "changes", "counts", "look", "name", "plain")

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes: list[Change] = []
        self.below: dict[str, _Node] = {}
        self.counts: Counter[str] = Counter()  # by what the changes from here on are called
        self.plain = 0  # how many of those are plain values
        self.look: object = None  # which nodes that look alike have in common

    @property
    def is_same(self) -> bool:
        return self.counts.keys() == {"same"}


class _Run(NamedTuple):
    """Nodes that are drawn as one: siblings that look alike, and, inside of others that do, those of each."""

    siblings: list[_Node]
    nodes: list[_Node]
    front: str = ""

    @property
    def label(self) -> tuple[Span, ...]:
        first, last, times = self.siblings[0], self.siblings[-1], len(self.siblings)
        name = self.front + quote(first.name) + (f" … {quote(last.name)}" if times > 1 else "")
        if first.is_same:
            return (Span(name, "dim"),)
        return (Span(name, "name"), Span(f"  ×{times:,}", "dim"))[: 1 + (times > 1)]


def diff_doc(diff: Diff, *, depth: int | None = None, full: bool = False) -> Doc:
    """A line for each leaf that differs, below the places where it stands; and what is said of all of them."""
    footer = _footer(diff)
    if diff.same and not full:
        return Doc([], footer, wraps=True)
    outline = _Outline(diff, fold=not full)
    chosen = full or depth is not None
    lines = list(outline.lines(depth)) if chosen else outline.fitting(MAX_LINES - len(footer))
    return Doc(lines, footer, right=frozenset({1, 2, 3, 4}), drop=(2, 3, 4), wraps=True)


class _Outline:
    def __init__(self, diff: Diff, fold: bool) -> None:
        self.fold = fold
        self.title = " → ".join(diff.names)
        self.root = _grown(diff)

    def fitting(self, room: int) -> list[Line]:
        """As many levels as fit; at least one, cut where even that is too long."""
        # Every level that opens something adds a line: so there are no more steps than there is room.
        best, depth = None, 1
        while (lines := self._upto(depth, room)) is not None and (best is None or len(lines) > len(best)):
            best, depth = lines, depth + 1
        if best is not None:
            return best
        every = list(self.lines(1))
        more = f"… {len(every) - room + 1:,} more; text(full=True) shows all"
        return [*every[: room - 1], Line(1, (Span(more, "dim"),))]

    def _upto(self, depth: int, room: int) -> list[Line] | None:
        lines = list(islice(self.lines(depth), room + 1))
        return None if len(lines) > room else lines

    def lines(self, depth: int | None) -> Iterator[Line]:
        """The lines down to a depth. Not recursive: containers may be nested thousands deep."""
        yield Line(0, (Span(self.title, "type"),), tuple(Span(name, "dim") for name in _HEADER))
        if depth == 0:
            yield _closed_line(1, (Span("all of it", "name"),), [self.root])
            return
        stack = [iter(self._runs([self.root]))]
        while stack:
            level = len(stack)
            for run in stack[-1]:
                if run.nodes[0].is_same and self.fold:
                    yield Line(level, run.label, (), (Span(f"{_things(run.nodes)} same", "dim"),))
                    continue
                run = self._through(run)
                below = self._runs(run.nodes)
                closed = depth is not None and level >= depth
                if below:
                    yield _closed_line(level, run.label, run.nodes) if closed else Line(level, run.label)
                yield from self._leaf_lines(level, run)
                if below and not closed:
                    stack.append(iter(below))
                    break
            else:
                stack.pop()

    def _through(self, run: _Run) -> _Run:
        """The run to draw: what holds nothing but one other run that is not the same stands on its line."""
        while len(run.nodes) == 1 and not run.nodes[0].changes:
            below = self._runs(run.nodes)
            if len(below) != 1 or (below[0].nodes[0].is_same and self.fold):
                break
            run = below[0]._replace(front=f"{run.front}{quote(run.nodes[0].name)}.")
        return run

    def _runs(self, nodes: list[_Node]) -> list[_Run]:
        """What stands below nodes that look alike: neighbours that are the same, or that repeat, as one."""
        runs: list[list[_Node]] = []
        for child in nodes[0].below.values():
            if runs and self.fold and _alike(runs[-1][-1], child):
                runs[-1].append(child)
            else:
                runs.append([child])
        found = []
        for siblings in runs:
            folds = len(siblings) >= FOLD_FROM or siblings[0].is_same
            parts = [siblings] if folds else [[one] for one in siblings]
            found += [_Run(some, [node.below[one.name] for node in nodes for one in some]) for some in parts]
        return found

    def _leaf_lines(self, level: int, run: _Run) -> Iterator[Line]:
        for number, change in enumerate(run.nodes[0].changes):
            if change.kinds != ("same",) or not self.fold:
                yield _leaf_line(level, run.label, [node.changes[number] for node in run.nodes])


def _alike(one: _Node, other: _Node) -> bool:
    return (one.is_same and other.is_same) or (follows(one.name, other.name) and one.look == other.look)


def _closed_line(level: int, label: tuple[Span, ...], nodes: list[_Node]) -> Line:
    """The line of nodes that are not opened, with what is said of all that is below."""
    every = [change for node in nodes for change in _every(node)]
    counts = Counter(change.kind for change in every)
    said = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if kind in counts)
    note = Span(f"▸ {_things(nodes)}: {said}", "dim")
    return Line(level, label, (Span(""), *_figures(every)), (note, *_nonfinite(every)))


def _things(nodes: list[_Node]) -> str:
    """How many leaves and plain values there are below nodes."""
    every, plain = sum(node.counts.total() for node in nodes), sum(node.plain for node in nodes)
    parts = [plural(every - plain, "leaf", "leaves")] if every > plain or not plain else []
    return ", ".join([*parts, plural(plain, "value", "values")] if plain else parts)


def _grown(diff: Diff) -> _Node:
    """Changes by the steps of their paths, with what is below each node counted, and a look for each."""
    root = _Node("")
    nodes = [root]
    for change in diff:
        node = root
        for name in split_names(change.path):
            child = node.below.get(name)
            if child is None:
                child = node.below[name] = _Node(name)
                nodes.append(child)
            node = child
        node.changes.append(change)
    looks: dict[object, int] = {}
    for node in reversed(nodes):  # from the bottom up: what is below a node came after it
        node.counts.update("same" if change.kinds == ("same",) else change.kind for change in node.changes)
        node.plain = sum(change.is_plain for change in node.changes)
        for child in node.below.values():
            node.counts.update(child.counts)
            node.plain += child.plain
        look = (
            tuple((change.kinds, change.is_plain) for change in node.changes),
            tuple((child.name, child.look) for child in node.below.values()),
        )
        node.look = looks.setdefault(look, len(looks))
    return root


def _every(node: _Node) -> Iterator[Change]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield from node.changes
        stack += reversed(node.below.values())


def _leaf_line(level: int, label: tuple[Span, ...], changes: list[Change]) -> Line:
    first = changes[0]
    cells = (Span(", ".join(first.kinds), _STYLES.get(first.kind, "tie")), *_figures(changes))
    notes = [Span(note, "dim") for note in _notes(changes)]
    spans = tuple(part for note in notes for part in (Span("  "), note))
    return Line(level, label, cells, (*spans, *_nonfinite(changes))[1:])


def _nonfinite(changes: list[Change]) -> tuple[Span, ...]:
    """How many values are not finite, of leaves that differ; those that changed, where any did."""
    found = together(_compared(changes))
    told = nonfinite_text(found) if found.nonfinite_changed else f"{found.nonfinite:,} not finite"
    return (Span("  "), Span(told, "warn")) if found.nonfinite else ()


def _notes(changes: list[Change]) -> Iterator[str]:
    """What is to be said of a change besides figures; of several, what they have in common."""
    first = changes[0]
    if len(changes) == 1 and first.other is not None:
        yield f"→ {first.other}"
    if first.values is not None:
        yield _values_text(first) if len(changes) == 1 else "plain values"
        if len({change.notes for change in changes}) == 1:
            yield from first.notes
        return
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
    one, other = map(_value_text, change.values)
    return {"added": other, "removed": one}.get(change.kind, f"{one} → {other}")


def _value_text(value: Any) -> str:
    """As in an outline; but objects that differ by what they say of themselves, where that is short."""
    text = value_text(value)
    if not text.startswith("<"):
        return text
    try:
        said = repr(value)
    except Exception:  # of whoever wrote the object
        return text
    return said if len(said) <= _MAX_SAID and " at 0x" not in said else text


def _figures(changes: list[Change]) -> tuple[Span, ...]:
    """Of leaves whose values differ, as if they were one."""
    found = _compared(changes)
    texts = _figure_texts(together(found)) if found else ("", "", "", "")
    return tuple(map(Span, texts))


def _compared(changes: list[Change]) -> list[Comparison]:
    return [change.comparison for change in changes if change.comparison is not None and change.comparison.changed]


def _figure_texts(found: Comparison) -> tuple[str, str, str, str]:
    cosine = "" if math.isnan(found.cosine) else f"{found.cosine:.6f}"
    return f"{found.relative_l2:.3g}", cosine, f"{found.largest:.3g}", share_text(found.changed, found.size)


def _footer(diff: Diff) -> list[tuple[Span, ...]]:
    leaves = [change for change in diff if not change.is_plain]
    plain = [change for change in diff if change.is_plain]
    parts = [_counted(leaves, "leaf", "leaves")] if leaves or not plain else []
    parts += [_counted(plain, "plain value", "plain values")] if plain else []
    style: Style = "" if diff.same else "warn"
    footer: list[tuple[Span, ...]] = [(Span(" · ".join(parts), style),)]
    figures = [change.comparison for change in leaves if change.kind == "changed" and change.comparison is not None]
    if len(figures) > 1:
        relative, cosine, largest, share = _figure_texts(together(figures))
        norms = f"relative L2 {relative}, {f'cosine {cosine}, ' if cosine else ''}largest {largest}"
        whole = (Span(f"those that changed, together: {norms}, {share} of their values"),)
        told = together(figures)
        footer.append((*whole, Span(f"; {nonfinite_text(told)}", "warn")) if told.nonfinite_changed else whole)
    if not diff.values:
        footer.append((Span("names, shapes and dtypes only: values were not compared", "dim"),))
    footer += [(Span(prefix.describe()),) for prefix in diff.prefixes]
    footer += [(Span(note, "dim"),) for note in _some(diff.notes)]
    return footer + proposed(diff.applied, diff.proposals, _MAX_REMARKS)


def _some(notes: list[str]) -> list[str]:
    more = [f"… and {len(notes) - _MAX_REMARKS:,} more"] if len(notes) > _MAX_REMARKS else []
    return notes[:_MAX_REMARKS] + more


def _counted(changes: list[Change], one: str, many: str) -> str:
    """How many there are of each kind; one that is of several counts in each."""
    words = plural(len(changes), one, many)
    if all(change.kinds == ("same",) for change in changes):
        return f"{words}, all the same" if len(changes) > 1 else f"{words}, the same" if changes else words
    counts = Counter(kind for change in changes for kind in change.kinds)
    return f"{words}: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if kind in counts)


def diff_json(diff: Diff) -> dict[str, Any]:
    """Every leaf with what became of it, and what is said of all of them; what is not a number is null."""
    return {
        "same": diff.same,
        "a": diff.names[0],
        "b": diff.names[1],
        "values": diff.values,
        "counts": diff.counts,
        "leaves": [_leaf_json(change) for change in diff if not change.is_plain],
        "plain": [_plain_json(change) for change in diff if change.is_plain],
        "prefixes": [{"a": one.source, "b": one.target, "count": one.times} for one in diff.prefixes],
        "notes": diff.notes,
        "proposals": [proposal._asdict() for proposal in diff.proposals],
        "applied": [proposal._asdict() for proposal in diff.applied],
    }


def _leaf_json(change: Change) -> dict[str, Any]:
    found = change.comparison
    figures = None
    if found is not None:
        numbers = {**found._asdict(), "relative_l2": found.relative_l2, "share": found.share}
        del numbers["scaled"]
        figures = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
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
    one, other = map(_json_value, change.values)
    return {"kinds": list(change.kinds), "path": change.path, "other": change.other, "values": [one, other]}


def _json_value(value: Any) -> Any:
    """A plain value as JSON has it; bytes as hex digits, the first of them, and what JSON lacks in words."""
    if isinstance(value, bytes | bytearray):
        return value[:_MAX_BYTES].hex()
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    found = plain_value(value)
    return _value_text(value) if isinstance(found, str) and found == f"<{type(value).__name__}>" else found
