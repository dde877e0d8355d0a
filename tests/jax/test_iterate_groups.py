"""`groups.optax` and `groups.labels`: transformations of optax from the rules of `lw.groups`."""

import builtins
from pathlib import Path
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

DECAYED, NOT_DECAYED, NOT_TRAINED = "no options", "weight_decay=0", "not trained"


def adamw(lr: float, weight_decay: float = 0.0) -> Any:
    return optax.adamw(lr, weight_decay=weight_decay)


def sgd(lr: float, weight_decay: float = 0.0) -> Any:
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(lr))


def ones_like(params: Any) -> Any:
    return jax.tree.map(jnp.ones_like, params)


def test_labels_have_the_structure_of_the_parameters() -> None:
    params = linen_variables()["params"]
    labels = lw.groups(params, [lw.no_decay()]).labels(params)
    assert labels == {
        "conv": {"kernel": DECAYED, "bias": NOT_DECAYED},
        "dense": {"kernel": DECAYED, "bias": NOT_DECAYED},
        "norm": {"scale": NOT_DECAYED, "bias": NOT_DECAYED},
    }


def test_each_group_is_stepped_by_its_own_transformation() -> None:
    params = {"dense": {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full(3, 2.0)}}
    tx = lw.groups(params, [lw.no_decay()], lr=0.1, weight_decay=0.5).optax(sgd)
    updates, _ = tx.update(ones_like(params), tx.init(params), params)
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.1 * (1 + 0.5 * 2), rtol=1e-6)
    np.testing.assert_allclose(updates["dense"]["bias"], -0.1, rtol=1e-6)


def test_updates_are_those_of_the_same_transformations_written_by_hand() -> None:
    params = linen_variables()["params"]
    groups = lw.groups(params, [lw.no_decay()], lr=0.01, weight_decay=0.1)
    transforms = {"lr=0.01, weight_decay=0.1": adamw(0.01, 0.1), "lr=0.01, weight_decay=0": adamw(0.01)}
    by_hand = optax.multi_transform(transforms, groups.labels)
    made = [jax.jit(tx.update)(ones_like(params), tx.init(params), params)[0] for tx in (groups.optax(adamw), by_hand)]
    jax.tree.map(np.testing.assert_array_equal, *made)


def test_parameters_of_equinox() -> None:
    model = EquinoxNet()
    params = eqx.filter(model, eqx.is_array)
    tx = lw.groups(model, [lw.no_decay()], lr=0.1, weight_decay=0.5).optax(sgd)
    state = tx.init(params)
    updates, _ = eqx.filter_jit(tx.update)(ones_like(params), state, params)
    weight, bias = model.layers[0].weight, updates.layers[0].bias
    np.testing.assert_allclose(updates.layers[0].weight, -0.1 * (1 + 0.5 * weight), rtol=1e-5)
    np.testing.assert_allclose(bias, jnp.full(4, -0.1), rtol=1e-6)
    assert jax.tree.structure(eqx.apply_updates(params, updates)) == jax.tree.structure(params)


def test_a_callable_model_of_equinox() -> None:
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    tx = lw.groups(model, [lw.no_decay()], lr=0.1).optax(sgd)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, _ = tx.update(ones_like(params), tx.init(params), params)
    np.testing.assert_allclose(updates.layers[0].weight, -0.1, rtol=1e-6)


def _loss(model: TiedNnx) -> Any:
    hidden = model.norm(model.block(model.embed(jnp.arange(5))))
    return ((hidden @ model.head.kernel[...].T - jnp.eye(5)) ** 2).sum()


def _values(model: Any) -> dict[str, Any]:
    """The values under all names: NNX sorts attributes, so that tied leaves may get another first name."""
    return {str(path): np.array(leaf.numpy()) for leaf in lw.tree(model) for path in leaf.paths}


def test_flax_nnx_steps_a_tied_variable_once() -> None:
    model = TiedNnx()
    tx = lw.groups(model, [lw.no_decay()], lr=0.1, weight_decay=0.5).optax(sgd)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    gradients = nnx.grad(_loss)(model)
    before = _values(model)
    gradient = np.array(gradients["embed"]["embedding"][...])
    optimizer.update(model, gradients)
    expected = before["embed.embedding"] - 0.1 * (gradient + 0.5 * before["embed.embedding"])
    np.testing.assert_allclose(model.embed.embedding[...], expected, rtol=1e-5, atol=1e-6)
    assert model.head.kernel is model.embed.embedding


def test_frozen_leaves_of_flax_nnx_do_not_change_inside_of_jit() -> None:
    model = lw.freeze(TiedNnx(), "{block,norm}.**")
    tx = lw.groups(model, [lw.no_decay()], lr=0.1, weight_decay=0.5).optax(adamw)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: TiedNnx, optimizer: Any) -> None:
        optimizer.update(model, nnx.grad(_loss)(model))

    before = _values(model)
    step(model, optimizer)
    after = _values(model)
    changed = {path for path, value in after.items() if not np.array_equal(value, before[path])}
    assert changed == {"embed.embedding", "head.kernel"}


def test_a_rule_freezes_leaves_of_a_pytree() -> None:
    params = linen_variables()["params"]
    rules = [lw.no_decay(), lw.Rule("conv.**", frozen=True)]
    tx = lw.groups(params, rules, lr=0.1).optax(sgd)
    updates, _ = tx.update(ones_like(params), tx.init(params), params)
    assert not np.any(updates["conv"]["kernel"])
    assert np.all(updates["dense"]["kernel"])


def test_integers_are_not_trained() -> None:
    params = {"w": jnp.ones((2, 2)), "ids": jnp.arange(3)}
    assert lw.groups(params).labels(params) == {"w": DECAYED, "ids": NOT_TRAINED}


def test_layer_decay_scales_the_learning_rates_of_layers() -> None:
    model = nnx.Sequential(*[nnx.Linear(2, 2, use_bias=False, rngs=nnx.Rngs(0)) for _ in range(3)])
    tx = lw.groups(model, [lw.layer_decay(0.5)], lr=1.0).optax(sgd)
    state = nnx.state(model, nnx.Param)
    updates, _ = tx.update(ones_like(state), tx.init(state), state)
    steps = [float(each[0, 0]) for each in jax.tree.leaves(updates)]
    assert steps == pytest.approx([-0.125, -0.25, -0.5])


def test_a_part_has_paths_of_its_own() -> None:
    variables = linen_variables()
    groups = lw.groups(lw.tree(variables)["params"], [lw.no_decay()])
    assert groups.labels(variables["params"])["dense"]["kernel"] == DECAYED


def test_a_parameter_in_no_group_is_an_error_by_name() -> None:
    params = linen_variables()["params"]
    tx = lw.groups(params, lr=0.1).optax(sgd)
    with pytest.raises(lw.RuleError, match=r"extra\.kernel is in none of the groups"):
        tx.init({**params, "extra": {"kernel": jnp.ones((2, 2))}})
    whole = lw.groups({"params": params}, lr=0.1).optax(sgd)
    with pytest.raises(lw.RuleError, match=r"paths such as params\.conv\.bias"):
        whole.init(params)


def test_options_that_make_does_not_take_are_an_error_by_group() -> None:
    params = linen_variables()["params"]
    groups = lw.groups(params, [lw.no_decay()], lr=0.1)
    with pytest.raises(lw.RuleError, match=r"group of conv\.bias, which has lr=0\.1, weight_decay=0: .*unexpected"):
        groups.optax(lambda lr: optax.sgd(lr))
    with pytest.raises(lw.RuleError, match=r"group of conv\.kernel, which has lr=0\.1: missing .*'weight_decay'"):
        groups.optax(lambda lr, weight_decay: optax.adamw(lr, weight_decay=weight_decay))


def test_optimizer_is_refused_because_make_has_the_arguments() -> None:
    with pytest.raises(lw.RuleError, match=r"groups\.optax\(make\)"):
        lw.groups({"w": jnp.ones(2)}, optimizer=optax.adamw)


def test_groups_of_numpy_arrays_have_no_labels() -> None:
    groups = lw.groups({"w": np.ones((2, 2), np.float32)})
    for call in (lambda: groups.optax(sgd), lambda: groups.labels({"w": 1})):
        with pytest.raises(lw.Unsupported, match="not arrays of JAX"):
            call()


def test_without_optax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = lw.groups({"w": jnp.ones((2, 2))}, lr=0.1)
    real_import = builtins.__import__

    def without_optax(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "optax":
            raise ModuleNotFoundError("No module named 'optax'", name="optax")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_optax)
    with pytest.raises(lw.Error, match="pip install optax"):
        groups.optax(lambda lr: None)


def test_a_state_belongs_to_the_same_group_after_jax_sorts_the_parameters(tmp_path: Path) -> None:
    params = {"head": jnp.ones((2, 2)), "body": jnp.ones((2, 2))}

    def made(params: Any) -> Any:
        groups = lw.groups(params, [lw.Rule("head", lr=0.5)], lr=0.01)
        return groups.optax(lambda lr: optax.inject_hyperparams(optax.sgd)(lr))

    path = lw.save({"opt_state": made(params).init(params)}, tmp_path / "state.safetensors")
    resumed = jax.jit(lambda tree: tree)(params)
    tx = made(resumed)
    state = lw.load({"opt_state": tx.init(resumed)}, path)["opt_state"]
    updates, _ = tx.update(ones_like(resumed), state, resumed)
    np.testing.assert_allclose(updates["head"], -0.5, rtol=1e-6)
    np.testing.assert_allclose(updates["body"], -0.01, rtol=1e-6)


def test_labels_do_not_depend_on_the_order_of_leaves_or_options() -> None:
    params = {"b": jnp.ones((2, 2)), "a": jnp.ones((2, 2)), "c": jnp.ones((2, 2))}
    in_order = dict(sorted(params.items()))
    close = [lw.Rule("a", lr=0.1), lw.Rule("b", lr=0.100000000001)]
    assert lw.groups(params, close).labels(in_order) == lw.groups(in_order, close[::-1]).labels(in_order)
    assert lw.groups(params, close).labels(params)["b"] == "lr=0.100000000001"
    schedules = [lw.Rule("{b,c}", lr=lambda step: 0.1), lw.Rule("a", lr=lambda step: 0.2)]
    labels = lw.groups(params, schedules).labels(params)
    assert labels == {"a": "lr=<lambda> for a", "b": "lr=<lambda> for b", "c": "lr=<lambda> for b"}
    assert lw.groups(in_order, schedules).labels(in_order) == labels
    mixed = [lw.Rule("a", weight_decay=0.1, lr=0.5), lw.Rule("b", lr=0.5, weight_decay=0.1)]
    labels = lw.groups(params, mixed).labels(params)
    assert labels["a"] == labels["b"] == "lr=0.5, weight_decay=0.1"


def test_one_array_of_numpy_among_those_of_jax_is_stepped() -> None:
    params = {"a": np.ones((2, 2), np.float32), "b": jnp.ones((2, 2))}
    tx = lw.groups(params, [lw.Rule("a", lr=0.5)], lr=0.1).optax(sgd)
    updates, _ = tx.update(ones_like(params), tx.init(params), params)
    np.testing.assert_allclose(updates["a"], -0.5, rtol=1e-6)
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-6)
