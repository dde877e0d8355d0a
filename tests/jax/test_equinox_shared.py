"""`eqx.nn.Shared`: one leaf under several names, which every verb counts, saves and loads once."""

import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import leafwise as lw


def pair(seed: int = 0) -> tuple[eqx.nn.Embedding, eqx.nn.Linear]:
    first, second = jax.random.split(jax.random.key(seed))
    return eqx.nn.Embedding(7, 3, key=first), eqx.nn.Linear(3, 7, key=second)


def head_weight(layers: Any) -> Any:
    return layers[1].weight


def table(layers: Any) -> Any:
    return layers[0].weight


class LanguageModel(eqx.Module):
    shared: eqx.nn.Shared
    norm: eqx.nn.LayerNorm

    def __init__(self, seed: int = 0) -> None:
        self.shared = eqx.nn.Shared(pair(seed), head_weight, table)
        self.norm = eqx.nn.LayerNorm(3)


def names(model: Any) -> list[list[str]]:
    return [[str(name.path) for name in leaf.names] for leaf in lw.tree(model)]


def test_the_array_is_one_leaf_under_both_names() -> None:
    model = LanguageModel()
    assert names(model) == [
        ["shared.pytree.0.weight", "shared.pytree.1.weight"],
        ["shared.pytree.1.bias"],
        ["norm.weight"],
        ["norm.bias"],
    ]
    tree = lw.tree(model)
    assert sum(leaf.size for leaf in tree) == 21 + 7 + 6
    assert [name.role for name in tree["shared.pytree.0.weight"].names] == ["embedding.table", "linear.weight"]
    for leaf in tree:
        for name in leaf.names:
            array = eval(name.path.code("model"), {"model": model})
            assert array is name.path.fetch(model)
            np.testing.assert_array_equal(array, leaf.numpy())
    assert tree["shared.pytree.1.weight"].value is model.shared.pytree[0].weight
    assert lw.stats(model).total.count == 21 + 7 + 6


def test_it_is_saved_once_and_loaded_into_both_places(tmp_path: Path) -> None:
    model = LanguageModel()
    lw.save(model, tmp_path / "model.safetensors")
    assert lw.verify(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size < 34 * 4 + 21 * 4 + 2000
    assert names(tmp_path / "model.safetensors")[0] == names(model)[0]
    other = LanguageModel(1)
    before = jax.tree.map(np.asarray, eqx.filter(other, eqx.is_array))
    loaded = lw.load(other, tmp_path / "model.safetensors")
    assert eqx.tree_equal(loaded.shared(), model.shared())
    assert loaded.shared.where is head_weight
    embedding, linear = loaded.shared()
    assert embedding.weight is linear.weight
    assert eqx.tree_equal(eqx.filter(other, eqx.is_array), jax.tree.map(jnp.asarray, before))  # it is not changed
    assert lw.diff(loaded, model).same
    assert [str(change.path) for change in lw.diff(other, model).of("changed")] == [
        "shared.pytree.0.weight",
        "shared.pytree.1.bias",
    ]


def test_the_loaded_model_trains_as_the_original(tmp_path: Path) -> None:
    model = LanguageModel()
    lw.save(model, tmp_path / "model.safetensors")

    def loss(m: LanguageModel) -> jax.Array:
        embedding, linear = m.shared()
        return (linear.weight * 2 + embedding.weight).sum()

    gradient = eqx.filter_grad(loss)(lw.load(LanguageModel(1), tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(gradient.shared.pytree[0].weight, np.full((7, 3), 3.0, "float32"))


def test_two_values_for_one_array_are_refused(tmp_path: Path) -> None:
    separate = {"shared": {"pytree": list(pair())}, "norm": eqx.nn.LayerNorm(3)}
    lw.save(separate, tmp_path / "separate.safetensors")
    with pytest.raises(lw.LoadError, match="weight is tied in the model, but the checkpoint has two different"):
        lw.load(LanguageModel(), tmp_path / "separate.safetensors")


def test_several_places_and_whole_layers() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    layers = {"a": eqx.nn.Linear(3, 3, key=keys[0]), "b": eqx.nn.Linear(3, 3, key=keys[1]), "c": jnp.ones(3)}
    layers["d"] = eqx.nn.MLP(3, 3, 3, 1, key=keys[2])
    shared = eqx.nn.Shared(layers, lambda m: (m["b"], m["c"]), lambda m: (m["a"], m["d"].layers[0].bias))
    assert names(shared) == [
        ["pytree.a.weight", "pytree.b.weight"],
        ["pytree.a.bias", "pytree.b.bias"],
        ["pytree.c", "pytree.d.layers.0.bias"],
        ["pytree.d.layers.0.weight"],
        ["pytree.d.layers.1.weight"],
        ["pytree.d.layers.1.bias"],
    ]
    new = {str(leaf.path): np.full(leaf.shape, number, "float32") for number, leaf in enumerate(lw.tree(shared))}
    loaded = lw.load(shared, new, ties="ignore")
    restored = loaded()
    assert restored["b"].weight is restored["a"].weight
    assert restored["c"] is restored["d"].layers[0].bias
    np.testing.assert_array_equal(restored["c"], np.full(3, 2.0))
    np.testing.assert_array_equal(restored["b"].bias, np.full(3, 1.0))


@pytest.mark.parametrize("get", [lambda m: m[0].weight.T, lambda m: jnp.transpose(m[0].weight) * 2])
def test_computed_places_have_no_values_of_their_own(get: Any) -> None:
    embedding = eqx.nn.Embedding(7, 3, key=jax.random.key(0))
    linear = eqx.nn.Linear(7, 3, key=jax.random.key(1))
    shared = eqx.nn.Shared((embedding, linear), head_weight, get)
    assert names(shared) == [["pytree.0.weight"], ["pytree.1.bias"]]
    loaded = lw.load(shared, {"pytree.0.weight": np.ones((7, 3), "float32"), "pytree.1.bias": np.ones(3, "float32")})
    np.testing.assert_array_equal(loaded()[1].weight, get((loaded()[0], None)))


def test_an_equal_array_elsewhere_is_no_tie() -> None:
    embedding, linear = pair()
    same = eqx.tree_at(lambda layer: layer.weight, eqx.nn.Embedding(7, 3, key=jax.random.key(2)), embedding.weight)
    shared = eqx.nn.Shared((embedding, linear, same), head_weight, table)
    assert names(shared)[0] == ["pytree.0.weight", "pytree.1.weight"]
    assert names(shared)[-1] == ["pytree.2.weight"]


def test_the_same_shared_twice_is_two_values() -> None:
    shared = eqx.nn.Shared({"a": jnp.ones(3), "b": jnp.ones(3)}, lambda m: m["b"], lambda m: m["a"])
    holder = [shared]
    model = {"first": holder, "second": holder}
    assert names(model) == [[f"{name}.0.pytree.{key}" for key in "ab"] for name in ("first", "second")]
    new = {"first": [{"pytree": {"a": np.zeros(3, "f")}}], "second": [{"pytree": {"a": np.full(3, 2, "f")}}]}
    loaded = lw.load(model, new)
    assert float(loaded["first"][0]()["b"][0]) == 0
    assert float(loaded["second"][0]()["b"][0]) == 2
    assert float(shared()["b"][0]) == 1


def test_one_shared_in_another() -> None:
    inner = eqx.nn.Shared(pair(), head_weight, table)
    outer = eqx.nn.Shared(
        {"inner": inner, "again": jnp.ones((7, 3))}, lambda m: m["again"], lambda m: m["inner"].pytree[0].weight
    )
    assert names(outer)[0] == ["pytree.again", "pytree.inner.pytree.0.weight", "pytree.inner.pytree.1.weight"]
    loaded = lw.load(outer, {"pytree.again": np.ones((7, 3), "f"), "pytree.inner.pytree.1.bias": np.ones(7, "f")})
    restored = loaded()
    np.testing.assert_array_equal(restored["again"], np.ones((7, 3)))
    np.testing.assert_array_equal(restored["inner"]()[1].weight, np.ones((7, 3)))
    assert {type(leaf) for leaf in jax.tree.leaves(eqx.filter(loaded, eqx.is_array))} == {type(jnp.ones(1))}


def test_it_is_shown_inside_of_jit() -> None:
    @eqx.filter_jit
    def count(model: LanguageModel) -> int:
        tree = lw.tree(model)
        assert tree["shared.pytree.1.weight"].device == "traced"
        return len(tree)

    assert count(LanguageModel()) == 4


def test_it_is_averaged_once_and_as_a_plain_array() -> None:
    first, second = LanguageModel(0), LanguageModel(1)
    average, plain = lw.Average(first, decay=0.5), lw.Average({"w": table(first.shared.pytree)}, decay=0.5)
    average.update(second)
    plain.update({"w": table(second.shared.pytree)})
    state = average.state_dict()["values"]
    assert {type(array) for array in state.values()} == {type(jnp.ones(1))}
    with average.applied(first) as averaged:
        embedding, linear = averaged.shared()
    assert embedding.weight is linear.weight
    np.testing.assert_array_equal(linear.weight, plain.state_dict()["values"]["w"])
    assert eqx.tree_equal(first.shared(), LanguageModel(0).shared())
    restored = lw.Average(LanguageModel(2), decay=0.5)
    restored.load_state_dict(average.state_dict())
    np.testing.assert_array_equal(restored.state_dict()["values"]["shared.pytree.0.weight"], linear.weight)


def test_parts_of_a_shared_are_changed_only_with_it() -> None:
    part = lw.tree(LanguageModel())["shared.pytree.0"]
    with pytest.raises(lw.Unsupported, match=r"cannot change shared\.pytree\.0 by itself: .*; pass shared"):
        lw.load(part, {"weight": np.ones((7, 3), "float32")})
    whole = lw.tree(LanguageModel())["shared"]
    loaded = lw.load(whole, {"pytree": [{"weight": np.ones((7, 3), "f")}, {"bias": np.ones(7, "f")}]})
    np.testing.assert_array_equal(loaded()[1].weight, np.ones((7, 3)))


def test_shared_is_kept_and_cannot_be_untied() -> None:
    model = LanguageModel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lw.keep_ties(model) is model
        assert lw.release_ties(model) is model
    with pytest.raises(
        lw.Unsupported, match=r"cannot untie shared\.pytree\.1\.weight: the model calls an eqx\.nn\.Shared"
    ):
        lw.untie(model, "shared.pytree.1.weight")


def test_equinox_is_tied_by_the_code_of_the_message() -> None:
    class Net(eqx.Module):
        embed: eqx.nn.Embedding
        head: eqx.nn.Linear

    model = Net(*pair())
    with pytest.raises(lw.Unsupported, match=r"two gradients; in __init__, put what contains both into") as error:
        lw.tie(model, "head.weight", to="embed.weight", keep="source")
    code = str(error.value).partition("self.shared = ")[2].partition(", and use")[0].replace("…", "model")
    assert names(eval(code, {"eqx": eqx, "model": model}))[0] == ["pytree.embed.weight", "pytree.head.weight"]


@pytest.mark.parametrize("transpose", [False, True])
def test_a_plain_pytree_is_refused_with_the_way(transpose: bool) -> None:
    params = {"embed": {"embedding": jnp.ones((3, 3))}, "head": {"kernel": jnp.ones((3, 3))}}
    with pytest.raises(lw.Unsupported) as error:
        lw.tie(params, "head.kernel", to="embed.embedding", keep="source", transpose=transpose)
    turned = ".T" if transpose else ""
    assert str(error.value) == (
        f"containers cannot tie head.kernel to embed.embedding{turned}: arrays in a pytree are values, and the same "
        "array at two places gets two gradients; leave out params['head']['kernel'], and let the code that used it "
        f"read params['embed']['embedding']{turned}"
    )
    with pytest.raises(lw.TieError, match="not tied to anything"):
        lw.untie(params, "head.kernel")


def test_groups_and_masks_for_training() -> None:
    model = LanguageModel()
    rules = [lw.no_decay(), lw.Rule("norm.*", frozen=True), lw.Rule("shared.pytree.0.*", lr=0.5, wins=True)]
    tx = lw.groups(model, rules, lr=0.1).optax(lambda lr, weight_decay=0.0: optax.sgd(lr))
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    np.testing.assert_allclose(updates.shared.pytree[0].weight, -0.5, rtol=1e-6)
    np.testing.assert_allclose(updates.shared.pytree[1].bias, -0.1, rtol=1e-6)
    assert not np.any(updates.norm.weight)
    trained, frozen = eqx.partition(model, lw.trainable(model, frozen="norm.*"))
    assert [array.shape for array in jax.tree.leaves(trained)] == [(7, 3), (7,)]
    assert frozen.norm.weight is model.norm.weight
    assert eqx.combine(trained, frozen).shared()[1].weight is model.shared.pytree[0].weight


def test_gradients_are_shown_and_clipped() -> None:
    model = LanguageModel()
    gradients = eqx.filter_grad(lambda model: (model.shared()[1].weight ** 2).sum())(model)
    assert "shared.pytree.0.weight" in lw.tree(gradients)
    norms = lw.clip(gradients, 0.1)
    assert norms.total > 0.1
    np.testing.assert_allclose(optax.tree.norm(norms.clipped), 0.1, rtol=1e-4)
    assert jax.tree.structure(norms.clipped) == jax.tree.structure(gradients)
