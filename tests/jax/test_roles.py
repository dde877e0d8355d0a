"""Roles and axes of the layers of Flax and Equinox."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import leafwise as lw
from leafwise.homes.jax.roles import EQUINOX_ROWS, NNX_ROWS

_KEY = jax.random.key(0)
_Roles = dict[str, tuple[str | None, tuple[str, ...] | None]]


def roles(model: Any) -> _Roles:
    return {str(path): (leaf.role, leaf.axes) for path, leaf in lw.tree(model).items()}


def test_linear_layers_over_several_axes_number_them() -> None:
    layer = nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=nnx.Rngs(0))
    assert roles(layer) == {
        "kernel": ("linear.weight", ("in0", "in1", "out0", "out1")),
        "bias": ("bias", ("out0", "out1")),
    }
    assert roles(nnx.LinearGeneral(2, 3, rngs=nnx.Rngs(0)))["kernel"] == ("linear.weight", ("in", "out"))


def test_einsum_lora_and_random_streams() -> None:
    rngs = nnx.Rngs(0)
    assert roles(nnx.Einsum("ab,bc->ac", (3, 4), (4,), rngs=rngs)) == {
        "kernel": ("einsum.weight", ("axis0", "axis1")),
        "bias": ("einsum.bias", ("axis",)),
    }
    found = roles(nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs))
    assert found["kernel"] == ("linear.weight", ("in", "out"))
    assert found["lora.lora_a"] == ("lora.a", ("in", "rank"))
    assert found["lora.lora_b"] == ("lora.b", ("rank", "out"))
    assert roles(nnx.Dropout(0.1, rngs=rngs))["rngs.count"] == ("rng.count", ())


def test_norms_of_weights_leave_the_weights_their_roles() -> None:
    rngs = nnx.Rngs(0)
    found = roles(nnx.SpectralNorm(nnx.Linear(2, 3, rngs=rngs), rngs=rngs))
    assert found["layer_instance.kernel"] == ("linear.weight", ("in", "out"))
    found = roles(eqx.nn.WeightNorm(eqx.nn.Linear(2, 3, key=_KEY)))
    assert found["layer.weight"] == ("linear.weight", ("out", "in"))
    assert found["g"] == ("weight_norm.scale", ("axis0", "axis1"))


def test_a_projection_outside_of_attention_is_a_linear_layer() -> None:
    class Own(nnx.Module):
        def __init__(self) -> None:
            self.query = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    assert roles(Own())["query.kernel"] == ("linear.weight", ("in", "out"))


def test_the_leaves_of_a_state_have_the_paths_of_their_indices() -> None:
    class Net(eqx.Module):
        blocks: list[eqx.nn.BatchNorm]

        def __init__(self) -> None:
            self.blocks = [eqx.nn.BatchNorm(3, "batch", mode=mode) for mode in ("ema", "batch")]

    _, state = eqx.nn.make_with_state(Net)()
    t = lw.tree({"state": state})
    assert [str(path) for path, _ in t.items()] == [
        'state."blocks.0.ema_first_time_index"',
        'state."blocks.0.ema_state_index".0',
        'state."blocks.0.ema_state_index".1',
        'state."blocks.1.batch_counter"',
        'state."blocks.1.batch_state_index".0',
        'state."blocks.1.batch_state_index".1',
    ]
    found = [leaf.role for _, leaf in t.items()]
    assert found == [
        "norm.count",
        "norm.mean",
        "norm.variance",
        "norm.count",
        "norm.hidden_mean",
        "norm.hidden_variance",
    ]


def test_a_state_is_saved_and_loaded_by_these_names(tmp_path: Path) -> None:
    _, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    changed = jax.tree.map(lambda value: value + 2 if value.ndim else value, state)
    lw.save({"state": changed}, tmp_path / "state.safetensors")
    loaded = lw.load({"state": state}, tmp_path / "state.safetensors")["state"]
    assert eqx.tree_equal(loaded, changed)


def test_names_in_a_variable_dict_of_linen() -> None:
    variables = linen.MultiHeadDotProductAttention(2).init(_KEY, jnp.zeros((1, 4, 8)))
    assert roles(variables)["params.query.kernel"] == ("attention.q", ("in", "heads", "head_dim"))
    # Attention without a bias looks like a convolution over one axis, unless all of its layers are there.
    alone = {"query": {"kernel": jnp.zeros((8, 2, 4))}}
    assert roles(alone)["query.kernel"] == (None, None)
    without_bias = linen.Conv(4, (3, 3), use_bias=False).init(_KEY, jnp.zeros((1, 5, 5, 3)))
    assert roles(without_bias)["params.kernel"] == ("conv.weight", ("h", "w", "in", "out"))


def test_a_bias_beside_other_names_than_those_of_linen_has_no_role() -> None:
    bias, matrix = jnp.zeros(3), jnp.zeros((3, 3))
    for other in ("weight", "w"):
        assert roles({"h": {other: matrix, "bias": bias}})["h.bias"] == (None, None)
    assert roles({"h": {"kernel": matrix, "bias": bias}})["h.bias"] == ("bias", ("out",))
    for norm in (linen.LayerNorm(), linen.LayerNorm(use_scale=False)):
        variables = norm.init(_KEY, jnp.zeros((1, 3)))
        assert roles(variables)["params.bias"] == ("norm.bias", ("features",))


def test_roles_can_be_added_to_a_module_of_equinox() -> None:
    class Scale(eqx.Module):
        gain: jax.Array

    lw.add_roles(Scale, {"gain": ("norm.scale", ("features",))})
    assert roles(Scale(jnp.ones(3))) == {"gain": ("norm.scale", ("features",))}


@pytest.mark.parametrize("rows", [NNX_ROWS, EQUINOX_ROWS], ids=["NNX", "Equinox"])
def test_the_roles_page_lists_every_role(rows: list[tuple[str, Any]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "roles.md").read_text("utf-8")
    for layer, leaves in rows:
        assert layer.rpartition(".")[2] in page
        for role, _ in leaves.values():
            assert f"`{role}`" in page, role
