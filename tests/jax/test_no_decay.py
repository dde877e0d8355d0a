"""`lw.no_decay` in JAX: biases of recurrent gates, and layers that Linen stacks."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import leafwise as lw


def decayed(params: Any) -> set[str]:
    groups = lw.groups(params, [lw.no_decay()], weight_decay=0.1)
    return {name for group in groups if group["weight_decay"] for name in group["param_names"]}


def all_paths(params: Any) -> set[str]:
    return {str(leaf.path) for leaf in lw.tree(params)}


def linen_cell(cell: Any) -> Any:
    carry = cell.initialize_carry(jax.random.key(0), (2, 3))
    return cell.init(jax.random.key(0), carry, jnp.ones((2, 3)))["params"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nnx.state(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), nnx.Param),
        lambda: nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)),
        lambda: nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)),
        lambda: linen_cell(nn.LSTMCell(4)),
        lambda: linen_cell(nn.GRUCell(4)),
        lambda: eqx.nn.GRUCell(3, 4, key=jax.random.key(0)),
        lambda: eqx.nn.LSTMCell(3, 4, key=jax.random.key(0)),
    ],
)
def test_biases_of_recurrent_cells_are_not_decayed(build: Any) -> None:
    params = build()
    if isinstance(params, nnx.Module):
        params = nnx.state(params, nnx.Param)
    weights = {path for path in all_paths(params) if "bias" not in path}
    assert weights
    assert decayed(params) == weights


def test_a_cell_of_nnx_is_treated_as_its_state_is() -> None:
    cell = nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))
    assert decayed(cell) == decayed(nnx.state(cell, nnx.Param))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        x = nn.RMSNorm()(nn.Dense(8)(nn.LayerNorm()(x)))
        x = nn.MultiHeadDotProductAttention(num_heads=2)(x, x)
        return nn.DenseGeneral((2, 4), name="wide")(x).reshape(x.shape), None


class Stacked(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        scanned = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        return scanned(name="layers")(x, None)[0]


def test_biases_and_norms_of_stacked_layers_are_not_decayed() -> None:
    params = Stacked().init(jax.random.key(0), jnp.ones((2, 3, 8)))["params"]
    assert params["layers"]["LayerNorm_0"]["scale"].shape == (4, 8)
    kernels = {path for path in all_paths(params) if path.endswith(".kernel")}
    assert len(kernels) == 6
    assert decayed(params) == kernels
    t = lw.tree(params)
    assert t["layers.LayerNorm_0.scale"].role == "norm.scale"
    assert t["layers.Dense_0.bias"].role == "bias"


def test_matrices_that_are_only_called_bias_or_scale_are_decayed() -> None:
    matrix = jnp.ones((4, 8))
    params = {
        "table": {"bias": matrix},
        "own": {"scale": matrix, "shift": matrix},
        "pair": {"kernel": matrix, "bias": matrix},
    }
    assert decayed(params) == {"table.bias", "own.scale", "own.shift", "pair.kernel", "pair.bias"}
