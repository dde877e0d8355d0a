"""The leaves of a pytree in the order of JAX, each with its path in leafwise."""

from collections.abc import Callable
from typing import Any

import jax

from leafwise.core.tree import tree
from leafwise.errors import WalkError


def flat_leaves(params: Any) -> tuple[list[str], list[Any], Any]:
    """The path of each leaf of a pytree, the leaves as JAX flattens them, and their structure.

    To find the paths, leafwise walks a copy of the structure in which each leaf has a placeholder of its own. So they
    are the paths that `lw.tree` shows, also inside of `jax.jit`, and for leaves that are not arrays.
    """
    try:
        leaves, structure = jax.tree.flatten(params)
    except (SystemError, RecursionError) as error:  # the former if the latter is raised inside of JAX
        raise WalkError("the tree is nested too deeply for JAX, which cannot flatten it") from error
    if not leaves or jax.tree_util.treedef_is_leaf(structure):
        return [""] * len(leaves), leaves, structure
    placeholders = [jax.ShapeDtypeStruct((), "bool") for _ in leaves]
    copied = jax.tree.unflatten(structure, placeholders)
    columns = tree(copied).columns
    arrays = [columns.home(value).value(value) for value in columns.row_values]
    texts = columns.row_texts(range(len(arrays)))
    path_of = {id(array): text for array, text in zip(arrays, texts, strict=True)}
    missed = next((number for number, each in enumerate(placeholders) if id(each) not in path_of), None)
    if missed is not None:
        key = jax.tree_util.tree_flatten_with_path(copied)[0][missed][0]
        raise WalkError(f"JAX lists the leaf {jax.tree_util.keystr(key)}, but lw.tree does not")
    return [path_of[id(placeholder)] for placeholder in placeholders], leaves, structure


def mapped(params: Any, value_of: Callable[[str, Any], Any]) -> Any:
    """A pytree with the structure of `params`, and `value_of(path, leaf)` in place of each leaf."""
    paths, leaves, structure = flat_leaves(params)
    return jax.tree.unflatten(structure, list(map(value_of, paths, leaves)))
