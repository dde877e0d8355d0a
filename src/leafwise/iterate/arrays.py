"""The arrays of a model as they are now."""

from collections.abc import Callable
from typing import Any

from leafwise.core.tree import Tree, tree


def tree_and_arrays(model: Any) -> tuple[Tree, Callable[[int], Any]]:
    """The tree of a model, and a function that returns the array at a row.

    If the model is walked here, the arrays of the walk are current. If a Tree is passed in, arrays may have been
    replaced since, so they are read from their owners again.
    """
    t = tree(model)
    return t, t.columns.current if t is model else t.columns.row_values.__getitem__
