"""Stacked layers of JAX and lists of layers: carried in both directions, between frameworks and within one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn

import leafwise as lw

LAYERS, WIDTH = 3, 4
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype(np.float32)


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.tanh(self.linear(x)))
        return x + self.attention(x, x, x)[0]


class TorchList(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TorchBlock() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.norm(jnp.tanh(self.linear(x)))
        return x + self.attention(x)


class NnxList(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(1)
        self.layers = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class NnxStack(nnx.Module):
    def __init__(self, axis: int = 0) -> None:
        rngs = nnx.Rngs(2)
        make = nnx.vmap(NnxBlock, in_axes=0, out_axes=axis)
        self.layers = nnx.split_rngs(splits=LAYERS)(make)(rngs)
        self.head = nnx.Linear(WIDTH, 2, rngs=rngs)
        self.axis = axis

    def __call__(self, x: Any) -> Any:
        step = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, self.axis), out_axes=nnx.Carry)
        return self.head(step(x, self.layers))


def outputs(model: Any) -> Any:
    if isinstance(model, nn.Module):
        return model.eval()(torch.from_numpy(X)).detach().numpy()
    return np.asarray(model(X))


def as_model(model: Any, folder: Path) -> Any:
    return model


def as_file(model: Any, folder: Path) -> Any:
    return lw.save(model, folder / "model.safetensors")


def with_orbax(model: Any, folder: Path) -> Any:
    return lw.save(model, folder / "model", format="orbax")


MODELS: dict[str, Callable[[], Any]] = {"PyTorch": TorchList, "list": NnxList, "stack": NnxStack}


@pytest.mark.parametrize("stored", [as_model, as_file, with_orbax], ids=lambda stored: stored.__name__)
@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in MODELS for b in MODELS if a != b and "stack" in (a, b)], ids=str
)
def test_a_stack_becomes_a_list_of_layers_and_back(
    source: str, target: str, stored: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    original = MODELS[source]()
    if (source, target, stored) == ("stack", "PyTorch", with_orbax):
        # One array of PyTorch for query, key and value does not show which axis of theirs is that of the layers.
        with pytest.raises(lw.LoadError, match="in_proj_weight"):
            lw.load(MODELS[target](), stored(original, tmp_path))
        return
    loaded = lw.load(MODELS[target](), original)
    if stored is as_model:
        np.testing.assert_allclose(outputs(loaded), outputs(original), atol=2e-5)
    else:
        assert lw.diff(loaded, lw.load(MODELS[target](), stored(original, tmp_path))).same


def test_the_plan_says_that_layers_are_stacked_and_split() -> None:
    assert "layers.{0..2}.linear.weight → layers.linear.kernel" in str(lw.plan(NnxStack(), TorchList()))
    how = {feed.name: feed.how for feed in lw.plan(NnxStack(), TorchList()).feeds}
    assert how["layers.linear.kernel"] == ("transposed (out, in → in, out)", "stacked")
    how = {feed.name: feed.how for feed in lw.plan(NnxList(), NnxStack()).feeds}
    assert how["layers.1.linear.kernel"] == ("split", "reshaped")


@pytest.mark.parametrize("layers", [LAYERS - 1, LAYERS + 1])
def test_another_number_of_layers_is_refused(layers: int) -> None:
    with pytest.raises(lw.LoadError, match="missing: layers"):
        lw.load(NnxStack(), TorchList(layers))
    with pytest.raises(lw.LoadError, match="missing: layers"):
        lw.load(TorchList(layers), NnxStack())


def test_layers_of_equinox() -> None:
    def make(key: Any) -> Any:
        return eqx.nn.Sequential([eqx.nn.Linear(WIDTH, 6, key=key), eqx.nn.Conv1d(2, 6, 3, key=key)])

    stack = {"blocks": eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), LAYERS))}
    target = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 6), nn.Conv1d(2, 6, 3)) for _ in range(LAYERS)])}
    )
    lw.load(target, stack)
    for number in range(LAYERS):
        linear, convolution = (layer.weight[number] for layer in stack["blocks"].layers)
        np.testing.assert_array_equal(target["blocks"][number][0].weight.detach(), linear)
        np.testing.assert_array_equal(target["blocks"][number][1].weight.detach(), convolution)
    again = lw.load(jax.tree.map(lambda leaf: leaf * 0 if eqx.is_array(leaf) else leaf, stack), target)
    assert eqx.tree_equal(eqx.filter(again, eqx.is_array), eqx.filter(stack, eqx.is_array))


class LinenBlock(linen.Module):
    inner: int = 8

    @linen.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        hidden = linen.Dense(self.inner, use_bias=False, name="up")(x)
        return linen.Dense(WIDTH, use_bias=False, name="down")(jnp.tanh(hidden)), None


class LinenStack(linen.Module):
    inner: int = 8
    axis: int = 0

    @linen.compact
    def __call__(self, x: Any) -> Any:
        scanned = linen.scan(
            LinenBlock, variable_axes={"params": self.axis}, split_rngs={"params": True}, length=LAYERS
        )
        return scanned(self.inner, name="layers")(x, None)[0]


class LinenList(linen.Module):
    inner: int = 8

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for number in range(LAYERS):
            x, _ = LinenBlock(self.inner, name=f"layers_{number}")(x)
        return x


@pytest.mark.parametrize("axis", [0, 1])
def test_layers_of_linen_without_biases_are_known_by_those_of_the_list(axis: int, tmp_path: Path) -> None:
    """As maxtext scans them: nothing but the shapes of the other side shows which axis is that of the layers."""
    stack, listed = LinenStack(axis=axis), LinenList()
    stacked = stack.init(jax.random.key(0), X)
    variables = listed.init(jax.random.key(1), X)
    for source in (stacked, lw.save(stacked, tmp_path / "stack", format="orbax")):
        np.testing.assert_allclose(listed.apply(lw.load(variables, source), X), stack.apply(stacked, X), atol=1e-6)
    for source in (variables, lw.save(variables, tmp_path / "list", format="orbax")):
        np.testing.assert_allclose(stack.apply(lw.load(stacked, source), X), listed.apply(variables, X), atol=1e-6)


def test_an_axis_that_shapes_do_not_show_is_refused() -> None:
    """Three layers of three inputs."""
    x = np.ones((2, WIDTH), np.float32)
    stacked = LinenStack(inner=LAYERS).init(jax.random.key(0), x)
    with pytest.raises(lw.LoadError, match="missing"):
        lw.load(LinenList(inner=LAYERS).init(jax.random.key(1), x), stacked)


def test_experts_inside_of_layers_are_refused() -> None:
    def expert(key: Any) -> Any:
        return eqx.nn.Linear(WIDTH, 6, key=key)

    keys = jax.random.split(jax.random.key(0), (LAYERS, 2))
    stack = {"layers": eqx.filter_vmap(eqx.filter_vmap(expert))(keys)}
    target = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(WIDTH, 6) for _ in range(LAYERS)])})
    with pytest.raises(lw.LoadError, match="missing"):
        lw.load(target, stack)
