"""How deep the leaves of a model lie: by the model's own word, or by the repeated blocks that are found in its tree."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.columns import Columns
from leafwise.core.glob import Glob
from leafwise.core.home import Home
from leafwise.core.tree import Tree


class BlocksError(Exception):
    """Why nobody knows how deep leaves lie; whoever catches it knows the rule. Where there are several stacks of
    blocks, `fronts` are the paths of what holds them."""

    def __init__(self, why: str, fronts: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.fronts = list(fronts)


class Depths(NamedTuple):
    """How many blocks each row lies below the top, and who says so."""

    below_top: dict[int, int]
    by: str


def depths(tree: Tree, rows: Sequence[int], blocks: str | None) -> Depths:
    """The depths of rows that stand in order: by blocks that match a glob, by the model itself, or by blocks that are
    found in the tree."""
    columns = tree.columns
    if blocks is not None:
        search = _Search(columns, rows, [])
        return _by_stages(columns, rows, [[block] for block in _named(search, tree, blocks)], [], blocks)
    advising = advisers(columns, tree.root, lambda home, cls: home.capability(Grouping).depths_by(cls))
    silent = ""
    while True:
        search = _Search(columns, rows, advising)
        # Where what is looked at is a part of a model that says for itself, that is above it.
        stack = advising[:1] if advising and advising[0] < tree.root else _largest(search, tree.root)
        if stack[0] not in advising:
            stages = search.stages(stack)
            found = _by_stages(columns, rows, stages, search.beside(stack, stages))
            return found._replace(by=found.by + silent)
        by_model = _by_model(columns, stack[0], rows)
        if by_model is not None:
            return by_model
        silent = f": {_matcher(columns, stack[0])} matches no parameter"
        advising.remove(stack[0])


def advisers(columns: Columns, node: int, ask: Callable[[Home, type], object]) -> list[int]:
    """The nodes that say something about leaves below a node: those above it first, then itself and those below."""
    above, found = columns.node_parents[node], columns.nodes_where(lambda home, obj: ask(home, type(obj)), node)
    while above >= 0:
        obj = columns.node_objects[above]
        if ask(columns.home(obj), type(obj)):
            found.insert(0, above)
        above = columns.node_parents[above]
    return found


# -- by the model ----------------------------------------------------------------------------------------------


def _by_model(columns: Columns, node: int, rows: Sequence[int]) -> Depths | None:
    """What the model says; None where it says nothing about any of its leaves. All of its leaves count, so that the
    depth of one does not depend on which others are asked for."""
    obj = columns.node_objects[node]
    ask = columns.home(obj).capability(Grouping).depths_by(type(obj))
    assert ask is not None
    first, last = columns.row_ranges[node]
    below = [row for row in range(first, last) if columns.row_kinds[row] in ("parameter", "array")]
    try:
        levels = dict(zip(below, ask(obj, columns.keys(below, node)), strict=True))
    except Exception as error:  # of somebody's method
        raise BlocksError(f"{_matcher(columns, node)} cannot be used: {type(error).__name__}: {error}") from error
    known = [level for level in levels.values() if level is not None]
    if not known:
        return None
    top = max(known) + (len(known) < len(below) or rows[-1] >= last)
    found = {}
    for row in rows:
        # What comes before the model is at its lowest level, as its stem is; what comes after it is at the top.
        level = 0 if row < first else top if row >= last else levels[row]
        found[row] = top - (top if level is None else level)
    return Depths(found, _matcher(columns, node))


def _matcher(columns: Columns, node: int) -> str:
    return f"{columns.type_name(node)}.group_matcher()"


# -- by blocks -------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A block, and the rows that are as deep as it, from the first to before the last."""

    node: int
    first: int
    last: int


def _by_stages(
    columns: Columns,
    rows: Sequence[int],
    stages: list[list[_Block]],
    beside: list[tuple[int, int, int]],
    pattern: str | None = None,
) -> Depths:
    """What comes before the first block is a step below it, what comes after the last is at the top. Between blocks,
    and inside of them, a leaf is as deep as the block that began last."""
    blocks = [block for stage in stages for block in stage]
    begins = [block.first for block in blocks]
    top = len(blocks) + 1
    found = {row: top - (top if row >= blocks[-1].last else bisect_right(begins, row)) for row in rows}
    for first, last, number in beside:
        found.update({row: top - 1 - number for row in range(first, last) if row in found})
    return Depths(found, pattern or _pattern([columns.node_text(block.node) for block in blocks]))


def _named(search: "_Search", tree: Tree, blocks: str) -> list[_Block]:
    columns = tree.columns
    nodes = [node for node in Glob(blocks).nodes(columns, tree.root) if search.size(node)]
    if not nodes:
        raise BlocksError(f"no node with parameters matches blocks={blocks!r}")
    found = sorted((_Block(node, *columns.row_ranges[node]) for node in nodes), key=lambda block: block[1:])
    for one, other in pairwise(found):
        if other.first < one.last:
            raise BlocksError(f"blocks={blocks!r} matches nodes of which one lies inside another")
    return found


def _pattern(paths: list[str]) -> str:
    """What paths have in common.

    >>> _pattern(["stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0"]), _pattern(["layer1.0", "layer2.0"])
    ('stages.*.blocks.*', 'layer*.0')
    >>> _pattern(["a.0", "b.0.1"])
    'a.0, b.0.1'
    """
    by_length: dict[int, list[list[str]]] = {}
    for path in paths:
        names = path.split(".")
        by_length.setdefault(len(names), []).append(names)
    return ", ".join(".".join(map(_common, zip(*some, strict=True))) for some in by_length.values())


def _common(names: Sequence[str]) -> str:
    if len(set(names)) == 1:
        return names[0]
    without_numbers = {re.sub(r"\d+", "*", name) for name in names}
    return without_numbers.pop() if len(without_numbers) == 1 else "*"


def _largest(search: "_Search", node: int) -> list[int]:
    stacks = search.stacks(node)
    # A head of several layers may be larger than all blocks before it.
    stacks = [stack for stack in stacks if all(map(search.is_layered, stack))] or stacks
    stacks.sort(key=search.total, reverse=True)
    if not stacks:
        raise BlocksError("there are no repeated blocks here")
    most, matrices = search.total(stacks[0]), search.matrices(stacks[0])
    rivals = [stack for stack in stacks if 2 * search.total(stack) >= most or search.matrices(stack) >= matrices]
    if len(rivals) > 1:
        fronts = [search.front(stack) for stack in sorted(rivals)]
        raise BlocksError(f"there are several stacks of blocks: {', '.join(fronts)}", fronts)
    return stacks[0]


class _Search:
    """Looks for children of one type, numbered (`0`, `1`, … or `layer1`, `layer2`, …), that hold most of a node. A node
    that says itself how deep its leaves lie is a stack of its own."""

    def __init__(self, columns: Columns, rows: Sequence[int], advising: list[int]) -> None:
        self._columns, self._advising = columns, advising
        sizes, matrices = [0] * len(columns.row_nodes), [0] * len(columns.row_nodes)
        self._shapes = {}
        for row, facts in zip(rows, columns.facts(rows), strict=True):
            # By the leaf and one more, so that leaves whose shapes are not known yet count, too.
            sizes[row] = facts.spec.size + 1
            shape = self._shapes[row] = facts.spec.shape
            matrices[row] = shape is None or len(shape) > 1
        self._sizes_before = [0, *accumulate(sizes)]
        self._matrices_before = [0, *accumulate(matrices)]

    def size(self, node: int) -> int:
        """How much of what is looked at lies below a node."""
        first, last = self._columns.row_ranges[node]
        return self._sizes_before[last] - self._sizes_before[first]

    def total(self, nodes: list[int]) -> int:
        return sum(map(self.size, nodes))

    def front(self, stack: list[int]) -> str:
        """The path of what holds a stack."""
        node = stack[0] if stack[0] in self._advising else self._columns.node_parents[stack[0]]
        return self._columns.node_text(node)

    def stacks(self, node: int) -> list[list[int]]:
        """The outermost stacks below a node, each the list of its blocks, or of its stages."""
        while True:
            if node in self._advising:
                return [[node]]
            run = self._run(node)
            if run and not any(map(self._advises, run)):
                return [run]
            children = [child for child in self._columns.children(node) if self.size(child)]
            if len(children) != 1:
                return [stack for child in children for stack in self.stacks(child)]
            node = children[0]

    def _advises(self, node: int) -> bool:
        """Whether something from a node downwards says how deep leaves lie: then it is a model, not a block."""
        at = bisect_left(self._advising, node)
        return at < len(self._advising) and self._advising[at] < self._columns.node_ends[node]

    # -- runs ------------------------------------------------------------------------------------------------

    def is_layered(self, node: int) -> bool:
        """Whether a node holds several matrices, as blocks do; a layer, or one with its norm, holds one."""
        return self.matrices([node]) > 1

    def matrices(self, nodes: Sequence[int]) -> int:
        before, ranges = self._matrices_before, self._columns.row_ranges
        return sum(before[ranges[node][1]] - before[ranges[node][0]] for node in nodes)

    def _numbered(self, node: int) -> dict[str, list[int]]:
        """The numbered children of a node, by their names without the numbers."""
        found: dict[str, list[int]] = {}
        for child in self._columns.children(node):
            name = self._columns.node_names[child]
            if name[-1:].isdecimal() and self.size(child):
                found.setdefault(re.sub(r"\d+", "#", name), []).append(child)
        return found

    def _run(self, node: int) -> list[int]:
        """Children that repeat, and hold most of what is below the node: numbered ones of one type; or layered ones of
        several types, as in models with state spaces and attention, up to the last whose type repeats. What comes
        after that may be the head."""
        runs: list[list[int]] = []
        for children in self._numbered(node).values():
            types = [type(self._columns.node_objects[child]) for child in children]
            by_type = [[one for one, its in zip(children, types, strict=True) if its is cls] for cls in set(types)]
            layered = [child for child in children if self.is_layered(child)]
            last = max((run[-1] for run in by_type if len(run) > 1), default=-1)
            runs += [*by_type, [child for child in layered if child <= last]]
        run = max((run for run in runs if len(run) > 1), key=lambda run: (self.total(run), len(run)), default=[])
        return run if self._hold_most(run, node) else []

    # -- stages ----------------------------------------------------------------------------------------------

    def stages(self, run: list[int], inner: bool = False) -> list[list[_Block]]:
        """The blocks of each stage of a run; where they are blocks and not stages, each is alone. What else a stage
        holds, as what makes pictures smaller, goes with its first block, or if it comes after all, with its last. Where
        nothing comes before the stages, what comes before the first block of the first is the stem."""
        found: list[list[_Block]] = []
        for node, inside in zip(run, self._inside(run, inner), strict=True):
            first, last = self._columns.row_ranges[node]
            blocks = [block for stage in self.stages(inside, inner=True) for block in stage]
            if blocks:
                if found or inner or self._sizes_before[first]:
                    blocks[0] = blocks[0]._replace(first=first)
                blocks[-1] = blocks[-1]._replace(last=last)
            found.append(blocks or [_Block(node, first, last)])
        return found

    def _inside(self, run: list[int], inner: bool) -> list[list[int]]:
        """The blocks inside each of a run, if these are stages: where every one is nothing but a run itself; or where
        they are not alike, since stages differ in width, and most hold runs of layered blocks. Layers with names, such
        as `conv1` and `conv2`, are not blocks inside a block."""
        if len(run) > 1:
            pure = [self._run(node) for node in run]
            if all(self._are_whole(its, node, inner) for node, its in zip(run, pure, strict=True)):
                return pure
            if not self._are_alike(run):
                inside = self._alike_inside(run, [self._layered_run(node, inner) for node in run])
                holding = [node for node, its in zip(run, inside, strict=True) if its]
                if 2 * self.total(holding) > self.total(run) and max(map(len, inside)) > 1:
                    return inside
        return [[] for _ in run]

    def _are_whole(self, run: list[int], node: int, inner: bool) -> bool:
        """Whether a node is nothing but a run of blocks."""
        fit = self._are_listed(run) or (not inner and all(map(self.is_layered, run)))
        return bool(run) and fit and self.total(run) == self.size(node)

    def _are_listed(self, run: list[int]) -> bool:
        """Whether nothing but numbers tells them apart, as in a list."""
        return all(self._columns.node_names[node].isdecimal() for node in run)

    def _are_alike(self, run: list[int]) -> bool:
        """Whether most have more than half of their leaves, in name and shape, in common with the next or the one
        before: then they are blocks."""
        columns = self._columns
        leaves = []
        for node in run:
            rows = [row for row in range(*columns.row_ranges[node]) if row in self._shapes]
            leaves.append(set(zip(columns.keys(rows, node), map(self._shapes.__getitem__, rows), strict=True)))
        alike = [2 * len(one & other) > len(one | other) for one, other in pairwise(leaves)]
        return 2 * sum(map(max, [False, *alike], [*alike, False])) > len(run)

    def _layered_run(self, stage: int, inner: bool) -> list[int]:
        """Layered blocks that hold most of a stage: its own children, or those of what holds most of it."""
        node: int | None = stage
        while node is not None:
            for run in self._numbered(node).values():
                layered = [one for one in run if self.is_layered(one)]
                if self._hold_most(layered, stage) and (self._are_listed(run) or not inner):
                    return layered
            node = next((child for child in self._columns.children(node) if self._hold_most([child], stage)), None)
        return []

    def _alike_inside(self, run: list[int], inside: list[list[int]]) -> list[list[int]]:
        """The same, with what stages hold under the names that blocks have in others, even if it is not most of them: a
        stage may have a single block."""
        columns = self._columns
        parents = [(node, columns.node_parents[its[0]]) for node, its in zip(run, inside, strict=True) if its]
        keys = {columns.node_keys(node)[parent] for node, parent in parents}
        found = []
        for node, its in zip(run, inside, strict=True):
            below = [] if its else [one for one, key in columns.node_keys(node).items() if key in keys]
            listed = [child for one in below[:1] for child in columns.children(one) if self.is_layered(child)]
            found.append(its or (listed if self._are_listed(listed) else []))
        return found

    def _hold_most(self, nodes: list[int], above: int) -> bool:
        """Whether they hold most of what is below a node, by size or by the number of matrices: a head, or an embedding
        of positions, may be larger than all blocks."""
        return 2 * self.total(nodes) > self.size(above) or 2 * self.matrices(nodes) > self.matrices([above])

    def beside(self, run: list[int], stages: list[list[_Block]]) -> list[tuple[int, int, int]]:
        """The rows of lists beside the stages that have an entry for each stage, as embeddings of patches and norms do,
        with the number of the block that each entry goes with: what comes before its stage with the first block of
        that, what comes after it with the last. The first entry before all stages is the stem."""
        if all(len(stage) == 1 for stage in stages):
            return []
        ends = [0, *accumulate(map(len, stages))]
        found = []
        for entries in self._parallels(run):
            for number, (entry, stage) in enumerate(zip(entries, run, strict=True)):
                first, last = self._columns.row_ranges[entry]
                comes_before = first < self._columns.row_ranges[stage][0]
                if number or not comes_before:
                    found.append((first, last, ends[number] if comes_before else ends[number + 1] - 1))
        return found

    def _parallels(self, run: list[int]) -> list[list[int]]:
        columns = self._columns
        parent = columns.node_parents[run[0]]
        found = list(self._numbered(parent).values())
        above = columns.node_parents[parent]
        if above >= 0 and self.total(run) == self.size(parent):
            found += [its for node in columns.children(above) for its in self._numbered(node).values()]
        return [its for its in found if len(its) == len(run) and its[0] not in run]
