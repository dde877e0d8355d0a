"""Gradients that are a tree of their own, as in JAX, paired with the leaves of their model by path."""

from typing import Any

from leafwise.core.parts import check_whole_leaves
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError


def gradients_by_leaf(t: Tree, gradients: Any) -> dict[int, Any]:
    """The gradient of each leaf of a model that has one. Raises if a gradient belongs to no leaf, or if its shape is
    not that of the leaf."""
    columns = t.columns
    with opened(gradients, "stats", live=True) as of_gradients:
        check_whole_leaves(of_gradients, "stats")
        own = dict(zip(_paths(t), t.rows, strict=True))
        given = dict(zip(_paths(of_gradients), of_gradients.rows, strict=True))
        if unknown := [path for path in given if path not in own]:
            raise PathError(
                f"of= has gradients at {listed(unknown)}, where the model has no leaf; its leaves are "
                f"{listed(list(own))}"
            )
        by_leaf: dict[int, Any] = {}
        for path, row in given.items():
            leaf = columns.ties.get(own[path], own[path])
            shapes = columns.facts([leaf])[0].spec.shape, of_gradients.columns.facts([row])[0].spec.shape
            if shapes[0] != shapes[1]:
                raise PathError(f"{path} has the shape {shapes[0]}, but its gradient has {shapes[1]}")
            by_leaf.setdefault(leaf, of_gradients.columns.row_values[row])
        return by_leaf


def _paths(t: Tree) -> list[str]:
    """The paths of the rows of a tree, relative to it."""
    start = len(t.columns.node_text(t.root)) + 1 if t.root else 0
    return [path[start:] for path in t.columns.row_texts(t.rows)]
