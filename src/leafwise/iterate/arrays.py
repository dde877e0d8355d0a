"""The tree of what a verb is given, and how to get at the arrays in it."""

from collections.abc import Callable
from typing import Any

from leafwise.core.tree import Tree, tree


def tied_names(t: Tree) -> dict[int, list[int]]:
    """For each leaf with several names, those in this tree, the first of them first."""
    columns = t.columns
    here = set(t.rows) if columns.further_rows else set()
    found = {leaf: [row for row in columns.rows_of(leaf) if row in here] for leaf in columns.further_rows}
    return {leaf: rows for leaf, rows in found.items() if rows}


def walked(model: Any) -> tuple[Tree, Callable[[int], Any]]:
    """The tree, and what gives the array at a row. What was walked just now stands where the walk found it; a Tree may
    be older, and arrays in its nodes may have been replaced."""
    t = tree(model)
    return t, t.columns.current if t is model else t.columns.row_values.__getitem__
