"""`lw.trainable`: which leaves training changes, in the form that JAX needs it."""

from typing import Any

from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_inexact
from leafwise.core.home import capability_or_none
from leafwise.core.parts import first_rows
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import RuleError, WalkError
from leafwise.share.places import leaves_matching


def trainable(model: Any, frozen: Any = None) -> Any:
    """Which leaves of a JAX model are trained, in the form that JAX libraries take it.

    For a module of Flax NNX, this is a filter for `nnx.Optimizer(…, wrt=)` and `nnx.DiffState`. It selects the Params
    that `lw.freeze` has not frozen.

    For a pytree, this is a mask: a tree of the same structure with True and False, for `eqx.partition`. Floating-point
    parameters are trained. `frozen` selects leaves that are not, because the arrays cannot record it themselves; if
    nothing matches, that is an error. For optax, use `lw.Rule(…, frozen=True)` and `groups.optax`: `optax.masked`
    freezes nothing, since it passes gradients on as they are where a mask is False.

    >>> import jax.numpy as jnp, leafwise as lw
    >>> params = {"encoder": {"kernel": jnp.ones((2, 3))}, "head": {"kernel": jnp.ones((3, 1))}}
    >>> lw.trainable(params, frozen="encoder.**")
    {'encoder': {'kernel': False}, 'head': {'kernel': True}}
    """
    with opened(model, "trainable", live=True, action="have trainable leaves") as t:
        columns = t.columns
        leaves = {columns.ties.get(row, row) for row in first_rows(t) if columns.leaf_kind(row) == "parameter"}
        leaves = {leaf for leaf in leaves if is_inexact(columns.facts([leaf])[0].spec.dtype)}
        freezing = _common_freezing(columns, sorted(leaves))
        selected = _frozen_leaves(t, frozen, leaves)
        kept = {leaf for leaf in leaves - selected if columns.facts([leaf])[0].spec.trainable is not False}
        start = len(columns.node_text(t.root)) + 1 if t.root else 0
        texts = columns.row_texts(t.rows)
        trained = {text[start:] for row, text in zip(t.rows, texts, strict=True) if columns.ties.get(row, row) in kept}
        depth = len(columns.node_path(t.root).names)
        rows = [row for row in t.rows if columns.ties.get(row, row) in selected]
        names_of_frozen = frozenset(columns.row_path(row).names[depth:] for row in rows)
        return freezing.trainable_part(columns.node_objects[t.root], frozenset(trained), names_of_frozen)


def _common_freezing(columns: Columns, leaves: list[int]) -> Freezing:
    """What selects the trainable leaves of a model; raises if they need different kinds of selections."""
    if not leaves:
        raise WalkError("there are no parameters")
    leaf_homes = [columns.home(columns.current(leaf)) for leaf in leaves]
    kinds = [type(capability_or_none(home, Freezing)) for home in leaf_homes]
    if len({*kinds}) == 1:
        return leaf_homes[0].capability(Freezing, "select trainable leaves")
    # Arrays that are not of JAX are the exception among arrays of JAX, and any arrays are among Variables of NNX.
    names = [home.name for home in leaf_homes]
    usual = next(name for name in ("flax nnx", "jax", *names) if name in names)
    odd = next(number for number, name in enumerate(names) if kinds[number] is not kinds[names.index(usual)])
    repair = "put it in a Variable: nnx.Param(…)" if usual == "flax nnx" else "convert it: jax.tree.map(jnp.asarray, …)"
    raise WalkError(
        f"{columns.row_text(leaves[odd])} is an array of {names[odd]}, and "
        f"{columns.row_text(leaves[names.index(usual)])} is of {usual}; {repair}, or pass a part of the tree"
    )


def _frozen_leaves(t: Tree, frozen: Any, parameters: set[int]) -> set[int]:
    """The parameters that match a query; raises if there are none."""
    if frozen is None:
        return set()
    matched = leaves_matching(t, frozen)
    if not matched & parameters:
        raise RuleError(f"frozen={frozen!r} matches no parameter, only {t.columns.row_text(min(matched))}")
    return matched & parameters
