"""Changes as a tree of path entries: unchanged parts are closed, and neighbors with the same changes are folded."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from leafwise.core.path import plural, quote, split_names
from leafwise.core.results.outline import Line, Span, Style
from leafwise.inspect.diff.changes import KINDS, Change
from leafwise.render.change_text import figures, nonfinite, notes
from leafwise.render.layout import FOLD_FROM, follows

FIGURES = ("relative L2", "cosine", "largest", "changed")
_STYLES: dict[str, Style] = {"changed": "warn", "removed": "error", "added": "tie", "unknown": "warn", "same": "dim"}


class _PathNode:
    """A node of the tree: the changes whose path ends here, and the nodes below."""

    __slots__ = ("below", "changes", "counts", "look", "name", "plain")

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes: list[Change] = []
        self.below: dict[str, _PathNode] = {}
        self.counts: Counter[str] = Counter()  # number of changes here and below, by kind
        self.plain = 0  # number of plain values among them
        self.look: object = None  # equal for nodes that are drawn the same

    @property
    def is_same(self) -> bool:
        return self.counts.keys() == {"same"}

    def every_change(self) -> Iterator[Change]:
        """The changes here and below."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield from node.changes
            stack += reversed(node.below.values())


class _NodeRun(NamedTuple):
    """Nodes that are drawn as one: similar siblings and, inside a folded node, the corresponding nodes of each."""

    siblings: list[_PathNode]
    nodes: list[_PathNode]
    prefix: str = ""

    @property
    def label(self) -> tuple[Span, ...]:
        first, last, times = self.siblings[0], self.siblings[-1], len(self.siblings)
        name = self.prefix + quote(first.name) + (f" … {quote(last.name)}" if times > 1 else "")
        if first.is_same:
            return (Span(name, "dim"),)
        return (Span(name, "name"), Span(f"  ×{times:,}", "dim"))[: 1 + (times > 1)]


class ChangeTree:
    """Changes as an outline; with `fold`, unchanged parts are closed and repeated changes are folded."""

    def __init__(self, changes: Iterable[Change], title: str, fold: bool) -> None:
        self.fold = fold
        self.title = title
        self._root = _grown(changes)

    def lines(self, depth: int | None) -> Iterator[Line]:
        """The lines down to a depth. Not recursive: containers may be nested thousands deep."""
        yield Line(0, (Span(self.title, "type"),), tuple(Span(name, "dim") for name in ("", *FIGURES)))
        if depth == 0:
            yield _closed_line(1, (Span("total", "name"),), [self._root])
            return
        stack = [iter(self._runs([self._root]))]
        while stack:
            level = len(stack)
            for run in stack[-1]:
                if run.nodes[0].is_same and self.fold:
                    yield Line(level, run.label, (), (Span(f"{_counted(run.nodes)} same", "dim"),))
                    continue
                run = self._through(run)
                below = self._runs(run.nodes)
                closed = depth is not None and level >= depth
                if below:
                    yield _closed_line(level, run.label, run.nodes) if closed else Line(level, run.label)
                for number, change in enumerate(run.nodes[0].changes):
                    if change.kinds != ("same",) or not self.fold:
                        yield _leaf_line(level, run.label, [node.changes[number] for node in run.nodes])
                if below and not closed:
                    stack.append(iter(below))
                    break
            else:
                stack.pop()

    def _through(self, run: _NodeRun) -> _NodeRun:
        """The run to draw: a node that contains only one other run, which changed, shares a line with it."""
        while len(run.nodes) == 1 and not run.nodes[0].changes:
            below = self._runs(run.nodes)
            if len(below) != 1 or (below[0].nodes[0].is_same and self.fold):
                break
            run = below[0]._replace(prefix=f"{run.prefix}{quote(run.nodes[0].name)}.")
        return run

    def _runs(self, nodes: list[_PathNode]) -> list[_NodeRun]:
        """The runs below similar nodes; neighbors that are unchanged, or that repeat, form one run."""
        neighbors: list[list[_PathNode]] = []
        for child in nodes[0].below.values():
            if neighbors and self.fold and _similar(neighbors[-1][-1], child):
                neighbors[-1].append(child)
            else:
                neighbors.append([child])
        runs = []
        for run in neighbors:
            folds = len(run) >= FOLD_FROM or run[0].is_same
            parts = [run] if folds else [[child] for child in run]
            runs += [_NodeRun(part, [node.below[child.name] for node in nodes for child in part]) for part in parts]
        return runs


def _grown(changes: Iterable[Change]) -> _PathNode:
    """The root of a tree of changes, in which every node has its counts and its look."""
    root = _PathNode("")
    nodes = [root]
    for change in changes:
        node = root
        for name in split_names(change.path):
            child = node.below.get(name)
            if child is None:
                child = node.below[name] = _PathNode(name)
                nodes.append(child)
            node = child
        node.changes.append(change)
    looks: dict[object, int] = {}
    for node in reversed(nodes):  # from the bottom up, since nodes below come after their parents
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


def _similar(a: _PathNode, b: _PathNode) -> bool:
    return (a.is_same and b.is_same) or (follows(a.name, b.name) and a.look == b.look)


def _closed_line(level: int, label: tuple[Span, ...], nodes: list[_PathNode]) -> Line:
    """The line of closed nodes, with counts and figures for everything below."""
    changes = [change for node in nodes for change in node.every_change()]
    counts = Counter(change.kind for change in changes)
    kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if kind in counts)
    note = Span(f"▸ {_counted(nodes)}: {kinds}", "dim")
    return Line(level, label, (Span(""), *figures(changes)), (note, *nonfinite(changes)))


def _counted(nodes: list[_PathNode]) -> str:
    """The number of leaves and plain values below nodes."""
    total, plain = sum(node.counts.total() for node in nodes), sum(node.plain for node in nodes)
    parts = [plural(total - plain, "leaf", "leaves")] if total > plain or not plain else []
    return ", ".join([*parts, plural(plain, "value", "values")] if plain else parts)


def _leaf_line(level: int, label: tuple[Span, ...], changes: list[Change]) -> Line:
    first = changes[0]
    cells = (Span(", ".join(first.kinds), _STYLES.get(first.kind, "tie")), *figures(changes))
    spans = tuple(part for note in notes(changes) for part in (Span("  "), Span(note, "dim")))
    return Line(level, label, cells, (*spans, *nonfinite(changes))[1:])
