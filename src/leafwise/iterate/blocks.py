"""The repeated blocks of a model, found in its tree."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.columns import Columns
from leafwise.core.glob import Glob
from leafwise.core.tree import Tree


class BlocksError(Exception):
    """The depths of leaves cannot be determined, for the given reason. The caller adds the rule. If there are several
    stacks of blocks, `stack_paths` are the paths of the nodes that contain them."""

    def __init__(self, reason: str, stack_paths: Sequence[str] = (), *, has_fix: bool = False) -> None:
        super().__init__(reason)
        self.stack_paths = list(stack_paths)
        self.has_fix = has_fix  # whether the reason already says what to do


class RepeatedBlock(NamedTuple):
    """The node of a block, and the range of rows that have its depth: from `first` up to, not including, `last`."""

    node: int
    first: int
    last: int


def by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them.

    >>> sorted(["layer_10", "layer_9"], key=by_number)
    ['layer_9', 'layer_10']
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


class BlockSearch:
    """Finds stacks of blocks: numbered children (`0`, `1`, … or `layer1`, `layer2`, …) of the same type that make up
    most of a node. A stack is the list of its blocks, or of its stages. `matcher_nodes` are the nodes with a method
    that says how deep their leaves are, such as timm's `group_matcher()`; each of them is a stack of its own.
    `alphabetical` is whether the tree is of a file that lists its leaves in that order."""

    def __init__(
        self, columns: Columns, rows: Sequence[int], matcher_nodes: list[int], alphabetical: bool = False
    ) -> None:
        self._columns, self._matcher_nodes, self._alphabetical = columns, matcher_nodes, alphabetical
        sizes, matrices = [0] * len(columns.row_nodes), [0] * len(columns.row_nodes)
        self._shapes = {}
        for row, facts in zip(rows, columns.facts(rows), strict=True):
            # Plus one, so that leaves with unknown shapes count, too.
            sizes[row] = facts.spec.size + 1
            shape = self._shapes[row] = facts.spec.shape
            matrices[row] = shape is None or len(shape) > 1
        self._grouping = columns.home(columns.current(rows[0])).capability(Grouping)
        self._sizes_before = [0, *accumulate(sizes)]
        self._matrices_before = [0, *accumulate(matrices)]

    def is_sorted(self, node: int) -> bool:
        """Whether the children of a node are sorted by name, by JAX or in a file, so that order says nothing."""
        return self._alphabetical or self._grouping.sorts_children(self._columns.node_objects[node])

    def children(self, node: int) -> list[int]:
        """The children of a node; if they are sorted by name, in the order of the numbers in their names."""
        children = list(self._columns.children(node))
        if self.is_sorted(node):
            children.sort(key=lambda child: by_number(self._columns.node_names[child]))
        return children

    def size(self, node: int) -> int:
        """The number of elements in the given rows below a node, plus one for each row."""
        first, last = self._columns.row_ranges[node]
        return self._sizes_before[last] - self._sizes_before[first]

    def total(self, nodes: list[int]) -> int:
        return sum(map(self.size, nodes))

    def path(self, stack: list[int]) -> str:
        """The path of the node that contains a stack."""
        node = stack[0] if stack[0] in self._matcher_nodes else self._columns.node_parents[stack[0]]
        return self._columns.node_text(node)

    def stacks(self, node: int) -> list[list[int]]:
        """The outermost stacks from a node downwards."""
        while True:
            if node in self._matcher_nodes:
                return [[node]]
            run = self._run(node)
            if run and not any(map(self._holds_matcher, run)):
                return [run]
            children = [child for child in self._columns.children(node) if self.size(child)]
            if len(children) != 1:
                return [stack for child in children for stack in self.stacks(child)]
            node = children[0]

    def _holds_matcher(self, node: int) -> bool:
        """Whether a node is or contains a matcher node. Then it is a model, not a block."""
        position = bisect_left(self._matcher_nodes, node)
        return position < len(self._matcher_nodes) and self._matcher_nodes[position] < self._columns.node_ends[node]

    # -- runs ------------------------------------------------------------------------------------------------

    def is_layered(self, node: int) -> bool:
        """Whether a node contains several matrices, as blocks do. A single layer, with or without a norm, has one."""
        return self.matrices([node]) > 1

    def matrices(self, nodes: Sequence[int]) -> int:
        before, ranges = self._matrices_before, self._columns.row_ranges
        return sum(before[ranges[node][1]] - before[ranges[node][0]] for node in nodes)

    def _numbered(self, node: int) -> dict[str, list[int]]:
        """The numbered children of a node, by their names without the numbers."""
        numbered: dict[str, list[int]] = {}
        for child in self.children(node):
            name = self._columns.node_names[child]
            if name[-1:].isdecimal() and self.size(child):
                numbered.setdefault(re.sub(r"\d+", "#", name), []).append(child)
        return numbered

    def _run(self, node: int) -> list[int]:
        """The repeated children that make up most of a node. They are numbered children of the same type; or layered
        children of several types, as in models that mix state spaces and attention, up to the last one whose type
        repeats. Children after that may be the head."""
        runs: list[list[int]] = []
        for children in self._numbered(node).values():
            types = {child: type(self._columns.node_objects[child]) for child in children}
            by_type = [[child for child in children if types[child] is cls] for cls in set(types.values())]
            layered = [child for child in children if self.is_layered(child)]
            last = max((children.index(run[-1]) for run in by_type if len(run) > 1), default=-1)
            runs += [*by_type, [child for child in layered if children.index(child) <= last]]
        run = max((run for run in runs if len(run) > 1), key=lambda run: (self.total(run), len(run)), default=[])
        return run if self._hold_most(run, node) else []

    # -- stages ----------------------------------------------------------------------------------------------

    def stages(self, run: list[int], inner: bool = False) -> list[list[RepeatedBlock]]:
        """The blocks of each stage of a run. If the run consists of blocks, each block is a stage of its own.

        Other rows of a stage, such as those of a downsampling layer, go with its first block, or with its last if they
        come after all blocks. But if no row comes before the first stage, the rows before its first block are the
        stem."""
        stages: list[list[RepeatedBlock]] = []
        for node, inside in zip(run, self._inside(run, inner), strict=True):
            first, last = self._columns.row_ranges[node]
            blocks = [block for stage in self.stages(inside, inner=True) for block in stage]
            if blocks:
                if stages or inner or self._sizes_before[first]:
                    blocks[0] = blocks[0]._replace(first=first)
                blocks[-1] = blocks[-1]._replace(last=last)
            stages.append(blocks or [RepeatedBlock(node, first, last)])
        return stages

    def _inside(self, run: list[int], inner: bool) -> list[list[int]]:
        """For each node of a run, the blocks inside it if the nodes are stages, else an empty list.

        They are stages if each of them is just a run; or if they differ in their leaves, since stages differ in width,
        and most of them contain runs of layered blocks. Named layers inside a block, such as `conv1` and `conv2`, are
        not blocks themselves.
        """
        if len(run) > 1:
            inner_runs = [self._run(node) for node in run]
            if all(self._are_whole(inner_run, node, inner) for node, inner_run in zip(run, inner_runs, strict=True)):
                return inner_runs
            if not self._are_similar(run):
                inside = self._with_single_blocks(run, [self._layered_run(node, inner) for node in run])
                holding = [node for node, blocks in zip(run, inside, strict=True) if blocks]
                if 2 * self.total(holding) > self.total(run) and max(map(len, inside)) > 1:
                    return inside
        return [[] for _ in run]

    def _are_whole(self, run: list[int], node: int, inner: bool) -> bool:
        """Whether a node consists of a run of blocks and nothing else."""
        fit = self._are_listed(run) or (not inner and all(map(self.is_layered, run)))
        return bool(run) and fit and self.total(run) == self.size(node)

    def _are_listed(self, run: list[int]) -> bool:
        """Whether the names of nodes are numbers, as in a list."""
        return all(self._columns.node_names[node].isdecimal() for node in run)

    def _are_similar(self, run: list[int]) -> bool:
        """Whether most nodes have more than half of their leaves, by name and shape, in common with a neighbor. Then
        they are blocks."""
        columns = self._columns
        leaves = []
        for node in run:
            rows = [row for row in range(*columns.row_ranges[node]) if row in self._shapes]
            leaves.append(set(zip(columns.keys(rows, node), map(self._shapes.__getitem__, rows), strict=True)))
        similar = [2 * len(first & second) > len(first | second) for first, second in pairwise(leaves)]
        return 2 * sum(map(max, [False, *similar], [*similar, False])) > len(run)

    def _layered_run(self, stage: int, inner: bool) -> list[int]:
        """The layered blocks that make up most of a stage: its children, or those of its main node."""
        node: int | None = stage
        while node is not None:
            for run in self._numbered(node).values():
                layered = [child for child in run if self.is_layered(child)]
                if self._hold_most(layered, stage) and (self._are_listed(run) or not inner):
                    return layered
            node = next((child for child in self._columns.children(node) if self._hold_most([child], stage)), None)
        return []

    def _with_single_blocks(self, run: list[int], inside: list[list[int]]) -> list[list[int]]:
        """The blocks inside each stage. Stages without blocks so far get the layered children at the path where other
        stages have their blocks, even if these do not make up most of the stage: a stage may have a single block."""
        columns = self._columns
        parents = [(node, columns.node_parents[blocks[0]]) for node, blocks in zip(run, inside, strict=True) if blocks]
        keys = {columns.node_keys(node)[parent] for node, parent in parents}
        completed = []
        for node, blocks in zip(run, inside, strict=True):
            holders = [] if blocks else [below for below, key in columns.node_keys(node).items() if key in keys]
            listed = [child for holder in holders[:1] for child in self.children(holder) if self.is_layered(child)]
            completed.append(blocks or (listed if self._are_listed(listed) else []))
        return completed

    def _hold_most(self, nodes: list[int], above: int) -> bool:
        """Whether nodes make up most of a node above them, by size or by number of matrices. Size alone is not enough:
        a head or a position embedding may be larger than all blocks."""
        return 2 * self.total(nodes) > self.size(above) or 2 * self.matrices(nodes) > self.matrices([above])

    def beside(self, run: list[int], stages: list[list[RepeatedBlock]]) -> list[tuple[int, int, int]]:
        """Ranges of rows beside the stages, each with the number of the block that it goes with.

        A list beside the stages may have an item for each stage, such as its patch embedding or its norm. An item that
        comes before its stage goes with the first block of the stage, and an item that comes after it with the last. A
        first item before all stages belongs to the stem."""
        if all(len(stage) == 1 for stage in stages):
            return []
        ends = [0, *accumulate(map(len, stages))]
        beside = []
        for entries in self._parallel_lists(run):
            for number, (entry, stage) in enumerate(zip(entries, run, strict=True)):
                first, last = self._columns.row_ranges[entry]
                comes_before = first < self._columns.row_ranges[stage][0]
                if number or not comes_before:
                    beside.append((first, last, ends[number] if comes_before else ends[number + 1] - 1))
        return beside

    def _parallel_lists(self, run: list[int]) -> list[list[int]]:
        """The lists beside a run that have as many items as the run."""
        columns = self._columns
        parent = columns.node_parents[run[0]]
        lists = list(self._numbered(parent).values())
        above = columns.node_parents[parent]
        if above >= 0 and self.total(run) == self.size(parent):
            lists += [entries for node in columns.children(above) for entries in self._numbered(node).values()]
        return [entries for entries in lists if len(entries) == len(run) and entries[0] not in run]


def largest_stack(search: BlockSearch, node: int) -> list[int]:
    """The stack that makes up most of a node; raises if there is none, or if several are similar in size."""
    stacks = search.stacks(node)
    # A head of several layers may be larger than all blocks before it.
    stacks = [stack for stack in stacks if all(map(search.is_layered, stack))] or stacks
    stacks.sort(key=search.total, reverse=True)
    if not stacks:
        raise BlocksError("found no repeated blocks")
    most, matrices = search.total(stacks[0]), search.matrices(stacks[0])
    rivals = [stack for stack in stacks if 2 * search.total(stack) >= most or search.matrices(stack) >= matrices]
    if len(rivals) > 1:
        paths = [search.path(stack) for stack in sorted(rivals)]
        raise BlocksError(f"found several stacks of blocks: {', '.join(paths)}", paths)
    return stacks[0]


def blocks_matching(search: BlockSearch, tree: Tree, blocks: str) -> list[RepeatedBlock]:
    """The blocks that match a glob, in the order of their rows."""
    columns = tree.columns
    nodes = [node for node in Glob(blocks).nodes(columns, tree.root) if search.size(node)]
    if not nodes:
        raise BlocksError(f"no node with parameters matches blocks={blocks!r}")
    matches = sorted((RepeatedBlock(node, *columns.row_ranges[node]) for node in nodes), key=lambda block: block[1:])
    for block, next_block in pairwise(matches):
        if next_block.first < block.last:
            outer, inner = columns.node_text(block.node), columns.node_text(next_block.node)
            raise BlocksError(f"blocks={blocks!r} matches {outer} and also {inner} inside it")
    return matches
