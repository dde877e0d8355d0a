"""Layers that `nnx.vmap`, `nn.scan` and `eqx.filter_vmap` stacked: their axes, initial values and dead units."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import leafwise as lw

_LAYERS = 5
_KEYS = jax.random.split(jax.random.key(0), _LAYERS)

EQUINOX: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda key: eqx.nn.Linear(4, 8, key=key),
    "Linear of scalars": lambda key: eqx.nn.Linear("scalar", 8, key=key),
    "as many inputs as layers": lambda key: eqx.nn.Linear(_LAYERS, 8, key=key),
    "Conv1d": lambda key: eqx.nn.Conv1d(4, 8, 3, key=key),
    "Conv2d": lambda key: eqx.nn.Conv2d(4, 8, 3, groups=2, key=key),
    "ConvTranspose2d": lambda key: eqx.nn.ConvTranspose2d(4, 8, 3, groups=2, key=key),
    "Embedding": lambda key: eqx.nn.Embedding(7, 3, key=key),
    "LayerNorm": lambda key: eqx.nn.LayerNorm(3),
    "LayerNorm over two axes": lambda key: eqx.nn.LayerNorm((3, 4)),
    "GroupNorm": lambda key: eqx.nn.GroupNorm(2, 4),
    "RMSNorm": lambda key: eqx.nn.RMSNorm(3),
    "LSTMCell": lambda key: eqx.nn.LSTMCell(3, 4, key=key),
    "GRUCell": lambda key: eqx.nn.GRUCell(3, 4, key=key),
    "attention": lambda key: eqx.nn.MultiheadAttention(2, 8, use_query_bias=True, key=key),
}
NNX: dict[str, Callable[[nnx.Rngs], Any]] = {
    "Linear": lambda rngs: nnx.Linear(4, 8, rngs=rngs),
    "LinearGeneral": lambda rngs: nnx.LinearGeneral((2, 3), (4, 6), axis=(-2, -1), rngs=rngs),
    "Conv": lambda rngs: nnx.Conv(4, 8, (3,), feature_group_count=2, rngs=rngs),
    "ConvTranspose": lambda rngs: nnx.ConvTranspose(4, 8, (3, 3), rngs=rngs),
    "ConvTranspose with a transposed kernel": lambda rngs: nnx.ConvTranspose(
        4, 8, (3, 3), transpose_kernel=True, rngs=rngs
    ),
    "Einsum": lambda rngs: nnx.Einsum("ab,bc->ac", (3, 4), (4,), rngs=rngs),
    "Embed": lambda rngs: nnx.Embed(7, 6, rngs=rngs),
    "BatchNorm": lambda rngs: nnx.BatchNorm(3, rngs=rngs),
    "LayerNorm": lambda rngs: nnx.LayerNorm(3, rngs=rngs),
    "GroupNorm": lambda rngs: nnx.GroupNorm(6, 2, rngs=rngs),
    "InstanceNorm": lambda rngs: nnx.InstanceNorm(3, rngs=rngs),
    "RMSNorm": lambda rngs: nnx.RMSNorm(3, rngs=rngs),
    "LSTMCell": lambda rngs: nnx.LSTMCell(3, 4, rngs=rngs),
    "GRUCell": lambda rngs: nnx.GRUCell(3, 4, rngs=rngs),
    "LoRA": lambda rngs: nnx.LoRA(3, 2, 4, rngs=rngs),
    "PReLU": lambda rngs: nnx.PReLU(),
    "attention": lambda rngs: nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs),
}


def stacked_nnx(make: Callable[[nnx.Rngs], Any], axis: int = 0) -> Any:
    out_axes = nnx.StateAxes({nnx.Param: axis, ...: 0})
    made = nnx.vmap(lambda rngs: make(rngs), in_axes=(nnx.StateAxes({...: 0}),), out_axes=out_axes)
    return made(nnx.Rngs(0).split(_LAYERS))


def axes_of(model: Any) -> dict[str, tuple[str | None, tuple[str, ...] | None]]:
    return {str(path): (leaf.role, leaf.axes) for path, leaf in lw.tree(model).items()}


@pytest.mark.parametrize("name", EQUINOX)
def test_stacked_layers_of_equinox_have_an_axis_more_than_one_layer(name: str) -> None:
    single, stacked = EQUINOX[name](_KEYS[0]), eqx.filter_vmap(EQUINOX[name])(_KEYS)
    expected = {path: (role, ("layers", *(axes or ()))) for path, (role, axes) in axes_of(single).items()}
    assert axes_of(stacked) == expected


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", NNX)
def test_stacked_layers_of_nnx_have_an_axis_more_than_one_layer(name: str, axis: int) -> None:
    if name == "PReLU" and axis:
        return  # a slope has no axis before which there could be one
    single, stacked = NNX[name](nnx.Rngs(0)), stacked_nnx(NNX[name], axis)
    for path, (role, axes) in axes_of(single).items():
        leaf = lw.tree(stacked)[path]
        names = list(axes or ())
        names.insert(axis if leaf.kind == "parameter" else 0, "layers")
        assert (leaf.role, leaf.axes) == (role, tuple(names)), path


def test_experts_inside_of_layers_have_two_axes_more() -> None:
    keys = jax.random.split(jax.random.key(0), (3, 2))
    stacked = eqx.filter_vmap(eqx.filter_vmap(EQUINOX["Linear"]))(keys)
    assert axes_of(stacked)["weight"] == ("linear.weight", ("layers0", "layers1", "out", "in"))


def test_axes_that_may_be_that_of_the_layers_are_not_known() -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    square = eqx.filter_vmap(lambda key: eqx.nn.Linear(8, 8, key=key))(keys)
    assert axes_of(square) == {"weight": ("linear.weight", None), "bias": ("bias", None)}
    with pytest.raises(lw.RuleError, match="axes are not known"):
        lw.initialize(square, [lw.Rule("weight", init="kaiming_normal"), lw.Rule("bias", init="zeros")])


class _Block(linen.Module):
    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        y = linen.MultiHeadDotProductAttention(2, name="mha")(linen.LayerNorm(name="norm")(x))
        y = linen.Conv(8, (3,), name="conv")(y)
        y = linen.Dense(8, use_bias=False, name="plain")(linen.Dense(16, name="wide")(y))
        return x + linen.DenseGeneral((2, 4), name="general")(y).reshape(x.shape), None


@pytest.mark.parametrize("axis", [0, 1])
def test_stacked_layers_of_linen_are_known_by_a_kernel_and_its_bias(axis: int) -> None:
    scanned = linen.scan(_Block, variable_axes={"params": axis}, split_rngs={"params": True}, length=_LAYERS)
    x = jnp.ones((2, 3, 8))
    stacked = axes_of(scanned().init(jax.random.key(0), x, None))
    single = axes_of(_Block().init(jax.random.key(0), x, None))
    unknown = {"params.norm", "params.plain", "params.general"}
    assert stacked.keys() == single.keys()
    for path, (role, axes) in single.items():
        names = list(axes or ())
        names.insert(axis, "layers")
        if path.rpartition(".")[0] in unknown:
            assert stacked[path][1] is None
        else:
            assert stacked[path] == (role, tuple(names))


def test_a_kernel_without_a_bias_that_may_be_stacked_is_not_taken_for_a_convolution() -> None:
    attention = {"query": {"kernel": jnp.ones((3, 8, 2, 4))}}  # three layers of (in, heads, head_dim)
    assert axes_of(attention) == {"query.kernel": (None, None)}
    assert axes_of({"conv": {"kernel": jnp.ones((3, 3, 8, 4))}})["conv.kernel"][0] == "conv.weight"
    assert axes_of({"conv": {"kernel": jnp.ones((1, 7, 8, 4))}})["conv.kernel"][0] == "conv.weight"


@pytest.mark.parametrize("init", ["the default", "kaiming_normal", "orthogonal"])
@pytest.mark.parametrize("axis", [0, 1])
def test_each_of_the_stacked_layers_begins_like_one(init: str, axis: int) -> None:
    rules = None if init == "the default" else [lw.Rule("kernel", init=init), lw.Rule("bias", init="zeros")]
    kernels = []
    for make in (lambda rngs: nnx.Linear(64, 32, rngs=rngs), lambda rngs: nnx.Linear(32, 64, rngs=rngs)):
        single, stacked = make(nnx.Rngs(0)), stacked_nnx(make, axis)
        one = np.array(lw.initialize(single, rules).kernel[...])
        layers = np.moveaxis(np.array(lw.initialize(stacked, rules).kernel[...]), axis, 0)
        kernels += list(layers)
        for layer in layers:
            assert layer.std() == pytest.approx(one.std(), rel=0.1)
            if init == "orthogonal":
                product = layer.T @ layer if layer.shape[0] > layer.shape[1] else layer @ layer.T
                np.testing.assert_allclose(product, np.eye(32), atol=1e-5)
    assert not any(np.allclose(a, b) for a, b in pairwise(kernels) if a.shape == b.shape)


def _findings(model: Any, code: str) -> list[tuple[str, str, str]]:
    return [(f.level, f.path, f.message) for f in lw.check(model) if f.code == code]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_dead_unit_of_one_of_the_stacked_layers_is_found(axis: int) -> None:
    stacked = stacked_nnx(lambda rngs: nnx.Linear(16, 8, rngs=rngs), axis)
    place: Any = [slice(None)] * 3
    place[axis], place[2] = 3, 5
    stacked.kernel[...] = stacked.kernel[...].at[tuple(place)].set(0)
    [(level, path, message)] = _findings(stacked, "LW110")
    assert (level, path) == ("warning", "kernel")
    assert message.startswith("layer 3: 1 of 8 units is all zero: 5")


def test_a_stacked_layer_that_is_all_zero_is_a_warning() -> None:
    stacked = eqx.filter_vmap(EQUINOX["Linear"])(_KEYS)
    zeroed = eqx.tree_at(lambda layer: layer.weight, stacked, stacked.weight.at[2].set(0))
    [(level, path, message)] = _findings(zeroed, "LW110")
    assert (level, path) == ("warning", "weight")
    assert message.startswith("layer 2: 8 of 8 units are all zero: 0-7")
    assert not _findings(stacked, "LW110")
    assert not _findings(eqx.filter_vmap(EQUINOX["attention"])(_KEYS), "LW110")


def test_duplicate_units_are_searched_in_each_layer() -> None:
    stacked = eqx.filter_vmap(lambda key: eqx.nn.Linear(16, 8, key=key))(_KEYS)
    weight = stacked.weight.at[1, 6].set(stacked.weight[1, 2])
    [(_, _, message)] = _findings(eqx.tree_at(lambda layer: layer.weight, stacked, weight), "LW113")
    assert message.startswith("layer 1: 1 of 8 units is a copy of another, such as 2, 6")


def test_the_unused_inputs_of_a_convolution_of_one_dimension_are_not_its_units() -> None:
    conv = nnx.Conv(8, 6, (3,), rngs=nnx.Rngs(0))
    conv.kernel[...] = conv.kernel[...].at[:, 4, :].set(0)
    [(_, _, message)] = _findings(conv, "LW111")
    assert message.startswith("1 of 8 inputs is unused")
    assert not _findings(conv, "LW110")
