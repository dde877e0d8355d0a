"""Training pytrees: which arrays are trained, groups for optax, and what JAX has no counterpart for."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax

from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.capabilities.packing import Packing
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.tree import tree
from leafwise.errors import Error, RuleError, Unsupported, WalkError
from leafwise.homes.jax.pytrees import is_optax_state


class JaxFreezing(Freezing):
    """A mask says which arrays are trained, because arrays cannot record it."""

    def cannot_train(self, value: Any, trainable: bool) -> str:
        raise Unsupported(
            self.home.name,
            "thaw" if trainable else "freeze",
            "an array of JAX does not record whether it is trained; lw.Rule(…, frozen=True) freezes leaves in "
            "groups.optax, and lw.trainable(params, frozen=…) makes a mask for eqx.partition",
        )

    def trainable_part(self, root: Any, trained: frozenset[str], frozen: frozenset[tuple[str, ...]]) -> Any:
        # A place that eqx.nn.Shared fills has no array of its own.
        return _mapped(root, lambda path, leaf: path in trained and hasattr(leaf, "dtype"))


class JaxGrouping(Grouping):
    """Labels of parameters, and one transformation of gradients for all groups."""

    has_labels = True

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        if optimizer is not None:
            raise RuleError(
                "optimizer= takes a class of optimizers, which optax does not have; leave it out: groups.optax(make) "
                "checks the options of groups against the arguments of make"
            )
        return None

    def sorts_children(self, obj: Any) -> bool:
        if isinstance(obj, Mapping):
            return not isinstance(obj, OrderedDict)
        nnx = sys.modules.get("flax.nnx")
        return nnx is not None and isinstance(obj, nnx.Pytree) and not isinstance(obj, nnx.List)

    def labelled(self, params: Any, label_of: Callable[[str], str]) -> Any:
        return _mapped(params, lambda path, leaf: label_of(path))

    def joined(self, transforms: dict[str, Any], labels: Callable[[Any], Any]) -> Any:
        try:
            import optax
        except ModuleNotFoundError as error:
            raise Error("groups.optax needs optax: pip install optax") from error
        made = {label: optax.set_to_zero() if each is None else each for label, each in transforms.items()}
        return optax.multi_transform(made, labels)


class JaxPacking(Packing):
    def cannot_pack(self, value: Any) -> str:
        raise Unsupported(
            self.home.name,
            "flatten",
            "an array of JAX cannot become a view of a vector; jax.flatten_util.ravel_pytree(params) returns a vector, "
            "and a function that makes a tree of it",
        )


class JaxStepping(Stepping):
    """Optimizers of optax and NNX do not hold the parameters that they step."""

    def why_unknown(self, obj: Any) -> str:
        nnx = sys.modules.get("flax.nnx")
        if not is_optax_state(type(obj)) and (nnx is None or not isinstance(obj, nnx.Optimizer)):
            return ""
        return "an optimizer of JAX has only its own state, and gets the parameters with each update; omit optimizer="

    def held_by(self, optimizer: Any) -> list[tuple[str, Any]]:
        raise Unsupported(self.home.name, self.action)


def _flat_leaves(params: Any) -> tuple[list[str], list[Any], Any]:
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


def _mapped(params: Any, value_of: Callable[[str, Any], Any]) -> Any:
    """A pytree with the structure of `params`, and `value_of(path, leaf)` in place of each leaf."""
    paths, leaves, structure = _flat_leaves(params)
    return jax.tree.unflatten(structure, list(map(value_of, paths, leaves)))
