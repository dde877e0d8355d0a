"""The depths of leaves in a model: as reported by the model, or from the repeated blocks in its tree."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.tree import Tree
from leafwise.iterate.blocks import BlockSearch, BlocksError, RepeatedBlock, blocks_matching, by_number, largest_stack
from leafwise.iterate.sorted_depths import SortedDepths


class Depths(NamedTuple):
    """How many blocks each row is below the top, and where that comes from: a pattern of blocks, or a method. `bottom`
    is the depth of leaves before the first block."""

    below_top: dict[int, int]
    by: str
    bottom: int


def depths(
    tree: Tree, rows: Sequence[int], blocks: str | None, first: Collection[int], last: Collection[int]
) -> Depths:
    """The depths of rows, which must be in ascending order: from the blocks that match the glob `blocks`, from the
    model's own method, or from the repeated blocks in the tree. Rows in `first` are before all blocks, and those in
    `last` are after them."""
    by_blocks = _found(tree, rows, blocks, {*first, *last})
    below_top = {**by_blocks.below_top, **dict.fromkeys(first, by_blocks.bottom), **dict.fromkeys(last, 0)}
    return by_blocks._replace(below_top={row: below_top[row] for row in rows})


def _found(tree: Tree, rows: Sequence[int], blocks: str | None, placed: set[int]) -> Depths:
    """The depths by themselves. Those of the rows in `placed` may be missing."""
    columns = tree.columns
    alphabetical = _is_alphabetical(tree, rows, placed)
    if blocks is not None:
        search = BlockSearch(columns, rows, [], alphabetical)
        matching = blocks_matching(search, tree, blocks)
        in_order = sorted(matching, key=lambda block: by_number(columns.node_text(block.node)))
        by_name = SortedDepths(search, columns, in_order)
        if by_name.apply():
            by_name.check_order(blocks)
            below_top, note = by_name.below_top(rows, placed)
            return Depths(below_top, blocks + note, len(matching) + 1)
        return _by_stages(columns, rows, [[block] for block in matching], [], blocks)
    matcher_nodes = nodes_answering(columns, tree.root, lambda home, cls: home.capability(Grouping).depths_by(cls))
    silent = ""  # a note for the account if the model's method gives no depths
    while True:
        search = BlockSearch(columns, rows, matcher_nodes, alphabetical)
        # If the tree is a part of a model, the node with the method may be above it.
        is_above = bool(matcher_nodes) and matcher_nodes[0] < tree.root
        stack = matcher_nodes[:1] if is_above else largest_stack(search, tree.root)
        if stack[0] not in matcher_nodes:
            return _by_tree(columns, rows, search, stack, placed, silent)
        by_model = _by_model(columns, stack[0], rows)
        if by_model is not None:
            return by_model
        silent = f": {_matcher(columns, stack[0])} matches no parameter"
        matcher_nodes.remove(stack[0])


def _is_alphabetical(tree: Tree, rows: Sequence[int], placed: set[int]) -> bool:
    """Whether the tree is of a file that lists its leaves alphabetically, as safetensors does. Raises if a leaf outside
    of the blocks is not in `placed` then: whether it comes before or after them cannot be known."""
    if not tree.is_file:
        return False
    name_of = {row: tree.columns.row_text(row) for row in rows}
    if [*name_of.values()] != sorted(name_of.values()):
        return False
    not_placed = [name for row, name in name_of.items() if row not in placed]
    outside = [name for name in not_placed if not re.search(r"(^|\.)\d+(\.|$)", name)]
    if outside:
        raise BlocksError(
            f"this file lists its leaves in alphabetical order, so it does not show whether {outside[0]} comes before "
            'or after the blocks; use the model itself, or name such leaves with first="…" and last="…"',
            has_fix=True,
        )
    return True


def nodes_answering(columns: Columns, node: int, ask: Callable[[Home, type], object]) -> list[int]:
    """The nodes for which `ask`, called with their home and type, returns something true: first those above `node`,
    from the root down, then `node` and those below it."""
    nodes = columns.nodes_where(lambda home, obj: ask(home, type(obj)), node)
    above = columns.node_parents[node]
    while above >= 0:
        obj = columns.node_objects[above]
        if ask(columns.home(obj), type(obj)):
            nodes.insert(0, above)
        above = columns.node_parents[above]
    return nodes


def _by_model(columns: Columns, node: int, rows: Sequence[int]) -> Depths | None:
    """The depths according to the method of a node; None if it gives none. The method is called for all leaves below
    the node, so that the depth of a leaf does not depend on which rows are requested."""
    obj = columns.node_objects[node]
    ask = columns.home(obj).capability(Grouping).depths_by(type(obj))
    assert ask is not None
    first, last = columns.row_ranges[node]
    below = [row for row in range(first, last) if columns.row_kinds[row] in ("parameter", "array")]
    try:
        levels = dict(zip(below, ask(obj, columns.keys(below, node)), strict=True))
    except Exception as error:  # raised by the model's own method
        raise BlocksError(f"{_matcher(columns, node)} cannot be used: {type(error).__name__}: {error}") from error
    known = [level for level in levels.values() if level is not None]
    if not known:
        return None
    top = max(known) + (len(known) < len(below) or rows[-1] >= last)
    below_top = {}
    for row in rows:
        # Rows before the model are at its lowest level, like its stem; rows after it are at the top.
        level = 0 if row < first else top if row >= last else levels[row]
        below_top[row] = top - (top if level is None else level)
    return Depths(below_top, _matcher(columns, node), top)


def _by_tree(
    columns: Columns, rows: Sequence[int], search: BlockSearch, stack: list[int], placed: set[int], silent: str
) -> Depths:
    """The depths by a stack of blocks that was found in the tree. `silent` is added to the note."""
    stages = search.stages(stack)
    blocks = [block for stage in stages for block in stage]
    by_name = SortedDepths(search, columns, blocks)
    if by_name.apply():
        below_top, note = by_name.below_top(rows, placed)
        return Depths(below_top, _pattern([columns.node_text(block.node) for block in blocks]) + note, len(blocks) + 1)
    by_order = _by_stages(columns, rows, stages, search.beside(stack, stages))
    return by_order._replace(by=by_order.by + silent)


def _matcher(columns: Columns, node: int) -> str:
    """The method of a node that gives the depths of its leaves, for messages."""
    return f"{columns.type_name(node)}.group_matcher()"


def _by_stages(
    columns: Columns,
    rows: Sequence[int],
    stages: list[list[RepeatedBlock]],
    beside: list[tuple[int, int, int]],
    pattern: str | None = None,
) -> Depths:
    """The depths by blocks. Leaves before the first block are one level below it, and leaves after the last block are
    at the top. Any other leaf is as deep as the last block that begins before it. `beside` has ranges of rows (first,
    last), each with the number of the block whose depth they have."""
    blocks = [block for stage in stages for block in stage]
    starts = [block.first for block in blocks]
    top = len(blocks) + 1
    below_top = {row: top - (top if row >= blocks[-1].last else bisect_right(starts, row)) for row in rows}
    for first, last, number in beside:
        below_top.update({row: top - 1 - number for row in range(first, last) if row in below_top})
    return Depths(below_top, pattern or _pattern([columns.node_text(block.node) for block in blocks]), top)


def _pattern(paths: list[str]) -> str:
    """A pattern that matches the paths; if they differ in length, one pattern for each length.

    >>> _pattern(["stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0"]), _pattern(["layer1.0", "layer2.0"])
    ('stages.*.blocks.*', 'layer*.0')
    >>> _pattern(["a.0", "b.0.1"])
    'a.0, b.0.1'
    """
    by_length: dict[int, list[list[str]]] = {}
    for path in paths:
        names = path.split(".")
        by_length.setdefault(len(names), []).append(names)
    return ", ".join(".".join(map(_common, zip(*similar, strict=True))) for similar in by_length.values())


def _common(names: Sequence[str]) -> str:
    if len(set(names)) == 1:
        return names[0]
    without_numbers = {re.sub(r"\d+", "*", name) for name in names}
    return without_numbers.pop() if len(without_numbers) == 1 else "*"
