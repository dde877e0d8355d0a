"""The arrays of a model as they are now."""

from collections.abc import Callable
from typing import Any

from leafwise.core.tree import Tree, tree


def tree_and_arrays(model: Any) -> tuple[Tree, Callable[[int], Any]]:
    """The tree of a model, and a function that gives the array at a row.

    After a walk of its own, what the walk read is current. A Tree that was passed in may be older, so its nodes are
    asked again: their arrays may have been replaced.
    """
    t = tree(model)
    return t, t.columns.current if t is model else t.columns.row_values.__getitem__
