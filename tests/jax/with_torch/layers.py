"""Each layer of the table in docs/carrying.md, in each framework: how it is made, and what it computes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen, nnx
from torch import nn

Array = Any
_KEY = jax.random.key(0)


class Layer(NamedTuple):
    """A layer of one framework: its parameters, and its output for an input in the layout of PyTorch."""

    make: Callable[[], Any]
    run: Callable[[Any, Array], Array]


def _torch(make: Callable[[], nn.Module]) -> Layer:
    def run(layer: nn.Module, x: Array) -> Array:
        with torch.no_grad():
            return layer.eval()(torch.from_numpy(x)).numpy()

    return Layer(make, run)


def _nnx(make: Callable[[nnx.Rngs], Any]) -> Layer:
    return Layer(lambda: make(nnx.Rngs(0)), lambda layer, x: np.asarray(layer(x)))


def _equinox(make: Callable[[], Any]) -> Layer:
    return Layer(make, lambda layer, x: np.asarray(jax.vmap(layer)(x)))


def _linen(module: linen.Module, x: Array) -> Layer:
    return Layer(
        lambda: module.init(_KEY, jnp.asarray(x)),
        lambda variables, given: np.asarray(module.apply(variables, jnp.asarray(given))),
    )


def _channels_last(layer: Layer) -> Layer:
    """A layer of Flax, which has channels last, for inputs with channels first."""

    def run(made: Any, x: Array) -> Array:
        return np.moveaxis(layer.run(made, np.ascontiguousarray(np.moveaxis(x, 1, -1))), -1, 1)

    return Layer(layer.make, run)


def _numbers(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def randomized(made: Any) -> Any:
    """A layer with other values in each leaf, all positive, so that no leaf is what it was at the beginning."""
    random = np.random.default_rng(11)

    def new(value: Any) -> Array:
        return random.uniform(0.2, 1.2, value.shape).astype(np.float32)

    if isinstance(made, nn.Module):
        for value in made.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.from_numpy(new(value)))
        return made
    if isinstance(made, nnx.Module):
        nnx.update(
            made, jax.tree.map(lambda value: jnp.asarray(new(value)), nnx.state(made, (nnx.Param, nnx.BatchStat)))
        )
        return made
    return jax.tree.map(lambda value: jnp.asarray(new(value)) if eqx.is_inexact_array(value) else value, made)


# -- attention, cells -------------------------------------------------------------------------------------------------


def _run_torch_attention(layer: nn.MultiheadAttention, x: Array) -> Array:
    with torch.no_grad():
        given = torch.from_numpy(x).transpose(0, 1)
        return layer(given, given, given, need_weights=False)[0].transpose(0, 1).numpy()


def _torch_attention() -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(8, 2)
    nn.init.normal_(made.in_proj_bias)
    nn.init.normal_(made.out_proj.bias)
    return made


def _equinox_attention() -> Any:
    return eqx.nn.MultiheadAttention(
        2, 8, use_query_bias=True, use_key_bias=True, use_value_bias=True, use_output_bias=True, key=_KEY
    )


def _run_equinox_attention(layer: Any, x: Array) -> Array:
    return np.asarray(jax.vmap(lambda one: layer(one, one, one))(x))


def _torch_cell(make: Callable[[], nn.Module]) -> Layer:
    """A recurrent layer, with its outputs for each step."""

    def run(layer: Any, x: Array) -> Array:
        with torch.no_grad():
            return layer(torch.from_numpy(x))[0].numpy()

    return Layer(make, run)


def _nnx_cell(make: Callable[[nnx.Rngs], Any]) -> Layer:
    return Layer(lambda: make(nnx.Rngs(0)), lambda cell, x: np.asarray(nnx.RNN(cell, rngs=nnx.Rngs(0))(jnp.asarray(x))))


def _linen_cell(cell: Any) -> Layer:
    def run(variables: Any, x: Array) -> Array:
        carry, outputs = cell.initialize_carry(_KEY, x[:, 0].shape), []
        for step in range(x.shape[1]):
            carry, output = cell.apply(variables, carry, jnp.asarray(x[:, step]))
            outputs.append(output)
        return np.stack(outputs, 1)

    def make() -> Any:
        x = jnp.zeros((2, 3))
        return cell.init(_KEY, cell.initialize_carry(_KEY, x.shape), x)

    return Layer(make, run)


def _equinox_cell(make: Callable[[], Any]) -> Layer:
    def run(cell: Any, x: Array) -> Array:
        zero = jnp.zeros(cell.hidden_size)
        is_lstm = isinstance(cell, eqx.nn.LSTMCell)

        def one(sequence: Array) -> Array:
            state, outputs = ((zero, zero) if is_lstm else zero), []
            for step in sequence:
                state = cell(step, state)
                outputs.append(state[0] if is_lstm else state)
            return jnp.stack(outputs)

        return np.asarray(jax.vmap(one)(jnp.asarray(x)))

    return Layer(make, run)


# -- batch norm, whose statistics are beside the model in Equinox -----------------------------------------------------


def _torch_batch_norm() -> nn.Module:
    made = nn.BatchNorm2d(3)
    for number, value in enumerate((made.weight, made.bias, made.running_mean, made.running_var)):
        value.data.copy_(torch.rand(3, generator=torch.Generator().manual_seed(number)) + 0.5)
    return made


def _run_equinox_batch_norm(both: Any, x: Array) -> Array:
    norm, state = eqx.nn.inference_mode(both[0]), both[1]
    return np.asarray(jax.vmap(lambda one: norm(one, state)[0], axis_name="batch")(jnp.asarray(x)))


# -- the table --------------------------------------------------------------------------------------------------------

IMAGES, VECTORS, TEXT, STEPS = _numbers(2, 4, 6, 5), _numbers(2, 3), np.array([[1, 2, 0]]), _numbers(2, 5, 3)
SEQUENCES, BATCH = _numbers(2, 4, 8), _numbers(2, 3, 4, 4)
_LAST = np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1))

# By layer, the input, and the layer of each framework.
LAYERS: dict[str, tuple[Array, dict[str, Layer]]] = {
    "Linear": (
        VECTORS,
        {
            "PyTorch": _torch(lambda: nn.Linear(3, 3)),
            "Flax NNX": _nnx(lambda rngs: nnx.Linear(3, 3, rngs=rngs)),
            "Flax Linen": _linen(linen.Dense(3), VECTORS),
            "Equinox": _equinox(lambda: eqx.nn.Linear(3, 3, key=_KEY)),
        },
    ),
    "Convolution": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.Conv2d(4, 4, 3)),
            "Flax NNX": _channels_last(_nnx(lambda rngs: nnx.Conv(4, 4, (3, 3), padding="VALID", rngs=rngs))),
            "Flax Linen": _channels_last(_linen(linen.Conv(4, (3, 3), padding="VALID"), _LAST)),
            "Equinox": _equinox(lambda: eqx.nn.Conv2d(4, 4, 3, key=_KEY)),
        },
    ),
    "Convolution with groups": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.Conv2d(4, 4, 3, groups=2)),
            "Flax NNX": _channels_last(
                _nnx(lambda rngs: nnx.Conv(4, 4, (3, 3), padding="VALID", feature_group_count=2, rngs=rngs))
            ),
            "Flax Linen": _channels_last(_linen(linen.Conv(4, (3, 3), padding="VALID", feature_group_count=2), _LAST)),
            "Equinox": _equinox(lambda: eqx.nn.Conv2d(4, 4, 3, groups=2, key=_KEY)),
        },
    ),
    "Transposed convolution": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.ConvTranspose2d(4, 4, 3, stride=2)),
            "Flax NNX": _channels_last(
                _nnx(lambda rngs: nnx.ConvTranspose(4, 4, (3, 3), strides=2, padding="VALID", rngs=rngs))
            ),
            "Equinox": _equinox(lambda: eqx.nn.ConvTranspose2d(4, 4, 3, stride=2, key=_KEY)),
        },
    ),
    "Transposed convolution, `transpose_kernel=True`": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.ConvTranspose2d(4, 4, 3, stride=2)),
            "Flax NNX": _channels_last(
                _nnx(
                    lambda rngs: nnx.ConvTranspose(
                        4, 4, (3, 3), strides=2, padding="VALID", transpose_kernel=True, rngs=rngs
                    )
                )
            ),
        },
    ),
    "Transposed convolution with groups": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)),
            "Equinox": _equinox(lambda: eqx.nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, key=_KEY)),
        },
    ),
    "Embedding": (
        TEXT,
        {
            "PyTorch": _torch(lambda: nn.Embedding(4, 4)),
            "Flax NNX": _nnx(lambda rngs: nnx.Embed(4, 4, rngs=rngs)),
            "Flax Linen": _linen(linen.Embed(4, 4), TEXT),
            "Equinox": Layer(
                lambda: eqx.nn.Embedding(4, 4, key=_KEY),
                lambda layer, x: np.asarray(jax.vmap(jax.vmap(layer))(jnp.asarray(x))),
            ),
        },
    ),
    "LayerNorm": (
        VECTORS,
        {
            "PyTorch": _torch(lambda: nn.LayerNorm(3)),
            "Flax NNX": _nnx(lambda rngs: nnx.LayerNorm(3, epsilon=1e-5, rngs=rngs)),
            "Flax Linen": _linen(linen.LayerNorm(epsilon=1e-5), VECTORS),
            "Equinox": _equinox(lambda: eqx.nn.LayerNorm(3)),
        },
    ),
    "RMSNorm": (
        VECTORS,
        {
            "PyTorch": _torch(lambda: nn.RMSNorm(3, eps=1e-5)),
            "Flax NNX": _nnx(lambda rngs: nnx.RMSNorm(3, epsilon=1e-5, rngs=rngs)),
            "Flax Linen": _linen(linen.RMSNorm(epsilon=1e-5), VECTORS),
            "Equinox": _equinox(lambda: eqx.nn.RMSNorm(3, eps=1e-5, use_bias=False)),
        },
    ),
    "GroupNorm": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.GroupNorm(2, 4)),
            "Flax NNX": _channels_last(_nnx(lambda rngs: nnx.GroupNorm(4, 2, epsilon=1e-5, rngs=rngs))),
            "Flax Linen": _channels_last(_linen(linen.GroupNorm(2, epsilon=1e-5), _LAST)),
            "Equinox": _equinox(lambda: eqx.nn.GroupNorm(2, 4)),
        },
    ),
    "InstanceNorm": (
        IMAGES,
        {
            "PyTorch": _torch(lambda: nn.InstanceNorm2d(4, affine=True)),
            "Flax NNX": _channels_last(_nnx(lambda rngs: nnx.InstanceNorm(4, epsilon=1e-5, rngs=rngs))),
            "Flax Linen": _channels_last(_linen(linen.InstanceNorm(epsilon=1e-5), _LAST)),
        },
    ),
    "BatchNorm": (
        BATCH,
        {
            "PyTorch": _torch(_torch_batch_norm),
            "Flax NNX": _channels_last(
                _nnx(lambda rngs: nnx.BatchNorm(3, use_running_average=True, epsilon=1e-5, rngs=rngs))
            ),
            "Flax Linen": _channels_last(
                _linen(linen.BatchNorm(use_running_average=True, epsilon=1e-5), np.moveaxis(BATCH, 1, -1))
            ),
            "Equinox": Layer(
                lambda: eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema"), _run_equinox_batch_norm
            ),
        },
    ),
    "PReLU": (
        VECTORS,
        {
            "PyTorch": _torch(lambda: nn.PReLU(init=0.3)),
            "Flax NNX": _nnx(lambda rngs: nnx.PReLU()),
            "Flax Linen": _linen(linen.PReLU(), VECTORS),
            "Equinox": _equinox(lambda: eqx.nn.PReLU(0.1)),
        },
    ),
    "Attention": (
        SEQUENCES,
        {
            "PyTorch": Layer(_torch_attention, _run_torch_attention),
            "Flax NNX": _nnx(lambda rngs: nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)),
            "Flax Linen": _linen(linen.MultiHeadDotProductAttention(2), SEQUENCES),
            "Equinox": Layer(_equinox_attention, _run_equinox_attention),
        },
    ),
    "LSTM": (
        STEPS,
        {
            "PyTorch": _torch_cell(lambda: nn.LSTM(3, 3, batch_first=True)),
            "Flax NNX": _nnx_cell(lambda rngs: nnx.OptimizedLSTMCell(3, 3, rngs=rngs)),
            "Equinox": _equinox_cell(lambda: eqx.nn.LSTMCell(3, 3, key=_KEY)),
        },
    ),
    "LSTM, one layer for each gate": (
        STEPS,
        {
            "PyTorch": _torch_cell(lambda: nn.LSTM(3, 3, batch_first=True)),
            "Flax NNX": _nnx_cell(lambda rngs: nnx.LSTMCell(3, 3, rngs=rngs)),
            "Flax Linen": _linen_cell(linen.LSTMCell(3)),
            "Equinox": _equinox_cell(lambda: eqx.nn.LSTMCell(3, 3, key=_KEY)),
        },
    ),
    "GRU": (
        STEPS,
        {
            "PyTorch": _torch_cell(lambda: nn.GRU(3, 3, batch_first=True)),
            "Flax NNX": _nnx_cell(lambda rngs: nnx.GRUCell(3, 3, rngs=rngs)),
            "Flax Linen": _linen_cell(linen.GRUCell(3)),
            "Equinox": _equinox_cell(lambda: eqx.nn.GRUCell(3, 3, key=_KEY)),
        },
    ),
    "RNN": (
        STEPS,
        {
            "PyTorch": _torch_cell(lambda: nn.RNN(3, 3, batch_first=True)),
            "Flax NNX": _nnx_cell(lambda rngs: nnx.SimpleCell(3, 3, rngs=rngs)),
        },
    ),
}
