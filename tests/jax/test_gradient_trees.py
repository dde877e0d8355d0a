"""`lw.stats(model, of=gradients)`: gradients as a tree of their own."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.jax.models import EquinoxNet, TiedNnx

import leafwise as lw


def test_gradients_are_listed_under_the_paths_of_the_model() -> None:
    model = TiedNnx()
    gradients = nnx.grad(lambda model: (model.head.kernel[...] ** 2).sum())(model)
    stats = lw.stats(model, of=gradients)
    expected = 2 * np.array(model.embed.embedding[...], np.float64)
    assert stats["head.kernel"].l2 == pytest.approx(np.linalg.norm(expected), rel=1e-6)
    assert stats["embed.embedding"].l2 == stats["head.kernel"].l2
    assert stats.skipped["norm.mean"] == "it has no gradient"
    assert "33 gradients" in str(stats)


def test_leaves_without_a_gradient_are_left_out() -> None:
    model = EquinoxNet()
    trained, frozen = eqx.partition(model, lw.trainable(model, frozen="norm.**"))
    gradients = jax.grad(lambda trained: (eqx.combine(trained, frozen).layers[0].weight ** 2).sum())(trained)
    stats = lw.stats(model, of=gradients)
    assert set(stats.skipped) == {"norm.weight", "norm.bias"}
    assert len(stats.select(lw.where(role="linear.weight"))) == 2


def test_where_gradients_are_not_finite() -> None:
    stats = lw.stats({"a": jnp.ones(2)}, of={"a": jnp.array([1.0, jnp.nan])})
    assert {path: places.indices for path, places in stats.nonfinite.items()} == {"a": ((1,),)}


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({"a": jnp.ones(2), "b": jnp.ones(2)}, "of= has gradients at b, where the model has no leaf; its leaves are a"),
        ({"a": jnp.ones(3)}, r"a has the shape \(2,\), but its gradient has \(3,\)"),
    ],
)
def test_gradients_of_another_structure_are_refused_by_name(gradients: Any, message: str) -> None:
    with pytest.raises(lw.PathError, match=message):
        lw.stats({"a": jnp.ones(2)}, of=gradients)


@pytest.mark.parametrize("build", [TiedNnx, EquinoxNet])
def test_a_model_without_gradients_says_what_to_pass(build: Any) -> None:
    with pytest.raises(lw.WalkError, match=r"lw\.stats\(model, of=gradients\)"):
        lw.stats(build(), of="grad")


def test_the_picture_of_a_gradient_is_that_of_a_leaf_of_the_gradients() -> None:
    with pytest.raises(lw.WalkError, match=r"lw\.image\(gradients, …\)"):
        lw.image(EquinoxNet(), "layers.0.weight", of="grad")
    assert lw.image({"w": jnp.ones((2, 2))}, "w").cells.size > 0


def test_other_words_are_refused() -> None:
    with pytest.raises(lw.QueryError, match='"value", "grad" or a tree of gradients, not \'gradient\''):
        lw.stats({"a": jnp.ones(2)}, of="gradient")
