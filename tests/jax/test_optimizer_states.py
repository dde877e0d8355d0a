"""States of optax, of `nnx.Optimizer` and of Equinox models in training: shown, saved, planned and loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.jax.models import TiedNnx

import leafwise as lw

PARAMS = {"dense": {"kernel": jnp.linspace(-1, 1, 6).reshape(2, 3), "bias": jnp.ones(3)}, "table": jnp.ones((8, 8))}
LABELS = {"dense": "adam", "table": "sgd"}
SCHEDULE = optax.cosine_decay_schedule(0.1, 100)


def quadratic(params: Any) -> Any:
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(params))


TRANSFORMATIONS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: optax.adamw(1e-3),
    "sgd": lambda: optax.sgd(0.1),
    "sgd with momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(SCHEDULE)),
    "named chain": lambda: optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.adam(0.1))),
    "multi_transform": lambda: optax.multi_transform({"adam": optax.adam(0.1), "sgd": optax.sgd(0.1)}, LABELS),
    "groups": lambda: lw.groups(PARAMS, [lw.no_decay()], lr=0.1).optax(
        lambda lr, weight_decay=0.1: optax.adamw(lr, weight_decay=weight_decay)
    ),
    "masked": lambda: optax.masked(optax.adam(0.1), lw.trainable(PARAMS, frozen="table")),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE, weight_decay=0.1),
    "lion": lambda: optax.lion(0.1),
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=4),
    "lamb": lambda: optax.lamb(0.1),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "noise with a key": lambda: optax.add_noise(0.1, 0.5, jax.random.key(3)),
    "ema": lambda: optax.ema(0.9),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(0.1),
    "prodigy": lambda: optax.contrib.prodigy(),
    "muon": lambda: optax.contrib.muon(0.1),
    "mechanize": lambda: optax.contrib.mechanize(optax.adam(0.1)),
}


def assert_same_state(first: Any, second: Any) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert type(first) is type(second)
    for one_leaf, other_leaf in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert one_leaf.dtype == other_leaf.dtype
        arrays = [
            jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            for leaf in (one_leaf, other_leaf)
        ]
        np.testing.assert_array_equal(*arrays)


@pytest.mark.parametrize("make", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)
def test_a_state_comes_back_with_its_types(make: Callable[[], Any], tmp_path: Path) -> None:
    tx = make()
    beginning = tx.init(PARAMS)
    updates, state = tx.update(jax.grad(quadratic)(PARAMS), beginning, PARAMS)
    params = optax.apply_updates(PARAMS, updates)
    path = lw.save({"model": params, "optimizer": state}, tmp_path / "a.safetensors")
    target = {"model": PARAMS, "optimizer": beginning}
    assert lw.plan(target, path).holds
    loaded = lw.load(target, path)
    assert_same_state(loaded["optimizer"], state)
    assert_same_state(loaded["model"], params)
    with lw.open(path) as file:
        sections = {leaf.section for leaf in file.select("optimizer.**")} if jax.tree.leaves(state) else {"optimizer"}
        assert sections == {"optimizer"}


@pytest.mark.parametrize("name", [name for name in TRANSFORMATIONS if name != "sgd"])
def test_every_leaf_of_a_state_is_state(name: str) -> None:
    state = TRANSFORMATIONS[name]().init(PARAMS)
    assert {leaf.kind for leaf in lw.tree(state)} == {"state"}
    assert lw.tree({"params": PARAMS, "opt_state": state}).counts.parameters == 6 + 3 + 64
    assert lw.tree(state).counts.parameters == 0


def test_state_is_shown_below_the_path_of_its_parameter() -> None:
    paths = {str(leaf.path) for leaf in lw.tree({"optimizer": optax.adam(0.1).init(PARAMS)})}
    assert {"optimizer.0.mu.dense.kernel", "optimizer.0.nu.table", "optimizer.0.count"} <= paths


def test_state_for_variables_of_nnx_is_state() -> None:
    parameters = nnx.state(TiedNnx(), nnx.Param)
    assert {leaf.kind for leaf in lw.tree(parameters)} == {"parameter"}
    assert {leaf.kind for leaf in lw.tree(optax.adam(0.1).init(parameters))} == {"state"}


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    path = lw.save({"model": PARAMS, "optimizer": optax.adam(0.1).init(PARAMS)}, tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match=r"missing: optimizer.*(.|\n)*unexpected: optimizer"):
        lw.load({"model": PARAMS, "optimizer": optax.sgd(0.1, momentum=0.9).init(PARAMS)}, path)


# -- training goes on ------------------------------------------------------------------------------------------


def _loss(model: TiedNnx) -> Any:
    hidden = model.norm(model.block(model.embed(jnp.arange(5))))
    return ((hidden @ model.head.kernel[...].T - jnp.eye(5)) ** 2).sum()


@nnx.jit
def _step(model: TiedNnx, optimizer: Any) -> Any:
    loss, gradients = nnx.value_and_grad(_loss)(model)
    optimizer.update(model, gradients)
    return loss


def _with_groups(model: TiedNnx) -> Any:
    groups = lw.groups(model, [lw.no_decay()], lr=0.01, weight_decay=0.1)
    return groups.optax(lambda lr, weight_decay: optax.adamw(lr, weight_decay=weight_decay))


NNX_TRANSFORMATIONS: dict[str, Callable[[TiedNnx], Any]] = {
    "adamw": lambda model: optax.adamw(0.01),
    "groups": _with_groups,
    "inject_hyperparams": lambda model: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE),
}


@pytest.mark.parametrize("make", NNX_TRANSFORMATIONS.values(), ids=NNX_TRANSFORMATIONS)
def test_a_run_of_nnx_that_was_interrupted_goes_on(make: Callable[[TiedNnx], Any], tmp_path: Path) -> None:
    def begin(seed: int) -> tuple[TiedNnx, Any]:
        model = TiedNnx(seed)
        return model, nnx.Optimizer(model, make(model), wrt=nnx.Param)

    model, optimizer = begin(0)
    uninterrupted = [float(_step(model, optimizer)) for _ in range(6)]
    model, optimizer = begin(0)
    losses = [float(_step(model, optimizer)) for _ in range(3)]
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    model, optimizer = begin(7)
    assert {leaf.kind for leaf in lw.tree(optimizer)} == {"state"}
    loaded = lw.load({"model": model, "optimizer": optimizer}, path)
    assert loaded["model"] is model
    assert loaded["optimizer"] is optimizer
    assert int(optimizer.step[...]) == 3
    losses += [float(_step(model, optimizer)) for _ in range(3)]
    assert losses == uninterrupted


def test_a_model_and_its_optimizer_in_one_object(tmp_path: Path) -> None:
    @nnx.jit
    def step(both: Any) -> Any:
        loss, gradients = nnx.value_and_grad(_loss)(both.model)
        both.update(gradients)
        return loss

    first, second = (nnx.ModelAndOptimizer(TiedNnx(seed), optax.adam(0.1)) for seed in (0, 3))
    step(first)
    lw.load(second, lw.save(first, tmp_path / "a.safetensors"))
    assert lw.tree(first).counts.parameters == 33
    assert float(step(first)) == float(step(second))


def test_a_run_of_equinox_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    tx = optax.adam(0.1)

    def begin(seed: int) -> tuple[Any, Any]:
        model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(seed))
        return model, tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> tuple[Any, Any, Any]:
        def loss_of(model: Any) -> Any:
            return ((jax.vmap(model)(jnp.ones((3, 2))) - 1) ** 2).sum()

        loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = tx.update(gradients, state)
        return eqx.apply_updates(model, updates), state, loss

    model, state = begin(0)
    model, state, _ = step(model, state)
    path = lw.save({"model": model, "optimizer": state}, tmp_path / "a.safetensors")
    other, other_state = begin(1)
    loaded = lw.load({"model": other, "optimizer": other_state}, path)
    assert_same_state(loaded["optimizer"], state)
    for _ in range(3):
        model, state, expected = step(model, state)
        other, other_state, loss = step(loaded["model"], loaded["optimizer"])
        loaded = {"model": other, "optimizer": other_state}
        assert float(loss) == float(expected)


def test_one_dict_at_two_places_gets_the_values_of_each_place(tmp_path: Path) -> None:
    """As in states that begin with a copy of the parameters: `prodigy` keeps the parameters themselves."""
    layer = {"w": jnp.zeros(2)}
    path = lw.save({"now": {"w": jnp.ones(2)}, "before": {"w": jnp.full(2, 2.0)}}, tmp_path / "a.safetensors")
    loaded = lw.load({"now": layer, "before": layer}, path)
    assert (loaded["now"]["w"].tolist(), loaded["before"]["w"].tolist()) == ([1, 1], [2, 2])


def test_states_of_convolutions_and_attention_whose_leaves_are_masked_are_saved_and_checked(tmp_path: Path) -> None:
    rngs = nnx.Rngs(0)
    model = nnx.Dict(conv=nnx.Conv(2, 4, (3, 3), rngs=rngs), attention=nnx.MultiHeadAttention(2, 8, rngs=rngs))
    groups = lw.groups(model, [lw.no_decay()], lr=0.1)
    make = groups.optax(lambda lr, weight_decay=0.1: optax.adamw(lr, weight_decay=weight_decay))
    both = {"model": model, "optimizer": nnx.Optimizer(model, make, wrt=nnx.Param)}
    assert not lw.check(both).errors
    lw.load(both, lw.save(both, tmp_path / "a.safetensors"))
