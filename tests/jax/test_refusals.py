"""What cannot be done with values of JAX is refused with the reason and a repair, and what is done is not an error."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import leafwise as lw


def params(value: float = 0.0) -> dict[str, Any]:
    return {name: {"kernel": jnp.full((3, 3), value), "bias": jnp.full(3, value)} for name in "abc"}


def test_a_leaf_of_a_pytree_cannot_be_written() -> None:
    tree = params()
    reason = r"^a\.bias: jax cannot write in place: arrays of JAX cannot change; make a new tree.*nothing was changed$"
    with pytest.raises(lw.Unsupported, match=reason) as error:
        lw.tree(tree)["a.bias"].write(np.ones(3, "float32"))
    assert (error.value.home, error.value.capability) == ("jax", "write in place")
    assert not tree["a"]["bias"].any()


@pytest.mark.parametrize("where", ["b.w", "b"])
def test_equal_arrays_of_a_pytree_are_two_leaves_already(where: str) -> None:
    array = jnp.ones(2)
    with pytest.raises(lw.TieError, match="at two places of a pytree is two leaves already"):
        lw.untie({"a": {"w": array}, "b": {"w": array}}, where)
    layer = {"w": array}
    with pytest.raises(lw.TieError, match="at two places of a pytree is two leaves already"):
        lw.untie({"a": layer, "b": layer}, where)


def test_a_variable_that_is_not_tied_is_only_not_tied() -> None:
    with pytest.raises(lw.TieError, match=r"not tied to anything$"):
        lw.untie(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "bias")


def optimizers() -> list[tuple[Any, Any]]:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    net = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    return [
        (model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)),
        (net, optax.adam(0.1).init(eqx.filter(net, eqx.is_array))[0]),
        (params(), optax.adam(0.1).init(params())[0]),
        (params(), optax.adam(0.1)),
    ]


@pytest.mark.parametrize("number", range(4))
def test_an_optimizer_does_not_hold_parameters(number: int) -> None:
    model, optimizer = optimizers()[number]
    for verb in (lw.check, lw.ties):
        with pytest.raises(lw.Unsupported, match="an optimizer of JAX has only its own state"):
            verb(model, optimizer=optimizer)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(lw.Unsupported, match=r"flax nnx cannot list the parameters of an optimizer$"):
        lw.check(params(), optimizer=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("theirs", ["rbg", "unsafe_rbg"])
def test_keys_of_other_implementations_are_named_whatever_their_shapes(theirs: str) -> None:
    for ours in ("threefry2x32", "rbg", "unsafe_rbg"):
        target, source = {"k": jax.random.key(0, impl=ours)}, {"k": jax.random.key(1, impl=theirs)}
        if ours == theirs:
            assert lw.diff(lw.load(target, source), source).same
            continue
        with pytest.raises(lw.LoadError, match=rf"k is a key of \S*{ours}\S* in the model but of \S*{theirs}"):
            lw.load(target, source)


def test_keys_of_another_number_have_another_shape() -> None:
    with pytest.raises(lw.LoadError, match="shape: k is 3×2 in the model but 2×2"):
        lw.load({"k": jax.random.split(jax.random.key(0), 3)}, {"k": jax.random.split(jax.random.key(0), 2)})


def test_ties_that_a_pytree_cannot_have_are_one_note(tmp_path: Path) -> None:
    layers = [nnx.Linear(3, 3, rngs=nnx.Rngs(0)) for _ in range(3)]
    model = nnx.Dict(a=layers[0], b=layers[1], c=layers[2])
    for layer in layers[1:]:
        layer.kernel = layers[0].kernel
    lw.save(model, tmp_path / "x.safetensors")
    plan = lw.plan(params(), tmp_path / "x.safetensors")
    (note,) = plan.notes
    assert note.startswith("b.kernel, c.kernel are tied in the checkpoint, but not here")
    loaded = lw.load(params(), tmp_path / "x.safetensors")
    for name in "abc":
        np.testing.assert_array_equal(loaded[name]["kernel"], model["a"].kernel[...])


def test_a_tree_that_is_too_deep_for_jax_is_refused() -> None:
    tree: dict[str, Any] = {"w": jnp.ones(2)}
    for _ in range(2_000):
        tree = {"a": tree}
    groups = lw.groups(tree, lr=0.1)
    try:
        leaves = len(jax.tree.leaves(tree))
    except (RecursionError, SystemError):
        with pytest.raises(lw.WalkError, match="nested too deeply for JAX"):
            groups.labels(tree)
    else:  # newer versions of Python and JAX nest deeper
        assert len(jax.tree.leaves(groups.labels(tree))) == leaves
