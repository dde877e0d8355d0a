"""A tree as an outline: what `print(tree)` and a notebook show.

Runs of identical subtrees fold into one (`layers.0 … 60  ×61`), a shared leaf is charged where it comes
first, and where the whole is too long, deeper levels close.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.columns import Facts
from leafwise.core.doc import Doc, Line, Span
from leafwise.core.leaf import shape_text
from leafwise.core.path import escape, listed, quote
from leafwise.core.tree import Counts

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

MAX_LINES = 60  # of a picture that nobody gave a depth for, footer included
_FOOTER_LINES = 8
FOLD_FROM = 3  # how many alike make a run
_VALUE_CHARS = 60
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class _Sums(NamedTuple):
    """What is below a node, each leaf charged once."""

    parameters: int = 0
    trainable: int = 0
    frozen: int = 0
    buffers: int = 0
    state: int = 0
    nbytes: int = 0
    leaves: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, facts: Facts) -> "_Sums":
        spec, kind, _ = facts
        trainable = spec.trainable if kind == "parameter" else None
        return cls(
            parameters=spec.size if kind == "parameter" else 0,
            trainable=spec.size if trainable else 0,
            frozen=spec.size if trainable is False else 0,
            buffers=spec.size if kind == "buffer" else 0,
            state=spec.size if kind == "state" else 0,
            nbytes=spec.nbytes,
            leaves=1,
            unknown=int(spec.shape is None),
        )

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(*map(add, self, other))


class _Run(NamedTuple):
    """Siblings that look alike, as nodes or as rows; most are alone."""

    members: Sequence[int]


def tree_doc(tree: "Tree", *, depth: int | None = None, full: bool = False, max_lines: int = MAX_LINES) -> Doc:
    """The outline of a tree: `depth` levels of it, or `full`, or as deep as fits."""
    outline = _Outline(tree, fold=not full)
    footer = outline.footer()
    chosen = full or depth is not None
    lines = list(outline.lines(depth)) if chosen else outline.fitting(max_lines - _FOOTER_LINES)
    return Doc(lines, footer, right=frozenset({2, 3}), drop=(3, 1))


class _Outline:
    def __init__(self, tree: "Tree", fold: bool) -> None:
        self.tree = tree
        self.columns = columns = tree.columns
        self.fold = fold
        self.nodes = tree.node_numbers()
        self.selected = set() if tree.is_whole else set(self.nodes)
        self.facts = dict(zip(tree.rows, columns.facts(tree.rows), strict=True))
        # Names whose leaf is charged elsewhere in this tree.
        self.uncharged = self.facts.keys() - set(tree.first_rows) if columns.ties else set()
        self.tied_rows = sorted(columns.ties)
        self.tied_nodes = sorted({columns.row_nodes[row] for row in self.tied_rows})
        self.distinct: dict[int, Facts] = {}  # by identity, as they are met
        self.looks, self.sums = self._compare()
        self.devices = {facts.spec.device for facts in self.distinct.values()}

    # -- what there is ---------------------------------------------------------------------------------

    def _compare(self) -> tuple[list[int], list[_Sums]]:
        """A number for each node, which subtrees that look alike have in common; and what is below, by that number.

        A node's number starts from its type and takes in, one after another, its leaves, its plain values
        and its children. Chained like that it needs no list for each node, of which there may be a million;
        and sums are made once for each look, not once for each node.
        """
        columns, uncharged = self.columns, self.uncharged
        types = {cls: number for number, cls in enumerate(set(map(type, columns.node_objects)))}
        looks = [types[type(obj)] for obj in columns.node_objects]
        sums = [_Sums()] * len(types)
        row_nodes, row_names = columns.row_nodes, columns.row_names
        names, parents = columns.node_names, columns.node_parents
        chained: dict[tuple[int, str, object], int] = {}
        for node, name, what, added in chain(
            # A leaf that is charged elsewhere looks otherwise than one that is charged here.
            (
                (row_nodes[row], row_names[row], ~id(facts), None)
                if row in uncharged
                else (row_nodes[row], row_names[row], id(facts), facts)
                for row, facts in self.facts.items()
            ),
            ((row_nodes[row], row_names[row], "shared", None) for row in columns.further_rows),
            ((node, name, value_text(value), None) for node, name, value in columns.scalars),
            ((node, "", first, None) for node, first in columns.repeats.items() if self._points_back(node)),
            # From the bottom up, each node when all that is below it has been taken in.
            ((parents[node], names[node], looks[node], looks[node]) for node in reversed(self.nodes[1:])),
        ):
            key = looks[node], name, what
            number = chained.get(key)
            if number is None:
                number = chained[key] = len(sums)
                sums.append(sums[looks[node]].plus(sums[added] if isinstance(added, int) else self._charge(added)))
            looks[node] = number
        return looks, sums

    def _charge(self, facts: Facts | None) -> _Sums:
        if facts is None:
            return _Sums()
        self.distinct[id(facts)] = facts
        return _Sums.of(facts)

    def _children(self, node: int) -> list[int]:
        children = self.columns.children(node)
        return list(children) if self.tree.is_whole else [child for child in children if child in self.selected]

    def _own_rows(self, node: int) -> list[int]:
        return [row for row in self.columns.own_rows(node) if row in self.facts]

    def _points_back(self, node: int) -> bool:
        """Whether a node is drawn as a reference: the same object came before, here in this tree."""
        first = self.columns.repeats.get(node)
        if first is None or node == self.nodes[0]:
            return False
        if node in self.columns.unlisted:
            return True
        a, b = self.columns.row_ranges[node]
        return a < b and first >= self.nodes[0]

    def footer(self) -> list[tuple[Span, ...]]:
        below = self.sums[self.looks[self.nodes[0]]]._asdict()
        memory = below.pop("nbytes") - self.tree.bytes_shared()
        counts = Counts(names=len(self.facts), bytes=memory, **below)
        return _footer(self.tree, counts, self.distinct.values())

    # -- lines -----------------------------------------------------------------------------------------

    def fitting(self, room: int) -> list[Line]:
        """As many levels as fit; at least one, cut where even that is too long."""
        depth, best = 0, self._upto(0, room)
        step = 1
        while best is not None:
            # By doubling, then by halving: containers may be nested thousands deep.
            deeper = self._upto(depth + step, room)
            if deeper is not None and len(deeper) == len(best):
                return best
            if deeper is not None:
                depth, best, step = depth + step, deeper, step * 2
            elif step > 1:
                step //= 2
            else:
                break
        if depth and best is not None:
            return best
        lines = list(islice(self.lines(1), room))
        left = sum(1 for _ in self.lines(1)) - (room - 1)
        return [*lines[: room - 1], Line(1, (Span(f"… {left:,} more; text(full=True) shows all", "dim"),))]

    def _upto(self, depth: int, room: int) -> list[Line] | None:
        """The lines down to a depth, unless they are more than there is room for."""
        lines = list(islice(self.lines(depth), room + 1))
        return None if len(lines) > room else lines

    def lines(self, depth: int | None) -> Iterator[Line]:
        """The lines down to a depth. Not recursive: containers may be nested thousands deep."""
        stack: list[Iterator[tuple[str, _Run]]] = [iter([("node", _Run([self.nodes[0]]))])]
        while stack:
            level = len(stack) - 1
            for what, run in stack[-1]:
                if what == "row":
                    yield self._leaf_line(level, run)
                    continue
                if what == "value":
                    yield self._value_line(level, *run.members)
                    continue
                node, members, front = self._through(run)
                items = [] if self._points_back(node) else self._items(node)
                closed = depth is not None and level >= depth and bool(items)
                yield self._node_line(level, node, members, front, closed)
                if items and not closed:
                    stack.append(iter(items))
                    break
            else:
                stack.pop()

    def _through(self, run: _Run) -> tuple[int, Sequence[int], str]:
        """The run to draw: where a node holds nothing but one long run, that run, under both names."""
        node = run.members[0]
        if len(run.members) > 1 or node == self.nodes[0] or self._points_back(node):
            return node, run.members, ""
        items = self._items(node)
        if len(items) == 1 and items[0][0] == "node" and len(items[0][1].members) > 1:
            members = items[0][1].members
            return members[0], members, quote(self.columns.node_names[node]) + "."
        return node, run.members, ""

    def _items(self, node: int) -> list[tuple[str, _Run]]:
        """What stands below a node: its plain values, its leaves, its children."""
        columns = self.columns
        items: list[tuple[str, _Run]] = []
        wrapped = self._wrapped(node)
        for inner in wrapped:
            if self.tree.is_whole:
                values = columns.own_scalars.get(inner, ())
                items += [("value", _Run([inner, number])) for number in range(len(values))]
            items += [("row", run) for run in self._runs(self._own_rows(inner), columns.row_names, self._rows_alike)]
        children = [child for inner in wrapped for child in self._children(inner) if child not in wrapped]
        items += [("node", run) for run in self._runs(children, columns.node_names, self._nodes_alike)]
        return items

    def _wrapped(self, node: int) -> list[int]:
        """A node and, where it is a wrapper, what it wraps; they are drawn as one."""
        return self.columns.layers(node) if self.columns.wrapped else [node]

    def _runs(self, members: list[int], names: Sequence[str], alike: Any) -> list[_Run]:
        if not self.fold or len(members) < FOLD_FROM:
            return [_Run([member]) for member in members]
        runs: list[list[int]] = []
        for member in members:
            last = runs[-1][-1] if runs else None
            if last is not None and follows(names[last], names[member]) and alike(last, member):
                runs[-1].append(member)
            else:
                runs.append([member])
        short = ([[member] for member in run] if len(run) < FOLD_FROM else [run] for run in runs)
        return [_Run(run) for run in chain.from_iterable(short)]

    def _rows_alike(self, a: int, b: int) -> bool:
        ties, further = self.columns.ties, self.columns.further_rows
        return self.facts[a] is self.facts[b] and not any(row in ties or row in further for row in (a, b))

    def _nodes_alike(self, a: int, b: int) -> bool:
        """Equal to look at, and tied alike: to the same leaves outside, or to the same places inside."""
        if self.looks[a] != self.looks[b]:
            return False
        first_tied = bisect_left(self.tied_nodes, a)
        if first_tied == len(self.tied_nodes) or self.tied_nodes[first_tied] >= self.columns.node_ends[a]:
            return True
        start_a, stop_a = self.columns.row_ranges[a]
        start_b, _ = self.columns.row_ranges[b]
        ties = self.columns.ties
        at = bisect_left(self.tied_rows, start_a)
        while at < len(self.tied_rows) and self.tied_rows[at] < stop_a:
            row = self.tied_rows[at]
            leaf_a, leaf_b = ties[row], ties[row - start_a + start_b]
            if leaf_a != leaf_b and leaf_a - start_a != leaf_b - start_b:
                return False
            at += 1
        return True

    def _node_line(self, level: int, node: int, members: Sequence[int], front: str, closed: bool) -> Line:
        columns = self.columns
        wrapped = self._wrapped(node)
        label: list[Span] = []
        if level:
            label.append(Span(front + self._run_name(members, columns.node_names), "name"))
        type_name = columns.type_name(wrapped[-1])
        if type_name:
            label += [Span("  " if label else ""), Span(type_name, "type")]
        if len(wrapped) > 1:
            label.append(Span(" in " + ", ".join(columns.type_name(w) for w in wrapped[:-1]), "dim"))
        if not label:  # a node that is only the front of some names
            label.append(Span(quote(columns.node_names[node]) if node else "(empty)", "name"))
        note: list[Span] = []
        if len(members) > 1:
            label.append(Span(f"  ×{len(members):,}", "dim"))
        if self._points_back(node):
            to = columns.node_text(columns.repeats[node]) or "the root"
            return Line(level, (*label, Span("  → " + to, "tie")))
        below = self.sums[self.looks[node]]
        parameters, nbytes, leaves = below.parameters, below.nbytes, below.leaves
        if len(members) > 1 and parameters:
            note.append(Span(f"each {parameters:,}", "dim"))
        if closed:
            note.append(Span(("  " if note else "") + f"▸ {plural(leaves, 'leaf', 'leaves')}", "dim"))
        total = f"{parameters * len(members):,}" if parameters else ""
        memory = bytes_text(nbytes * len(members))
        cells = (Span(""), Span(""), Span(total, "number"), Span(memory, "dim"))
        return Line(level, tuple(label), cells, tuple(note))

    def _leaf_line(self, level: int, run: _Run) -> Line:
        columns = self.columns
        row = run.members[0]
        times = len(run.members)
        spec, kind, persistent = self.facts[row]
        label = [Span(self._run_name(run.members, columns.row_names), "name")]
        if times > 1:
            label.append(Span(f"  ×{times:,}", "dim"))
        notes = [Span(f"each {spec.size:,}", "dim")] if times > 1 else []
        if row in columns.ties:
            to = columns.row_text(columns.ties[row]) + columns.row_op(row).describe()
            notes.append(Span("→ " + to, "tie"))
        elif row in columns.further_rows:
            others = columns.further_rows[row]
            also = ", ".join(columns.row_text(other) for other in others[:2])
            more = f" and {len(others) - 2:,} more" if len(others) > 2 else ""
            notes.append(Span(f"also {also}{more}", "tie"))
        if kind == "buffer":
            notes.append(Span("buffer" if persistent else "buffer, not saved", "dim"))
        if kind != "state" and spec.trainable is False:
            notes.append(Span("frozen", "warn"))
        if spec.shape is None:
            notes.append(Span("shape not known yet", "warn"))
        if len(self.devices) > 1:
            notes.append(Span(spec.device, "dim"))
        charged = row not in self.uncharged
        cells = (
            Span(shape_text(spec.shape)),
            Span(spec.dtype, "dim"),
            Span(
                f"{spec.size * times:,}" if charged and kind == "parameter" and spec.shape is not None else "", "number"
            ),
            Span(bytes_text(spec.nbytes * times) if charged else "", "dim"),
        )
        spaced = [part for note in notes for part in (Span("  "), note)][1:]
        return Line(level, tuple(label), cells, tuple(spaced))

    def _value_line(self, level: int, node: int, number: int) -> Line:
        name, value = self.columns.own_scalars[node][number]
        return Line(level, (Span(quote(name), "name"), Span(" = ", "dim"), Span(value_text(value))))

    def _run_name(self, members: Sequence[int], names: Sequence[str]) -> str:
        first = quote(names[members[0]])
        return first if len(members) == 1 else f"{first} … {quote(names[members[-1]])}"


def _footer(tree: "Tree", counts: Counts, facts: Collection[Facts]) -> list[tuple[Span, ...]]:
    parts = []
    if counts.parameters or not (counts.buffers or counts.state):
        words = plural(counts.parameters, "parameter", "parameters")
        if counts.trainable and counts.frozen:
            words += f" ({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
        elif counts.trainable or counts.frozen:
            every = counts.trainable + counts.frozen == counts.parameters
            how = "trainable" if counts.trainable else "frozen"
            words += f", all {how}" if every else f" ({counts.trainable + counts.frozen:,} {how})"
        elif any(one.spec.trainable for one in facts):
            words += ", all trainable"  # none has a shape yet
        parts.append(words)
    if counts.buffers:
        parts.append(f"{counts.buffers:,} in buffers")
    if counts.state:
        parts.append(f"{counts.state:,} in state")
    leaves = plural(counts.leaves, "leaf", "leaves")
    parts.append(leaves if counts.names == counts.leaves else f"{leaves} under {counts.names:,} names")
    parts.append(bytes_text(counts.bytes) or "0 B")
    devices = {one.spec.device for one in facts}
    if len(devices) == 1 and devices != {"cpu"}:
        parts.append(f"on {devices.pop()}")
    footer: list[tuple[Span, ...]] = [(Span(" · ".join(parts)),)]
    if counts.unknown:
        footer.append(
            (Span(f"{plural(counts.unknown, 'leaf', 'leaves')} without a shape until the first forward", "warn"),)
        )
    footer += [(Span(line, "warn"),) for line in _out_of_reach(tree)]
    footer += [(Span(str(undone), "warn"),) for undone in tree.undone[:2]]
    for shared in tree.shared_memory[:2]:
        paths = [str(leaf.path) for leaf in shared.leaves[:4]]
        more = f" and {len(shared.leaves) - 4:,} more" if len(shared.leaves) > 4 else ""
        footer.append((Span(f"{shared.reason}: {', '.join(paths)}{more}", "warn"),))
    return footer


def _out_of_reach(tree: "Tree") -> list[str]:
    """What verbs refuse to look at, a line for each reason."""
    columns = tree.columns
    by_reason: dict[str, list[str]] = {}
    for node, reason in tree.unlisted().items():
        by_reason.setdefault(reason, []).append(columns.node_text(node) or "this")
    for row, reason in tree.not_understood().items():
        by_reason.setdefault(reason, []).append(columns.row_text(row))
    return [f"not understood: {listed(paths, 3)}: {reason}" for reason, paths in by_reason.items()]


def bytes_text(count: int) -> str:
    """A number of bytes to read; nothing for none.

    >>> bytes_text(484), bytes_text(1536), bytes_text(5_000_000_000)
    ('484 B', '1.5 KiB', '4.7 GiB')
    """
    if count < 1024:
        return f"{count} B" if count else ""
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def value_text(value: Any) -> str:
    """A plain value on one line; an object nobody walks by its type."""
    readable = isinstance(value, str | int | float | complex | bool | bytes | list | tuple | range | None)
    if not readable and not _is_small(value):
        return f"<{escape(type(value).__name__)}>"
    if isinstance(value, list | tuple):
        value = value[:_VALUE_CHARS]
    try:
        text = escape(repr(value if not isinstance(value, str | bytes) else value[: 2 * _VALUE_CHARS]))
    except ValueError:  # Python writes no numbers of more than some thousand digits
        text = f"<{type(value).__name__}, too long to write>"
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


def _is_small(value: Any) -> bool:
    """Whether a value of some other type prints itself in a few words: a scalar of NumPy, a small set."""
    if type(value) in (set, frozenset, dict):
        return len(value) < _VALUE_CHARS
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()


def follows(a: str, b: str) -> bool:
    """Whether a name is a number, and that after another."""
    return a.isdecimal() and b.isdecimal() and max(len(a), len(b)) < 10 and int(b) == int(a) + 1


def plural(count: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{count:,} {one if count == 1 else many}"
