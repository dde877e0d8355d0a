"""Which subtrees are drawn the same, so that an outline can fold them; and the totals of the leaves below each node."""

from bisect import bisect_left
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from leafwise.core.columns import Facts, Section
from leafwise.core.parts import first_rows, node_numbers
from leafwise.render.phrases import value_text

if TYPE_CHECKING:
    from leafwise.core.tree import Tree


class SubtreeSums(NamedTuple):
    """The totals of the leaves below a node, each leaf counted once."""

    parameters: int = 0
    trainable: int = 0
    frozen: int = 0
    buffers: int = 0
    state: int = 0
    nbytes: int = 0
    leaves: int = 0
    unknown: int = 0
    optimizer: int = 0
    optimizer_bytes: int = 0
    rest_bytes: int = 0
    optimizer_leaves: int = 0
    rest_leaves: int = 0
    nbytes_here: int = 0

    @classmethod
    def of(cls, facts: Facts) -> "SubtreeSums":
        spec, kind, _, section = facts
        trainable = spec.trainable if kind == "parameter" else None
        sums = cls(
            parameters=spec.size if kind == "parameter" else 0,
            trainable=spec.size if trainable else 0,
            frozen=spec.size if trainable is False else 0,
            buffers=spec.size if kind == "buffer" else 0,
            state=spec.size if kind == "state" else 0,
            nbytes=spec.nbytes,
            leaves=1,
            unknown=int(spec.shape is None),
            nbytes_here=spec.nbytes_here,
        )
        match section:
            case "optimizer":
                return sums._replace(optimizer=sums.state, optimizer_bytes=sums.nbytes, optimizer_leaves=1)
            case "rest":
                return sums._replace(rest_bytes=sums.nbytes, rest_leaves=1)
        return sums

    def bytes_by_section(self) -> dict[Section, int]:
        """The bytes of the leaves in each section that has any."""
        weights = self.leaves - self.optimizer_leaves - self.rest_leaves
        sizes: dict[Section, tuple[int, int]] = {
            "weights": (weights, self.nbytes - self.optimizer_bytes - self.rest_bytes),
            "optimizer": (self.optimizer_leaves, self.optimizer_bytes),
            "rest": (self.rest_leaves, self.rest_bytes),
        }
        return {section: nbytes for section, (leaves, nbytes) in sizes.items() if leaves}

    @property
    def section(self) -> Section | None:
        """The section of all leaves below; None if they have several."""
        if not self.leaves or self.optimizer_leaves + self.rest_leaves == 0:
            return "weights"
        if self.leaves not in (self.optimizer_leaves, self.rest_leaves):
            return None
        return "optimizer" if self.optimizer_leaves else "rest"

    def plus(self, sums: "SubtreeSums") -> "SubtreeSums":
        return SubtreeSums(*map(add, self, sums))


class Subtrees:
    """The nodes and rows of a tree, compared with each other.

    `facts` has the facts of each row, `distinct_facts` the same without repetition. A leaf with several names is
    counted at its first name; `counted_elsewhere` are the rows of its other names.
    """

    def __init__(self, tree: "Tree") -> None:
        self.columns = columns = tree.columns
        self.nodes = node_numbers(tree)
        self.facts = dict(zip(tree.rows, columns.facts(tree.rows), strict=True))
        self.counted_elsewhere = self.facts.keys() - set(first_rows(tree)) if columns.ties else set()
        self._selected = None if tree.is_whole else set(self.nodes)
        self._tied_rows = sorted(columns.ties)
        self._tied_nodes = sorted({columns.row_nodes[row] for row in self._tied_rows})
        self._distinct: dict[int, Facts] = {}  # by identity, in order of appearance
        self._looks, self._sums = self._compare()
        self.distinct_facts = list(self._distinct.values())

    @property
    def root(self) -> int:
        return self.nodes[0]

    def sums(self, node: int) -> SubtreeSums:
        """The totals of the leaves below a node."""
        return self._sums[self._looks[node]]

    def children(self, node: int) -> list[int]:
        """The children that are in this tree, which may be a selection."""
        children = self.columns.children(node)
        return list(children) if self._selected is None else [child for child in children if child in self._selected]

    def own_rows(self, node: int) -> list[int]:
        """The rows of a node itself that are in this tree."""
        return [row for row in self.columns.own_rows(node) if row in self.facts]

    def points_back(self, node: int) -> bool:
        """Whether a node is drawn as a reference, since the same object came before in this tree."""
        first = self.columns.repeats.get(node)
        if first is None or node == self.root:
            return False
        if node in self.columns.listed_elsewhere:
            return True
        a, b = self.columns.row_ranges[node]
        return a < b and first >= self.root

    def rows_similar(self, a: int, b: int) -> bool:
        """Whether two rows may be drawn as one: equal facts, and no other names."""
        ties, further = self.columns.ties, self.columns.further_rows
        return self.facts[a] is self.facts[b] and not any(row in ties or row in further for row in (a, b))

    def nodes_similar(self, a: int, b: int) -> bool:
        """Whether two nodes may be drawn as one: the same below, and tied to the same leaves or to corresponding ones
        inside themselves."""
        if self._looks[a] != self._looks[b]:
            return False
        first_tied = bisect_left(self._tied_nodes, a)
        if first_tied == len(self._tied_nodes) or self._tied_nodes[first_tied] >= self.columns.node_ends[a]:
            return True
        start_a, stop_a = self.columns.row_ranges[a]
        start_b, _ = self.columns.row_ranges[b]
        ties = self.columns.ties
        tied = self._tied_rows[bisect_left(self._tied_rows, start_a) : bisect_left(self._tied_rows, stop_a)]
        leaves = ((ties[row], ties[row - start_a + start_b]) for row in tied)
        return all(leaf_a == leaf_b or leaf_a - start_a == leaf_b - start_b for leaf_a, leaf_b in leaves)

    def _compare(self) -> tuple[list[int], list[SubtreeSums]]:
        """A number for each node, the same for subtrees that are drawn the same; and the totals below, by that number.

        The number of a node starts from its type, and its leaves, plain values and children are added one by one.
        Chaining them like this needs no list per node, of which there may be a million, and totals are computed once
        per number, not once per node.
        """
        columns, counted_elsewhere = self.columns, self.counted_elsewhere
        types = {cls: number for number, cls in enumerate(set(map(type, columns.node_objects)))}
        looks = [types[type(obj)] for obj in columns.node_objects]
        sums = [SubtreeSums()] * len(types)
        row_nodes, row_names = columns.row_nodes, columns.row_names
        names, parents = columns.node_names, columns.node_parents
        chained: dict[tuple[int, str, object], int] = {}

        def add(key: tuple[int, str, object], added: SubtreeSums) -> int:
            number = chained[key] = len(sums)
            sums.append(sums[key[0]].plus(added))
            return number

        for row, facts in self.facts.items():
            node = row_nodes[row]
            # A leaf that is counted elsewhere looks different from one that is counted here.
            counted = row not in counted_elsewhere
            key: tuple[int, str, object] = (looks[node], row_names[row], id(facts) if counted else ~id(facts))
            number = chained.get(key)
            if number is None:
                number = add(key, self._sums_of(facts) if counted else SubtreeSums())
            looks[node] = number
        for node, name, look in chain(
            ((row_nodes[row], row_names[row], "shared") for row in columns.further_rows),
            ((node, name, value_text(value)) for node, name, value in columns.scalars),
            ((node, "", first) for node, first in columns.repeats.items() if self.points_back(node)),
        ):
            key = looks[node], name, look
            looks[node] = chained.get(key) or add(key, SubtreeSums())
        # From the bottom up: a node is added to its parent when everything below it has been added.
        for node in reversed(self.nodes[1:]):
            parent, look = parents[node], looks[node]
            key = looks[parent], names[node], look
            number = chained.get(key)
            if number is None:
                number = add(key, sums[look])
            looks[parent] = number
        return looks, sums

    def _sums_of(self, facts: Facts) -> SubtreeSums:
        self._distinct[id(facts)] = facts
        return SubtreeSums.of(facts)
