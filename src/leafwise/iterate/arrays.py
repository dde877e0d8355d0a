"""The arrays of a model as they are now."""

from collections.abc import Callable
from typing import Any

from leafwise.core.tree import Tree


def current_arrays(t: Tree, source: Any) -> Callable[[int], Any]:
    """A function that returns the array at a row of the tree of `source`.

    If the tree was walked for this call, the arrays of the walk are current. If `source` is the tree itself, arrays may
    have been replaced since, so they are read from their owners again.
    """
    return t.columns.current if t is source else t.columns.row_values.__getitem__
