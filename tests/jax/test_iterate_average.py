"""`lw.Average` over JAX: in place for Flax NNX, new arrays for pytrees."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tests.jax.models import EquinoxNet, TiedNnx

import leafwise as lw


def test_variables_get_their_averages_and_their_own_values_again() -> None:
    model = TiedNnx()
    average = lw.Average(model, decay=0.5)
    for value in (1.0, 2.0, 4.0):
        model.embed.embedding[...] = jnp.full((5, 3), value)
        average.update()
    with average.applied() as averaged:
        assert averaged is model
        assert (model.embed.embedding[...] == 2.75).all()
        assert model.head.kernel is model.embed.embedding
        with pytest.raises(lw.WriteError, match="leave the"):
            average.update()
    assert (model.embed.embedding[...] == 4).all()


def test_an_average_goes_on_after_nnx_has_sorted_the_modules() -> None:
    model = TiedNnx()
    average = lw.Average(model)
    average.update()
    nnx.jit(lambda model: model.embed(jnp.arange(2)))(model)
    average.update()
    average.update(nnx.merge(*nnx.split(model)))
    assert average.updates == 3


def test_an_average_of_a_model_with_another_layer_is_refused() -> None:
    model = TiedNnx()
    average = lw.Average(model)
    model.extra = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with pytest.raises(lw.PathError, match=r"extra\.bias is in the model but not in the average"):
        average.update()


def test_pytrees_get_new_arrays() -> None:
    params: dict[str, Any] = {"w": jnp.zeros(3), "steps": jnp.arange(2), "key": jax.random.key(1)}
    average = lw.Average(params, decay=0.5)
    for value in (1.0, 2.0, 4.0):
        params = {**params, "w": jnp.full(3, value), "steps": params["steps"] + 1}
        average.update(params)
    with average.applied(params) as averaged:
        assert (averaged["w"] == 2.75).all()
        assert averaged["steps"].tolist() == [3, 4]
        assert averaged["key"] == params["key"]
    assert (params["w"] == 4).all()


def test_a_model_of_equinox_keeps_its_structure() -> None:
    model = EquinoxNet()
    average = lw.Average(model)
    average.update(model)
    average.update(jax.tree.map(lambda leaf: leaf + 2 if eqx.is_array(leaf) else leaf, model))
    with average.applied(model) as averaged:
        assert jax.tree.structure(averaged) == jax.tree.structure(model)
        np.testing.assert_allclose(averaged.layers[0].weight, model.layers[0].weight + 1, rtol=1e-6)


def test_update_without_the_new_model_is_refused_where_arrays_cannot_change() -> None:
    average = lw.Average({"w": jnp.ones(2)})
    with pytest.raises(lw.RuleError, match=r"pass the new model: average\.update\(model\)"):
        average.update()


def test_small_steps_of_bfloat16_are_not_rounded_away() -> None:
    average = lw.Average({"w": jnp.zeros(2, jnp.bfloat16)}, decay=0.999)
    average.update({"w": jnp.ones(2, jnp.bfloat16)})
    for _ in range(100):
        average.update({"w": jnp.zeros(2, jnp.bfloat16)})
    with average.applied({"w": jnp.zeros(2, jnp.bfloat16)}) as averaged:
        assert averaged["w"].dtype == jnp.bfloat16
        assert float(averaged["w"][0]) == pytest.approx(0.999**100, rel=1e-2)


def test_a_donated_array_does_not_take_the_average_with_it() -> None:
    params = {"w": jnp.ones(3)}
    average = lw.Average(params)
    average.update(params)
    jax.jit(lambda array: array + 1, donate_argnums=0)(params["w"])
    assert params["w"].is_deleted()
    with average.applied({"w": jnp.zeros(3)}) as averaged:
        assert (averaged["w"] == 1).all()
        jax.jit(lambda array: array + 1, donate_argnums=0)(averaged["w"])
    with average.applied({"w": jnp.zeros(3)}) as averaged:
        assert (averaged["w"] == 1).all()
    with pytest.raises(lw.Unsupported, match="donated"):
        average.update(params)


def test_sharded_arrays_are_averaged_where_they_are() -> None:
    sharding = NamedSharding(jax.make_mesh((8,), ("data",), devices=jax.devices("cpu")), PartitionSpec("data"))
    params = jax.device_put({"w": jnp.arange(16.0)}, sharding)
    average = lw.Average(params, decay=0.5)
    average.update(params)
    average.update(jax.device_put({"w": jnp.zeros(16)}, sharding))
    with average.applied(params) as averaged:
        assert averaged["w"].sharding == sharding
        np.testing.assert_allclose(averaged["w"], np.arange(16) / 2)


@pytest.mark.parametrize("build", [TiedNnx, EquinoxNet])
def test_an_average_is_saved_and_loaded(build: Any, tmp_path: Path) -> None:
    model = build(1)
    average = lw.Average(model, decay=0.9)
    average.update(model)
    path = lw.save({"model": model, "average": average}, tmp_path / "a.safetensors")
    other = build(2)
    target = {"model": other, "average": lw.Average(other, decay=0.9)}
    restored = lw.load(target, path)
    assert restored["average"].updates == 1
    with average.applied(model) as first, restored["average"].applied(restored["model"]) as second:
        assert lw.diff(first, second).same


def test_an_average_cannot_be_made_inside_of_jit() -> None:
    with pytest.raises(lw.WalkError, match="traced value"):
        jax.jit(lambda params: lw.Average(params).updates)({"w": jnp.ones(2)})


def test_numpy_numbers_that_jax_would_round_are_refused() -> None:
    model = nnx.Dict(w=nnx.Param(np.ones(2)))
    with pytest.raises(lw.Unsupported, match="round it to 32 bits"):
        lw.Average(model)
