"""The same four models in PyTorch, Flax NNX and Equinox, two of them in Flax Linen, too."""

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


class Model(NamedTuple):
    """A model of one framework: its parameters, and its output for an input in the layout of PyTorch."""

    make: Callable[[], Any]
    run: Callable[[Any, Array], Array]


def _run_torch(model: nn.Module, x: Array) -> Array:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(x)).numpy()


# -- MLP: a container of layers, with square matrices -----------------------------------------------------------------


class TorchMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.drop(self.net(x))))


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.net = nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, epsilon=1e-5, rngs=rngs))
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.head(jax.nn.relu(self.drop(self.net(x), deterministic=True)))


class EquinoxMLP(eqx.Module):
    net: eqx.nn.Sequential
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key: Array) -> None:
        self.net = eqx.nn.Sequential([eqx.nn.Linear(4, 4, key=key), eqx.nn.LayerNorm(4)])
        self.drop = eqx.nn.Dropout(0.5)
        self.head = eqx.nn.Linear(4, 3, key=key)

    def __call__(self, x: Array) -> Array:
        return self.head(jax.nn.relu(self.drop(self.net(x), inference=True)))


class LinenMLP(linen.Module):
    def setup(self) -> None:
        self.net = linen.Sequential([linen.Dense(4), linen.LayerNorm(epsilon=1e-5)])
        self.head = linen.Dense(3)

    def __call__(self, x: Array) -> Array:
        return self.head(linen.relu(self.net(x)))


# -- CNN: convolutions without a bias, batch norms, a shortcut --------------------------------------------------------


class TorchCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        for number, norm in enumerate((self.norm1, self.norm2)):
            random = torch.Generator().manual_seed(number)
            for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                value.data.copy_(torch.rand(4, generator=random) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = x + torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class NnxCNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        norm = {"use_running_average": True, "epsilon": 1e-5, "rngs": rngs}
        self.conv1 = nnx.Conv(3, 4, (3, 3), use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(4, **norm)
        self.conv2 = nnx.Conv(4, 4, (3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(4, **norm)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.norm1(self.conv1(x)))
        x = x + jax.nn.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((1, 2)))


class EquinoxCNN(eqx.Module):
    conv1: eqx.nn.Conv2d
    norm1: eqx.nn.BatchNorm
    conv2: eqx.nn.Conv2d
    norm2: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key: Array) -> None:
        self.conv1 = eqx.nn.Conv2d(3, 4, 3, padding=1, use_bias=False, key=key)
        self.norm1 = eqx.nn.BatchNorm(4, "batch", mode="ema")
        self.conv2 = eqx.nn.Conv2d(4, 4, 3, padding=1, key=key)
        self.norm2 = eqx.nn.BatchNorm(4, "batch", mode="ema")
        self.head = eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x: Array, state: Any) -> Array:
        x, state = self.norm1(self.conv1(x), state)
        x = jax.nn.relu(x)
        y, state = self.norm2(self.conv2(x), state)
        return self.head((x + jax.nn.relu(y)).mean((1, 2)))


class LinenCNN(linen.Module):
    @linen.compact
    def __call__(self, x: Array) -> Array:
        x = linen.Conv(4, (3, 3), use_bias=False, name="conv1")(x)
        x = linen.relu(linen.BatchNorm(use_running_average=True, name="norm1")(x))
        y = linen.Conv(4, (3, 3), name="conv2")(x)
        x = x + linen.relu(linen.BatchNorm(use_running_average=True, name="norm2")(y))
        return linen.Dense(2, name="head")(x.mean((1, 2)))


def _run_equinox_cnn(both: Any, x: Array) -> Array:
    model, state = eqx.nn.inference_mode(both[0]), both[1]
    return np.asarray(jax.vmap(lambda image: model(image, state), axis_name="batch")(jnp.asarray(x)))


# -- LSTM -------------------------------------------------------------------------------------------------------------


class TorchLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


class NnxLSTM(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.head(self.lstm(x))


class EquinoxLSTM(eqx.Module):
    lstm: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __init__(self, key: Array) -> None:
        self.lstm = eqx.nn.LSTMCell(3, 4, key=key)
        self.head = eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x: Array) -> Array:
        def step(state: Array, now: Array) -> Array:
            state = self.lstm(now, state)
            return state, self.head(state[0])

        return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), x)[1]


# -- GPT: blocks with fused attention, the embedding is also the head -------------------------------------------------

_WIDTH, _HEADS, _VOCAB, _LENGTH = 8, 2, 10, 5


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attn = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.up, self.down = nn.Linear(_WIDTH, 16), nn.Linear(16, _WIDTH)
        nn.init.normal_(self.attn.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.ones(_LENGTH, _LENGTH, dtype=torch.bool), 1)
        y = self.norm1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class TorchGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCAB, _WIDTH)
        self.place = nn.Parameter(torch.randn(_LENGTH, _WIDTH))
        self.blocks = nn.ModuleList([TorchBlock(), TorchBlock()])
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.LayerNorm(_WIDTH, epsilon=1e-5, rngs=rngs)
        self.norm2 = nnx.LayerNorm(_WIDTH, epsilon=1e-5, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(_HEADS, _WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(_WIDTH, 16, rngs=rngs), nnx.Linear(16, _WIDTH, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = x + self.attn(self.norm1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.relu(self.up(self.norm2(x))))


class NnxGPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(_VOCAB, _WIDTH, rngs=rngs)
        self.place = nnx.Param(jnp.zeros((_LENGTH, _WIDTH)))
        self.blocks = nnx.List([NnxBlock(rngs), NnxBlock(rngs)])
        self.norm = nnx.LayerNorm(_WIDTH, epsilon=1e-5, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        x = self.embed(tokens) + self.place[...]
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x))


class EquinoxBlock(eqx.Module):
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attn: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Array) -> None:
        self.norm1, self.norm2 = eqx.nn.LayerNorm(_WIDTH), eqx.nn.LayerNorm(_WIDTH)
        biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
        self.attn = eqx.nn.MultiheadAttention(_HEADS, _WIDTH, **biases, key=key)
        self.up, self.down = eqx.nn.Linear(_WIDTH, 16, key=key), eqx.nn.Linear(16, _WIDTH, key=key)

    def __call__(self, x: Array) -> Array:
        y = jax.vmap(self.norm1)(x)
        x = x + self.attn(y, y, y, mask=jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool)))
        return x + jax.vmap(lambda one: self.down(jax.nn.relu(self.up(self.norm2(one)))))(x)


class EquinoxGPT(eqx.Module):
    embed: eqx.nn.Embedding
    place: jax.Array
    blocks: tuple[EquinoxBlock, ...]
    norm: eqx.nn.LayerNorm

    def __init__(self, key: Array) -> None:
        self.embed = eqx.nn.Embedding(_VOCAB, _WIDTH, key=key)
        self.place = jnp.zeros((_LENGTH, _WIDTH))
        self.blocks = (EquinoxBlock(key), EquinoxBlock(key))
        self.norm = eqx.nn.LayerNorm(_WIDTH)

    def __call__(self, tokens: Array) -> Array:
        x = jax.vmap(self.embed)(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.norm)(x) @ self.embed.weight.T


# -- the table --------------------------------------------------------------------------------------------------------


def _random(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def _nnx(make: Callable[[nnx.Rngs], Any]) -> Model:
    return Model(lambda: make(nnx.Rngs(1)), lambda model, x: np.asarray(model(jnp.asarray(x))))


def _equinox(make: Callable[[Array], Any]) -> Model:
    return Model(lambda: make(jax.random.key(1)), lambda model, x: np.asarray(jax.vmap(model)(jnp.asarray(x))))


def _linen(module: linen.Module, x: Array) -> Model:
    return Model(
        lambda: module.init(jax.random.key(1), jnp.asarray(x)),
        lambda variables, x: np.asarray(module.apply(variables, jnp.asarray(x))),
    )


def _last(model: Model) -> Model:
    return Model(model.make, lambda made, x: model.run(made, np.moveaxis(x, 1, -1)))


VECTORS, IMAGES, STEPS = _random(5, 4), _random(2, 3, 6, 6), _random(2, 5, 3)
TOKENS = np.array([[1, 2, 9, 0, 3], [4, 4, 5, 6, 7]])

MODELS: dict[str, tuple[Array, dict[str, Model]]] = {
    "MLP": (
        VECTORS,
        {
            "PyTorch": Model(TorchMLP, _run_torch),
            "Flax NNX": _nnx(NnxMLP),
            "Flax Linen": _linen(LinenMLP(), VECTORS),
            "Equinox": _equinox(EquinoxMLP),
        },
    ),
    "CNN": (
        IMAGES,
        {
            "PyTorch": Model(TorchCNN, _run_torch),
            "Flax NNX": _last(_nnx(NnxCNN)),
            "Flax Linen": _last(_linen(LinenCNN(), np.moveaxis(IMAGES, 1, -1))),
            "Equinox": Model(lambda: eqx.nn.make_with_state(EquinoxCNN)(jax.random.key(1)), _run_equinox_cnn),
        },
    ),
    "LSTM": (
        STEPS,
        {
            "PyTorch": Model(TorchLSTM, _run_torch),
            "Flax NNX": _nnx(NnxLSTM),
            "Equinox": _equinox(EquinoxLSTM),
        },
    ),
    "GPT": (
        TOKENS,
        {
            "PyTorch": Model(TorchGPT, _run_torch),
            "Flax NNX": _nnx(NnxGPT),
            "Equinox": _equinox(EquinoxGPT),
        },
    ),
}
