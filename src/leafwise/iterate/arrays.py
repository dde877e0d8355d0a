"""The arrays of a model as they are now."""

from collections.abc import Callable
from typing import Any

from leafwise.core.tree import Tree


def current_arrays(t: Tree, source: Any) -> Callable[[int], Any]:
    """A function that gives the array at a row of the tree, which was walked for this call unless it is `source`.

    After a walk, what the walk read is current. A Tree that was passed in may be older, so its nodes are asked again:
    their arrays may have been replaced.
    """
    return t.columns.current if t is source else t.columns.row_values.__getitem__
