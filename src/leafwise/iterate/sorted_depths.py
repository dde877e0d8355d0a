"""The depths of leaves in trees that JAX or a file sorts by name, so that order does not say what comes first.

Blocks follow each other by their numbers. What is outside of them is before or after them by its role or name, if that
leaves no doubt.
"""

import re
from collections.abc import Sequence

from leafwise.core.columns import Columns
from leafwise.core.path import listed
from leafwise.iterate.blocks import BlockSearch, BlocksError, RepeatedBlock

_BEFORE = re.compile(r"(pos)?embed.*|patch.*|stem|wte|wpe|tokens?|positions?|positional")
_AFTER = re.compile(r"heads?|classifier|logits|unembed.*|final")
_FINAL_NORMS = ("norm", "norm_f", "ln_f", "ln_post", "norm_post", "encoder_norm", "decoder_norm")


class SortedDepths:
    """The depths of rows by the blocks of a tree in which names, not order, say what comes first."""

    def __init__(self, search: BlockSearch, columns: Columns, blocks: Sequence[RepeatedBlock]) -> None:
        self._search, self._columns = search, columns
        self._nodes = [block.node for block in blocks]
        self._number_of = {
            row: number for number, node in enumerate(self._nodes) for row in range(*columns.row_ranges[node])
        }
        self._top = len(blocks) + 1
        # The numbers of the blocks below each node that has any.
        self._blocks_below: dict[int, list[int]] = {}
        for number, node in enumerate(self._nodes):
            above = columns.node_parents[node]
            while above >= 0:
                self._blocks_below.setdefault(above, []).append(number)
                above = columns.node_parents[above]

    def apply(self) -> bool:
        """Whether a node above the blocks has children that are sorted by name."""
        return any(map(self._search.is_sorted, self._blocks_below))

    def check_order(self, pattern: str) -> None:
        """Raises if the blocks that match a pattern differ in more than their numbers."""
        paths = [self._columns.node_text(node) for node in self._nodes]
        for path in paths[1:]:
            if re.sub(r"\d+", "#", path) != re.sub(r"\d+", "#", paths[0]):
                raise BlocksError(
                    f"blocks={pattern!r} matches {paths[0]} and {path}, and names are sorted here, so their order is "
                    "not known; name blocks that differ only in their numbers, or write a rule for each stack"
                )

    def below_top(self, rows: Sequence[int], placed: set[int]) -> tuple[dict[int, int], str]:
        """How many blocks each row is below the top, and a note on rows that were placed by name. Rows in `placed` are
        left out if they are not in a block."""
        levels: dict[int, int] = {}
        by_name: dict[int, list[str]] = {}
        unknown: list[int] = []
        for row in rows:
            if row in self._number_of:
                levels[row] = self._number_of[row] + 1
                continue
            if row in placed:
                continue
            node = self._columns.row_nodes[row]
            while node not in self._blocks_below:
                node = self._columns.node_parents[node]
            level = self._level_by_name(row, node) if self._search.is_sorted(node) else self._level_by_order(row, node)
            if level is None:
                unknown.append(row)
                continue
            levels[row] = level
            if self._search.is_sorted(node):
                by_name.setdefault(level, []).append(self._columns.row_text(row))
        if unknown:
            names = listed([self._columns.row_text(row) for row in unknown], 3)
            raise BlocksError(
                f"names are sorted here, so the tree does not show what is before and after the blocks; {names}: name "
                'leaves before them with first="…", and leaves after them with last="…"',
                has_fix=True,
            )
        notes = [
            f"; {'before' if level == 0 else 'after'} them by name: {listed(by_name[level], 3)}"
            for level in sorted(by_name)
        ]
        return {row: self._top - level for row, level in levels.items()}, "".join(notes)

    def _level_by_order(self, row: int, node: int) -> int:
        """The level of a row outside of the blocks, in a node that keeps its order, such as a list."""
        numbers = self._blocks_below[node]
        ahead = [number for number in numbers if self._columns.row_ranges[self._nodes[number]][0] <= row]
        if len(numbers) < len(self._nodes):  # a stage
            return (ahead[-1] if ahead else numbers[0]) + 1
        return self._top if len(ahead) == len(numbers) else len(ahead)

    def _level_by_name(self, row: int, node: int) -> int | None:
        """The level of a row below a node with sorted names; None if its role and its name do not say."""
        if len(self._blocks_below[node]) < len(self._nodes):
            return None  # in one of several stages
        names = self._columns.keys([row], node)[0].split(".")
        words = [
            word for name in names for word in re.split(r"[\W_\d]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
        ]
        role = self._columns.row_roles([row])[0][0]
        before = role == "embedding.table" or any(map(_BEFORE.fullmatch, words))
        after = any(map(_AFTER.fullmatch, words)) or (not before and not {*names}.isdisjoint(_FINAL_NORMS))
        if before == after:
            return None
        return 0 if before else self._top
