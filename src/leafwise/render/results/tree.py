"""A tree as an outline, shown by `print(tree)` and in a notebook, and as plain data.

Runs of identical subtrees are folded into one (`layers.0 … 60  ×61`), a tied leaf is counted at its first name, and
deeper levels are closed if the outline would be too long.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leafwise.core.columns import Section
from leafwise.core.leaf import shape_text
from leafwise.core.parts import node_numbers
from leafwise.core.path import plural, quote
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.render.data import TableRows, plain_value, shared_memory_json, undone_json
from leafwise.render.layout import FOLD_FROM, MAX_LINES, fitting, follows
from leafwise.render.phrases import SECTIONS, bytes_text, value_text
from leafwise.render.subtrees import Subtrees
from leafwise.render.tree_footer import footer_of, metadata_line, metadata_nodes

if TYPE_CHECKING:
    from leafwise.core.leaf import Leaf
    from leafwise.core.memory.sharding import Sharding
    from leafwise.core.tree import Tree

_FOOTER_LINES = 8
_COLUMNS = ("shape", "dtype", "parameters", "bytes")
_KEPT = 200  # nodes whose lines are kept
_NOTEBOOK_LINES = 2_000  # a notebook shows everything, with deeper levels closed


def to_doc(tree: "Tree", *, depth: int | None = None, full: bool = False, max_lines: int = MAX_LINES) -> Doc:
    """The outline of a tree: `depth` levels, everything if `full`, or as many levels as fit."""
    outline = _TreeOutline(tree, fold=not full)
    footer = outline.footer()
    chosen = full or depth is not None
    lines = list(outline.lines(depth)) if chosen else fitting(outline.lines, max_lines - _FOOTER_LINES)
    return Doc(lines, footer, right=frozenset({2, 3}), drop=(3, 1, 0), columns=_COLUMNS)


def to_html(tree: "Tree") -> str:
    from leafwise.render.html import html

    return html(to_doc(tree, max_lines=_NOTEBOOK_LINES))


class _OutlineItem(NamedTuple):
    """A line to draw below a node: a node, a row, or a plain value (its node, and its index among the values of that
    node). Several nodes or rows are similar neighbors, drawn as one."""

    kind: Literal["node", "row", "value"]
    members: Sequence[int]


class _TreeOutline:
    def __init__(self, tree: "Tree", fold: bool) -> None:
        self.tree = tree
        self.columns = tree.columns
        self.fold = fold
        self.subtrees = Subtrees(tree)
        self._last_items: dict[int, list[_OutlineItem]] = {}
        self.metadata = [] if not fold else metadata_nodes(tree)
        self.devices = {facts.spec.device for facts in self.subtrees.distinct_facts}
        self.shardings = {facts.spec.split for facts in self.subtrees.distinct_facts}

    def footer(self) -> list[tuple[Span, ...]]:
        return footer_of(self.tree, self.subtrees) + [metadata_line(self.columns, node) for node in self.metadata]

    def lines(self, depth: int | None) -> Iterator[Line]:
        """The lines down to a depth. Not recursive: containers may be nested thousands deep."""
        stack: list[Iterator[_OutlineItem]] = [iter([_OutlineItem("node", [self.subtrees.root])])]
        while stack:
            level = len(stack) - 1
            for kind, members in stack[-1]:
                if kind == "row":
                    yield self._leaf_line(level, members)
                    continue
                if kind == "value":
                    yield self._value_line(level, *members)
                    continue
                node, members, prefix = self._through(members)
                items = [] if self.subtrees.points_back(node) else self._items(node)
                closed = depth is not None and level >= depth and bool(items)
                yield self._node_line(level, node, members, prefix, closed)
                if items and not closed:
                    stack.append(iter(items))
                    break
            else:
                stack.pop()

    def _through(self, members: Sequence[int]) -> tuple[int, Sequence[int], str]:
        """The nodes to draw: if a node contains only a run of other nodes, that run, under both names."""
        node = members[0]
        if len(members) > 1 or node == self.subtrees.root or self.subtrees.points_back(node):
            return node, members, ""
        items = self._items(node)
        if len(items) == 1 and items[0].kind == "node" and len(items[0].members) > 1:
            below = items[0].members
            return below[0], below, quote(self.columns.node_names[node]) + "."
        return node, members, ""

    def _items(self, node: int) -> list[_OutlineItem]:
        """The lines below a node: its plain values, its leaves, its children. Those of the last nodes are kept: a node
        is asked twice, and again for each depth that is tried."""
        items = self._last_items.get(node)
        if items is None:
            if len(self._last_items) > _KEPT:
                self._last_items.clear()
            items = self._last_items[node] = self._new_items(node)
        return items

    def _new_items(self, node: int) -> list[_OutlineItem]:
        columns, subtrees = self.columns, self.subtrees
        items: list[_OutlineItem] = []
        wrapped = self._wrapped(node)
        for inner in wrapped:
            if self.tree.is_whole:
                values = columns.own_scalars.get(inner, ())
                items += [_OutlineItem("value", [inner, number]) for number in range(len(values))]
            rows = self._runs(subtrees.own_rows(inner), columns.row_names, subtrees.rows_similar)
            items += [_OutlineItem("row", run) for run in rows]
        children = [child for inner in wrapped for child in subtrees.children(inner) if child not in wrapped]
        if self.metadata:
            children = [child for child in children if child not in self.metadata]
        nodes = self._runs(children, columns.node_names, subtrees.nodes_similar)
        items += [_OutlineItem("node", run) for run in nodes]
        return items

    def _wrapped(self, node: int) -> list[int]:
        """A node and, if it is a wrapper, the nodes that it wraps; they are drawn as one."""
        return self.columns.nodes_at_path(node) if self.columns.wrapped else [node]

    def _runs(self, members: list[int], names: Sequence[str], similar: Callable[[int, int], bool]) -> list[list[int]]:
        """Nodes or rows in runs: similar neighbors with consecutive numbers if there are enough of them, else one
        each."""
        if not self.fold or len(members) < FOLD_FROM:
            return [[member] for member in members]
        if self.tree.is_file:
            members = _by_number(members, names)
        runs: list[list[int]] = []
        for member in members:
            last = runs[-1][-1] if runs else None
            if last is not None and follows(names[last], names[member]) and similar(last, member):
                runs[-1].append(member)
            else:
                runs.append([member])
        short = ([[member] for member in run] if len(run) < FOLD_FROM else [run] for run in runs)
        return list(chain.from_iterable(short))

    def _node_line(self, level: int, node: int, members: Sequence[int], prefix: str, closed: bool) -> Line:
        columns = self.columns
        wrapped = self._wrapped(node)
        label: list[Span] = []
        if level:
            label.append(Span(prefix + self._run_name(members, columns.node_names), "name"))
        type_name = columns.type_name(wrapped[-1])
        if type_name:
            label += [Span("  " if label else ""), Span(type_name, "type")]
        if len(wrapped) > 1:
            label.append(Span(" in " + ", ".join(columns.type_name(wrapper) for wrapper in wrapped[:-1]), "dim"))
        if not label:  # a node that is only a prefix of names
            label.append(Span(quote(columns.node_names[node]) if node else "(empty)", "name"))
        notes: list[Span] = []
        if len(members) > 1:
            label.append(Span(f"  ×{len(members):,}", "dim"))
        if self.subtrees.points_back(node):
            to = columns.node_text(columns.repeats[node]) or "the root"
            return Line(level, (*label, Span("  → " + to, "tie")))
        below = self.subtrees.sums(node)
        parameters = below.parameters
        if level and below.section != self.subtrees.sums(columns.node_parents[node]).section:
            notes += self._section_note(below.section)
        if len(members) > 1 and parameters:
            notes.append(Span(f"each {parameters:,}", "dim"))
        if closed:
            notes.append(Span(f"▸ {plural(below.leaves, 'leaf', 'leaves')}", "dim"))
        total = f"{parameters * len(members):,}" if parameters else ""
        memory = bytes_text(below.nbytes * len(members))
        cells = (Span(""), Span(""), Span(total, "number"), Span(memory, "dim"))
        return Line(level, tuple(label), cells, _spaced(notes))

    def _leaf_line(self, level: int, rows: Sequence[int]) -> Line:
        columns = self.columns
        row, times = rows[0], len(rows)
        spec, kind, persistent, section = self.subtrees.facts[row]
        label = [Span(self._run_name(rows, columns.row_names), "name")]
        if times > 1:
            label.append(Span(f"  ×{times:,}", "dim"))
        notes = [Span(f"each {spec.size:,}", "dim")] if times > 1 else []
        if row in columns.ties:
            to = columns.row_text(columns.ties[row]) + columns.row_op(row).describe()
            notes.append(Span("→ " + to, "tie"))
        elif row in columns.further_rows:
            further = columns.further_rows[row]
            also = ", ".join(columns.row_text(further_row) for further_row in further[:2])
            left_out = f" and {len(further) - 2:,} more" if len(further) > 2 else ""
            notes.append(Span(f"also {also}{left_out}", "tie"))
        if section != self.subtrees.sums(columns.row_nodes[row]).section:
            notes += self._section_note(section)
        if kind == "buffer":
            notes.append(Span("buffer" if persistent else "buffer, not saved", "dim"))
        if kind != "state" and spec.trainable is False:
            notes.append(Span("frozen", "warn"))
        if spec.shape is None:
            notes.append(Span("shape not known yet", "warn"))
        if len(self.shardings) > 1 and spec.split is not None:  # if all are the same, the footer has it
            notes.append(Span(str(spec.split), "dim"))
        if len(self.devices) > 1:
            notes.append(Span(spec.device, "dim"))
        counted = row not in self.subtrees.counted_elsewhere
        has_size = counted and kind == "parameter" and spec.shape is not None
        cells = (
            Span(shape_text(spec.shape)),
            Span(spec.dtype, "dim"),
            Span(f"{spec.size * times:,}" if has_size else "", "number"),
            Span(bytes_text(spec.nbytes * times) if counted else "", "dim"),
        )
        return Line(level, tuple(label), cells, _spaced(notes))

    def _section_note(self, section: Section | None) -> list[Span]:
        """What is counted separately from the weights, where it begins."""
        return [] if section is None or section == "weights" else [Span(SECTIONS[section], "dim")]

    def _value_line(self, level: int, node: int, number: int) -> Line:
        name, value = self.columns.own_scalars[node][number]
        return Line(level, (Span(quote(name), "name"), Span(" = ", "dim"), Span(value_text(value))))

    def _run_name(self, members: Sequence[int], names: Sequence[str]) -> str:
        first = quote(names[members[0]])
        return first if len(members) == 1 else f"{first} … {quote(names[members[-1]])}"


def _by_number(members: list[int], names: Sequence[str]) -> list[int]:
    """Neighbors whose names are numbers, in the order of the numbers: many files list 10 before 2."""
    ordered: list[int] = []
    for is_number, group in groupby(members, lambda member: names[member].isdecimal()):
        neighbors = list(group)
        ordered += sorted(neighbors, key=lambda member: int(names[member][:18])) if is_number else neighbors
    return ordered


def _spaced(notes: list[Span]) -> tuple[Span, ...]:
    return tuple([part for note in notes for part in (Span("  "), note)][1:])


def to_table(tree: "Tree") -> TableRows:
    """A row for each leaf."""
    facts = ["shape", "dtype", "size", "bytes", "kind", "section", "role", "owner", "trainable", "device", "names"]
    texts = _PathTexts(tree)
    rows = []
    for leaf in tree:
        data = _leaf_json(leaf, texts)
        first = data["names"][0]
        names = tuple(name["path"] for name in data["names"])
        rows.append(data | {"shape": leaf.shape, "role": first["role"], "owner": first["owner"], "names": names})
    return TableRows(["path", *facts], rows, "path")


def to_json(tree: "Tree") -> dict[str, Any]:
    """Everything that the walk found: counts, nodes, leaves with all their names, and plain values."""
    texts = _PathTexts(tree)
    columns = tree.columns
    leaves = [_leaf_json(leaf, texts) for leaf in tree]
    return {
        "path": str(tree.path),
        "counts": tree.counts._asdict(),
        "sections": _sections_json(leaves),
        "nodes": [
            {"path": texts.of_node(node), "type": columns.type_name(node)}
            | ({"same_as": texts.of_node(columns.repeats[node])} if node in columns.repeats else {})
            for node in node_numbers(tree)
            if not columns.hidden(node)
        ],
        "leaves": leaves,
        "shared_memory": [shared_memory_json(shared) for shared in tree.shared_memory],
        "undone": [undone_json(undone) for undone in tree.undone],
        "values": {str(path): plain_value(value) for path, value in tree.scalars.items()},
    }


def _sections_json(leaves: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The number of leaves, elements and bytes of each section that has any."""
    sections: dict[str, dict[str, int]] = {}
    for leaf in leaves:
        section = sections.setdefault(leaf["section"], {"leaves": 0, "size": 0, "bytes": 0})
        section["leaves"] += 1
        section["size"] += leaf["size"]
        section["bytes"] += leaf["bytes"]
    return sections


class _PathTexts:
    """Paths as text, each made from the one above; otherwise deep trees would take quadratic time."""

    def __init__(self, tree: "Tree") -> None:
        self.columns = tree.columns
        self._texts: dict[int, str] = {}
        for node in node_numbers(tree):
            above = self._texts.get(self.columns.node_parents[node])
            if above is None:
                self._texts[node] = self.columns.node_text(node)
            elif self.columns.hidden(node):
                self._texts[node] = above
            else:
                self._texts[node] = _joined(above, self.columns.node_names[node])

    def of_node(self, node: int) -> str:
        text = self._texts.get(node)
        return self.columns.node_text(node) if text is None else text

    def of_row(self, row: int) -> str:
        return _joined(self.of_node(self.columns.row_nodes[row]), self.columns.row_names[row])


def _joined(above: str, name: str) -> str:
    return f"{above}.{quote(name)}" if above else quote(name)


def _leaf_json(leaf: "Leaf", texts: _PathTexts) -> dict[str, Any]:
    columns = texts.columns
    rows = columns.rows_of(leaf.number)
    rows = [leaf.row, *(row for row in rows if row != leaf.row)]
    return {
        "path": texts.of_row(leaf.row),
        "names": [_name_json(row, texts) for row in rows],
        "kind": leaf.kind,
        "section": leaf.section,
        "persistent": leaf.persistent,
        "trainable": leaf.trainable,
        "shape": None if leaf.shape is None else list(leaf.shape),
        "dtype": leaf.dtype,
        "device": leaf.device,
        "size": leaf.size,
        "bytes": leaf.nbytes,
        "local_bytes": leaf.local_nbytes,
        "sharding": None if leaf.sharding is None else _sharding_json(leaf.sharding),
    }


def _sharding_json(sharding: "Sharding") -> dict[str, Any]:
    names = None if sharding.mesh_names is None else list(sharding.mesh_names)
    return {"mesh": list(sharding.mesh), "mesh_names": names, "placements": list(sharding.placements)}


def _name_json(row: int, texts: _PathTexts) -> dict[str, Any]:
    columns = texts.columns
    role, axes = columns.row_role(row)
    op = columns.row_op(row)
    data = {
        "path": texts.of_row(row),
        "owner": columns.type_name(columns.row_nodes[row]),
        "role": role,
        "axes": None if axes is None else list(axes),
        "op": str(op),
    }
    return data | ({"view": op.describe().strip()} if op != "same" else {})
