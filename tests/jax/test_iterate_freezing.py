"""Freezing in JAX: recorded by the Variables of Flax NNX, and a mask for pytrees."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.jax.models import EquinoxNet, TiedNnx, linen_variables

import leafwise as lw


def _loss(model: TiedNnx) -> Any:
    hidden = model.norm(model.block(model.embed(jnp.arange(5))))
    return ((hidden @ model.head.kernel[...].T - jnp.eye(5)) ** 2).sum()


def frozen_paths(model: Any) -> set[str]:
    return {str(path) for leaf in lw.tree(model) if leaf.trainable is False for path in leaf.paths}


BLOCK = {"block.kernel", "block.bias", "again.kernel", "again.bias"}


def test_the_tree_shows_what_is_frozen() -> None:
    model = TiedNnx()
    assert lw.freeze(model, "block.**") is model
    assert frozen_paths(model) == BLOCK
    assert "12 frozen" in str(lw.tree(model))
    lw.thaw(model, "block.kernel")
    assert frozen_paths(model) == {"block.bias", "again.bias"}


def test_frozen_variables_stay_frozen_when_nnx_takes_the_model_apart() -> None:
    model = lw.freeze(TiedNnx(), "block.**")
    assert frozen_paths(nnx.merge(*nnx.split(model))) == BLOCK
    assert frozen_paths(nnx.clone(model)) == BLOCK
    inside: list[set[str]] = []

    @nnx.jit
    def call(model: TiedNnx) -> None:
        inside.append(frozen_paths(model))

    call(model)
    assert inside == [BLOCK]
    assert frozen_paths(model) == BLOCK


def test_thawing_leaves_no_trace() -> None:
    model = TiedNnx()
    before = nnx.graphdef(model)
    lw.thaw(lw.freeze(model, "**"), "**")
    assert nnx.graphdef(model) == before


def test_only_trainable_parameters_are_differentiated_and_stepped() -> None:
    model = lw.freeze(TiedNnx(), "{block,norm}.**")
    trainable = lw.trainable(model)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=trainable)

    @nnx.jit
    def step(model: TiedNnx, optimizer: Any) -> Any:
        loss, gradients = nnx.value_and_grad(_loss, argnums=nnx.DiffState(0, trainable))(model)
        optimizer.update(model, gradients)
        return loss

    assert {str(leaf.path) for leaf in lw.tree(optimizer.opt_state[0].mu)} == {"embed.embedding"}
    before = np.array(model.block.kernel[...]), np.array(model.embed.embedding[...])
    losses = [float(step(model, optimizer)) for _ in range(5)]
    assert np.array_equal(model.block.kernel[...], before[0])
    assert not np.array_equal(model.embed.embedding[...], before[1])
    assert losses[-1] < losses[0]


def test_filters_of_the_same_model_are_equal() -> None:
    model = TiedNnx()
    assert lw.trainable(model) == lw.trainable(model)
    assert hash(lw.trainable(model, frozen="block.**")) == hash(lw.trainable(model, frozen="block.**"))


def test_a_filter_excludes_more_by_path_under_any_name() -> None:
    model = TiedNnx()
    selected = nnx.state(model, lw.trainable(model, frozen="{block,head}.**"))
    assert {str(leaf.path) for leaf in lw.tree(selected)} == {"norm.bias", "norm.scale"}
    assert frozen_paths(model) == set()


def test_frozen_statistics_do_not_drift_in_any_mode() -> None:
    model = TiedNnx()
    model.train()
    lw.freeze(model, "norm.**")
    assert model.norm.use_running_average is True
    mean = np.array(model.norm.mean[...])
    for _ in range(2):
        model.norm(jnp.arange(12.0).reshape(4, 3))
        assert np.array_equal(model.norm.mean[...], mean)
        model.train()  # normalizes by the batch again, but keeps the statistics
    frozen = {str(leaf.path) for leaf in lw.tree(model) if "frozen" in str(lw.tree(model).select(str(leaf.path)))}
    assert {"norm.mean", "norm.var"} <= frozen
    lw.thaw(model, "norm.**")
    assert model.norm.use_running_average is False
    model.norm(jnp.arange(12.0).reshape(4, 3))
    assert not np.array_equal(model.norm.mean[...], mean)


def test_thawing_restores_the_mode_of_the_layer() -> None:
    for mode in (True, False):
        norm = nnx.BatchNorm(3, use_running_average=mode, rngs=nnx.Rngs(0))
        lw.thaw(lw.freeze({"norm": norm}, "**"), "**")
        assert norm.use_running_average is mode


def test_a_hook_of_the_user_is_kept() -> None:
    seen: list[Any] = []

    def hook(variable: Any, value: Any) -> Any:
        seen.append(value)
        return value

    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    norm.mean.set_metadata("on_set_value", hook)
    lw.thaw(lw.freeze({"norm": norm}, "**"), "**")
    norm(jnp.ones((2, 3)))
    assert len(seen) == 1


def test_integers_cannot_be_thawed() -> None:
    model = nnx.Dict(ids=nnx.Param(jnp.arange(3)))
    with pytest.raises(lw.RuleError, match="only floating point can be trained, and it is int32"):
        lw.thaw(model, "**")


@pytest.mark.parametrize("build", [lambda: linen_variables()["params"], EquinoxNet])
def test_arrays_cannot_record_that_they_are_frozen(build: Any) -> None:
    for verb in (lw.freeze, lw.thaw):
        with pytest.raises(lw.Unsupported, match=r"lw\.Rule\(…, frozen=True\) freezes leaves in groups\.optax"):
            verb(build(), "**")


def test_a_mask_has_the_structure_of_the_pytree() -> None:
    variables = linen_variables()
    mask = lw.trainable(variables, frozen="params.conv.**")
    assert mask == {
        "params": {
            "conv": {"kernel": False, "bias": False},
            "norm": {"scale": True, "bias": True},
            "dense": {"kernel": True, "bias": True},
        },
        "batch_stats": {"norm": {"mean": False, "var": False}},
    }


def test_a_mask_for_optax() -> None:
    params = linen_variables()["params"]
    mask = lw.trainable(params, frozen="conv.**")
    labels = jax.tree.map(lambda trained: "trained" if trained else "frozen", mask)
    tx = optax.multi_transform({"trained": optax.sgd(0.1), "frozen": optax.set_to_zero()}, labels)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    assert not np.any(updates["conv"]["kernel"])
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.1, rtol=1e-6)


def test_a_mask_for_equinox() -> None:
    model = EquinoxNet()
    trained, frozen = eqx.partition(model, lw.trainable(model, frozen="layers.0.*"))
    assert trained.layers[0].weight is None
    assert frozen.layers[0].weight is model.layers[0].weight
    assert trained.layers[1].weight is model.layers[1].weight
    assert frozen.layers[1].weight is None


def test_functions_and_integers_are_not_trained() -> None:
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    mask = lw.trainable(model)
    assert mask.activation is False
    assert mask.layers[0].weight is True
    assert lw.trainable({"w": jnp.ones(2), "ids": jnp.arange(3)}) == {"w": True, "ids": False}


def test_what_matches_nothing_is_an_error() -> None:
    with pytest.raises(lw.PathError, match="no leaf matches"):
        lw.trainable({"w": jnp.ones(2)}, frozen="head.**")
    with pytest.raises(lw.RuleError, match="matches no parameter, only ids"):
        lw.trainable({"w": jnp.ones(2), "ids": jnp.arange(3)}, frozen="ids")
    with pytest.raises(lw.WalkError, match="no parameters"):
        lw.trainable({"ids": jnp.arange(3)})


def test_two_homes_have_no_common_selection() -> None:
    linear = nnx.Linear(2, 2, use_bias=False, rngs=nnx.Rngs(0))
    with pytest.raises(lw.WalkError, match=r"b is an array of jax, and z\.kernel is of flax nnx; .*nnx\.Param\(…\)"):
        lw.trainable({"b": jnp.ones(2), "z": linear})
    with pytest.raises(lw.WalkError, match=r"a\.w is an array of numpy, and b is of jax; .*jnp\.asarray"):
        lw.trainable({"a": {"w": np.ones(2, np.float32)}, "b": jnp.ones(2)})
    with pytest.raises(lw.Unsupported, match="select trainable leaves"):
        lw.trainable({"a": np.ones(2, np.float32)})


def test_a_model_of_jax_cannot_be_flattened() -> None:
    for model in (TiedNnx(), EquinoxNet(), linen_variables()):
        with pytest.raises(lw.Unsupported, match=r"jax\.flatten_util\.ravel_pytree"):
            lw.flat(model)
