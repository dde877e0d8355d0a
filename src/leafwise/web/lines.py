"""The lines of a tree, as the page lists them: nodes, leaves and plain values, folded, searched or sorted."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from leafwise.core.parts import first_rows, node_numbers
from leafwise.core.path import escape, quote
from leafwise.core.tree import Tree

NODE, LEAF, VALUE = range(3)  # the kinds of lines
_KEPT_LISTS = 16  # lists of visible lines that are remembered, for scrolling

SORTS = ("tree", "path", "bytes", "size", "dtype", "std", "absmax", "zeros", "change")


class LineRequest(NamedTuple):
    """Which lines, and in which order."""

    query: str = ""
    sort: str = "tree"  # one of SORTS
    descending: bool = False
    depth: int = 1  # nodes above this depth are unfolded
    toggled: tuple[int, ...] = ()  # nodes that are folded, or unfolded, by hand


class TreeLines:
    """Every line of a tree, in the order in which it is drawn completely unfolded. A line is known by its number.

    `kinds` says what a line is, and `places` has the number of its node, its row, or its plain value. `ends` has the
    number after the last line below each line. A leaf with several names has a line for each of them; its bytes and
    elements are those of one of the lines, and the others have none.
    """

    def __init__(self, t: Tree) -> None:
        self.tree = t
        columns = t.columns
        self.values: list[tuple[str, Any]] = []
        rows_of_node: dict[int, list[int]] = {}
        for row in t.rows:
            rows_of_node.setdefault(columns.row_nodes[row], []).append(row)
        scalars = columns.own_scalars if t.is_whole else {}
        parents, may_hide = columns.node_parents, bool(columns.wrapped)
        kinds, places, depths = bytearray(), array("q"), array("q")
        depth_of_node: dict[int, int] = {}
        for node in node_numbers(t):
            depth = depth_of_node.get(parents[node], -1) + 1
            if may_hide and depth and columns.hidden(node):  # its content is listed below its wrapper
                depth -= 1
            else:
                kinds.append(NODE)
                places.append(node)
                depths.append(depth)
            depth_of_node[node] = depth
            if node in rows_of_node:
                own = rows_of_node[node]
                kinds.extend([LEAF] * len(own))
                places.extend(own)
                depths.extend([depth + 1] * len(own))
            for name, value in scalars.get(node, ()) if scalars else ():
                kinds.append(VALUE)
                places.append(len(self.values))
                depths.append(depth + 1)
                self.values.append((name, value))
        self.kinds, self.places, self.depths = kinds, places, depths

    @cached_property
    def ends(self) -> "array[int]":
        """By the depths: a line ends where the next line of the same depth, or above it, begins."""
        ends = array("q", range(1, len(self) + 1))
        depths = self.depths
        unfinished: list[int] = []
        for line, kind in enumerate(self.kinds):
            depth = depths[line]
            while unfinished and depths[unfinished[-1]] >= depth:
                ends[unfinished.pop()] = line
            if kind == NODE:
                unfinished.append(line)
        for line in unfinished:
            ends[line] = len(self)
        return ends

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def lines_of_rows(self) -> dict[int, int]:
        """The line of each row of the tree."""
        return {self.places[line]: line for line, kind in enumerate(self.kinds) if kind == LEAF}

    @cached_property
    def parents(self) -> "array[int]":
        """The line above each line; -1 for the root."""
        parents = array("q", [-1]) * len(self)
        above: list[int] = []
        for line, depth in enumerate(self.depths):
            del above[depth:]
            parents[line] = above[-1] if above else -1
            above.append(line)
        return parents

    # -- totals ------------------------------------------------------------------------------------------

    @cached_property
    def counted(self) -> dict[int, Any]:
        """The facts of each leaf, by the one line that has its bytes."""
        columns, rows = self.tree.columns, first_rows(self.tree)
        lines = self.lines_of_rows
        return {lines[row]: facts for row, facts in zip(rows, columns.facts(rows), strict=True) if row in lines}

    @cached_property
    def roles(self) -> dict[int, str | None]:
        """The role of each leaf, by the line that has its bytes."""
        lines = list(self.counted)
        roles = self.tree.columns.row_roles([self.places[line] for line in lines])
        return {line: role for line, (role, _) in zip(lines, roles, strict=True)}

    @cached_property
    def _sums(self) -> tuple[list[int], list[int], list[int]]:
        """For each line, the leaves, elements and bytes of all lines before it."""
        leaves, sizes, memory = ([0] * len(self) for _ in range(3))
        for line, facts in self.counted.items():
            leaves[line], sizes[line], memory[line] = 1, facts.spec.size, facts.spec.nbytes
        first, second, third = (list(accumulate(column, initial=0)) for column in (leaves, sizes, memory))
        return first, second, third

    def totals(self, line: int) -> tuple[int, int, int]:
        """The number of leaves, elements and bytes from a line downwards."""
        end = self.ends[line]
        leaves, sizes, memory = (column[end] - column[line] for column in self._sums)
        return leaves, sizes, memory

    # -- text --------------------------------------------------------------------------------------------

    def path(self, line: int) -> str:
        """The path of a line. It parses back."""
        columns, place = self.tree.columns, self.places[line]
        if self.kinds[line] == NODE:
            return columns.node_text(place)
        if self.kinds[line] == LEAF:
            return columns.row_text(place)
        prefix = self.path(self.parents[line])
        name = quote(self.values[place][0])
        return f"{prefix}.{name}" if prefix else name

    def name(self, line: int) -> str:
        """The last entry of the path of a line."""
        columns, place = self.tree.columns, self.places[line]
        if self.kinds[line] == NODE:
            return escape(columns.node_names[place]) if place != self.tree.root else ""
        return escape(columns.row_names[place] if self.kinds[line] == LEAF else self.values[place][0])

    def leaf(self, line: int) -> int:
        """The number of the leaf of a line."""
        row = self.places[line]
        return self.tree.columns.ties.get(row, row)

    def line_at(self, path: str) -> int | None:
        """The line with a path: of a leaf, a node or a plain value."""
        return self._by_path[0].get(path)

    def node_at(self, path: str) -> int | None:
        """The line of the node with a path. A leaf may have the same one: in files, there are `w` and `w.absmax`."""
        return self._by_path[1].get(path)

    @cached_property
    def _by_path(self) -> tuple[dict[str, int], dict[str, int]]:
        """All lines, of which leaves take precedence, and the nodes."""
        columns = self.tree.columns
        rows = [self.places[line] for line, kind in enumerate(self.kinds) if kind == LEAF]
        texts = dict(zip(rows, columns.row_texts(rows), strict=True))
        leaves: dict[str, int] = {}
        others: dict[str, int] = {}
        nodes: dict[str, int] = {}
        for line, kind in enumerate(self.kinds):
            if kind == LEAF:
                leaves.setdefault(texts[self.places[line]], line)
                continue
            path = self.path(line)
            others.setdefault(path, line)
            if kind == NODE:
                nodes.setdefault(path, line)
        return others | leaves, nodes


class VisibleLines:
    """Lists of visible lines. Recent ones are remembered, because a list is asked for window by window."""

    def __init__(
        self, lines: TreeLines, matching: Callable[[str], "set[int]"], key: Callable[[str], Callable[[int], Any]]
    ):
        """`matching` returns the lines that match a query, and `key` the function by which lines are sorted."""
        self._lines, self._matching, self._key = lines, matching, key
        self._kept: dict[tuple[LineRequest, int], tuple[Sequence[int], int | None]] = {}

    def visible(self, asked: LineRequest, version: int) -> tuple[Sequence[int], int | None]:
        """The visible lines, and how many leaves match the query. Lists that are sorted by statistics change with
        `version`."""
        key = asked, version if asked.sort not in ("tree", "path", "bytes", "size", "dtype") else 0
        if key not in self._kept:
            while len(self._kept) >= _KEPT_LISTS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._computed(asked)
        return self._kept[key]

    def _computed(self, asked: LineRequest) -> tuple[Sequence[int], int | None]:
        lines = self._lines
        matches = self._matching(asked.query) if asked.query else None
        if asked.sort != "tree":
            candidates: Iterable[int] = (
                lines.counted if matches is None else (line for line in lines.counted if line in matches)
            )
            order = sorted(candidates, key=self._key(asked.sort), reverse=asked.descending)
            return array("q", order), None if matches is None else len(order)
        if matches is None:
            return self._unfolded(asked, None), None
        count = sum(line in lines.counted for line in matches)
        return self._unfolded(asked, matches), count

    def _unfolded(self, asked: LineRequest, matches: set[int] | None) -> Sequence[int]:
        lines = self._lines
        kinds, depths, ends = lines.kinds, lines.depths, lines.ends
        toggled = set(asked.toggled)
        depth = asked.depth if matches is None else len(lines)  # matches are unfolded
        if matches is not None:
            flags = bytearray(len(lines))
            for line in matches:
                flags[line] = 1
            before = array("q", accumulate(flags, initial=0))
        visible = array("q")
        line, total = 0, len(lines)
        while line < total:
            if matches is not None and before[ends[line]] == before[line]:
                line = ends[line]
                continue
            visible.append(line)
            folded = kinds[line] == NODE and (depths[line] < depth) == (line in toggled)
            line = ends[line] if folded else line + 1
        return visible

    def place_of(self, line: int, asked: LineRequest, version: int) -> tuple[int | None, tuple[int, ...]]:
        """Where a line is in the list, and which nodes are toggled so that it is visible."""
        lines = self._lines
        toggled = asked.toggled
        if asked.sort == "tree":
            depth = asked.depth if not asked.query else len(lines)
            changed = set(toggled)
            above = lines.parents[line]
            while above >= 0:
                if (lines.depths[above] < depth) == (above in changed):  # it is folded
                    changed ^= {above}
                above = lines.parents[above]
            toggled = tuple(sorted(changed))
        visible, _ = self.visible(asked._replace(toggled=toggled), version)
        try:
            return visible.index(line), toggled
        except ValueError:
            return None, toggled
