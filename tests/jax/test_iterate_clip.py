"""`lw.clip` over trees of gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tests.jax.models import EquinoxNet, TiedNnx

import leafwise as lw


def _loss(model: TiedNnx) -> Any:
    return (model.embed.embedding[...] ** 2).sum() + (model.block.kernel[...] ** 2).sum()


def gradients_of_nnx() -> Any:
    return nnx.grad(_loss)(TiedNnx())


def gradients_of_equinox() -> Any:
    return eqx.filter_grad(lambda model: (model.layers[0].weight ** 2).sum() + model.scale)(EquinoxNet())


GRADIENTS: dict[str, Any] = {
    "a dict": lambda: {"a": jnp.full((3,), 3.0), "b": [jnp.full((4,), 4.0), None]},
    "bfloat16": lambda: {"a": jnp.full((3,), 3.0, jnp.bfloat16), "b": jnp.full((4,), 4.0)},
    "complex": lambda: {"a": jnp.full((3,), 3 + 4j)},
    "Flax NNX": gradients_of_nnx,
    "Equinox": gradients_of_equinox,
    "hundreds of leaves": lambda: [jnp.full((index % 3 + 1,), index / 100) for index in range(300)],
}


@pytest.mark.parametrize("build", GRADIENTS.values(), ids=GRADIENTS)
def test_norms_are_those_of_optax_and_the_gradients_stay_as_they_are(build: Any) -> None:
    gradients = build()
    before = jax.tree.map(np.array, gradients)
    norms = lw.clip(gradients, 0.5)
    assert norms.total == pytest.approx(float(optax.tree.norm(gradients)), rel=1e-5)
    assert float(optax.tree.norm(norms.clipped)) == pytest.approx(0.5, rel=1e-2)
    assert jax.tree.structure(norms.clipped) == jax.tree.structure(gradients)
    jax.tree.map(np.testing.assert_array_equal, gradients, before)
    dtypes = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (norms.clipped, gradients)]
    assert dtypes[0] == dtypes[1]


def test_clipped_gradients_of_nnx_go_to_the_optimizer() -> None:
    model = TiedNnx()
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    gradients = nnx.grad(_loss)(model)
    before = np.array(model.embed.embedding[...])
    norms = lw.clip(gradients, 1.0)
    assert isinstance(norms.clipped, nnx.State)
    optimizer.update(model, norms.clipped)
    step = before - np.array(model.embed.embedding[...])
    np.testing.assert_allclose(step, 2 * before / norms.total, rtol=1e-4, atol=1e-6)


def test_norms_have_the_paths_of_the_model() -> None:
    norms = lw.clip(gradients_of_equinox(), 100.0)
    assert norms["scale"] == 1
    assert norms.clipped.layers[0].bias is not None
    assert list(norms) == [str(leaf.path) for leaf in lw.tree(EquinoxNet())]


def test_each_leaf_and_each_query_has_its_own_limit() -> None:
    gradients = {"a": jnp.full((4,), 3.0), "b": jnp.full((4,), 0.1)}
    by_leaf = lw.clip(gradients, 1.0, per="leaf").clipped
    assert float(jnp.linalg.norm(by_leaf["a"])) == pytest.approx(1, rel=1e-5)
    assert by_leaf["b"] is gradients["b"]
    by_query = lw.clip(gradients, 1.0, where=["b"]).clipped
    assert by_query["a"] is gradients["a"]


def test_large_gradients_whose_squares_overflow_are_finite() -> None:
    norms = lw.clip({"a": jnp.array([3e30, 4e30])}, 1.0)
    assert norms.total == pytest.approx(5e30, rel=1e-5)
    np.testing.assert_allclose(norms.clipped["a"], [0.6, 0.8], rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_named(value: float) -> None:
    gradients = {"good": jnp.ones(2), "bad": jnp.array([1.0, value])}
    with pytest.raises(lw.NonFiniteError, match="gradients of bad"):
        lw.clip(gradients, 1.0)
    assert lw.clip(gradients, 1.0, strict=False).nonfinite == ("bad",)


def test_a_module_is_not_a_tree_of_gradients() -> None:
    with pytest.raises(lw.WalkError, match=r"embed\.embedding is not a gradient: .*nnx\.State"):
        lw.clip(TiedNnx(), 1.0)


def test_numpy_arrays_among_gradients_are_refused() -> None:
    with pytest.raises(lw.WalkError, match="b is an array of numpy among gradients of JAX"):
        lw.clip({"a": jnp.ones(2), "b": np.ones(2, np.float32)}, 1.0)


def test_gradients_inside_of_jit_are_refused() -> None:
    with pytest.raises(lw.Unsupported, match="traced value"):
        jax.jit(lambda gradients: lw.clip(gradients, 1.0).clipped)({"a": jnp.ones(2)})


def test_sharded_gradients_stay_sharded() -> None:
    sharding = NamedSharding(jax.make_mesh((8,), ("data",), devices=jax.devices("cpu")), PartitionSpec("data"))
    gradients = jax.device_put({"w": jnp.full(16, 2.0)}, sharding)
    norms = lw.clip(gradients, 4.0)
    assert norms.total == pytest.approx(8, rel=1e-6)
    assert norms.clipped["w"].sharding == sharding
    np.testing.assert_allclose(norms.clipped["w"], 1.0, rtol=1e-6)


@pytest.mark.parametrize("array", [jnp.arange(3), jnp.array([True, False]), jax.random.key(0)])
def test_leaves_that_are_not_of_floating_point_are_an_error_by_path(array: Any) -> None:
    with pytest.raises(lw.WalkError, match=r"layer\.ids is not a gradient: it is .*eqx\.is_inexact_array"):
        lw.clip({"layer": {"ids": array, "w": jnp.ones(3)}}, 0.1)
