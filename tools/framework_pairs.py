"""Loads weights between PyTorch and JAX in random pairs of models with one architecture, and compares their outputs.

Each pair has a seed, which draws an architecture (its sizes are square in every second one), a framework of JAX, the
direction, the kind of source, and whether names are passed as `rename=`. The weights of both models are made from the
same arrays by hand, and both must then compute the same: this shows that a pair is one architecture. `lw.load` has to
bring a model with other weights to the same outputs, or refuse, or warn and name a leaf of the layer that differs.

    python -m tools.framework_pairs                 200 pairs, and records the table (minutes)
    python -m tools.framework_pairs 417003          the pair with this seed alone
    python -m tools.framework_pairs flatten npz     those of the 200 pairs whose description has one of these words
"""

import random
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from flax import linen, nnx
from flax.serialization import to_state_dict
from tools import sweeps
from torch import nn

import leafwise as lw

Array = Any
Leaves = dict[str, Array]
PAIRS = 200
KINDS = ("exact", "refused", "warned", "wrong", "crashed")

TORCH, NNX, LINEN, EQUINOX = "PyTorch", "Flax NNX", "Flax Linen", "Equinox"
DICT, OWN_NNX, OWN_EQUINOX = "dicts of w and b", "NNX with self.w", "Equinox with self.w"
JAX = (NNX, LINEN, EQUINOX, DICT, OWN_NNX, OWN_EQUINOX)
OWN = (DICT, OWN_NNX, OWN_EQUINOX)
IN_DICTS = (LINEN, DICT)
SOURCES = ("model", "lw.save", "safetensors", "torch.save", "npz", "NumPy dict", "state dict")


class Layer(NamedTuple):
    """A layer, in the words of PyTorch. `sizes` are those of its inputs, then of its outputs, then of a kernel; of heads,
    then of each head; or the number of layers of a stack, then their width."""

    kind: str
    name: str
    sizes: tuple[int, ...]
    bias: bool


class Pair(NamedTuple):
    """Two models of one architecture: `body` is in a container, `head` beside it. `flags` are details of the models
    that differ in JAX; `shape` is that of an input."""

    seed: int
    architecture: str
    source: str
    target: str
    stored: str
    renames: bool
    container: str
    flags: frozenset[str]
    body: tuple[Layer, ...]
    head: Layer
    shape: tuple[int, ...]

    def __str__(self) -> str:
        sizes = " ".join(f"{layer.kind}{layer.sizes}" for layer in (*self.body, self.head))
        renamed = ", rename=" if self.renames else ""
        flags = ", ".join(sorted(self.flags))
        return f"{self.architecture}, {self.source} → {self.target}, {self.stored}{renamed}; {sizes}; {flags}"


class Outcome(NamedTuple):
    kind: str
    why: str = ""


# -- drawing -----------------------------------------------------------------------------------------------------------

# What layers an architecture has, and whether frameworks that only have own layers have it, too.
_BODIES = {
    "mlp": ("linear norm linear", True),
    "projections": ("linear linear linear linear", True),
    "rms": ("rms linear", True),
    "gemma": ("gemma linear", True),
    "embedding": ("embed norm", True),
    "stack": ("stack", True),
    "convolutions": ("conv conv", True),
    "flatten": ("conv", True),
    "attention": ("norm attention", False),
    "heads": ("split merge", False),
    "transposed": ("up", False),
}
_NAMES = {"linear": ("fc", "dense", "norm", "conv"), "conv": ("conv", "down"), "up": ("up", "conv")}
_PROJECTIONS = (("query", "key", "value", "out"), ("query_proj", "key_proj", "value_proj", "output_proj"))
_IMAGES = ("convolutions", "flatten", "transposed")


def drawn(seed: int) -> Pair:
    """The pair of a seed."""
    draw = random.Random(seed)
    framework = draw.choice(JAX)
    architecture = draw.choice([name for name, (_, is_own) in _BODIES.items() if is_own or framework not in OWN])
    source, target = draw.choice([(TORCH, framework), (framework, TORCH)])
    containers = ("names",) if architecture in ("stack", "projections") else ("names", "list", "sequential")
    container, is_square, bias = draw.choice(containers), draw.random() < 0.5, draw.random() < 0.7
    options = ("own is (out, in)", "channels first", "1 + w in the scale", "transpose_kernel", "one array in PyTorch")
    flags = frozenset(option for option in options if draw.random() < 0.5)
    spelled = draw.choice(_PROJECTIONS) if architecture == "projections" else ()
    body, width = [], 3 if architecture in _IMAGES else 4
    first = width
    for number, kind in enumerate(_BODIES[architecture][0].split()):
        other = width if is_square else width + draw.choice((1, 2))
        sizes = {
            **dict.fromkeys(("norm", "rms", "gemma"), (width,)),
            **dict.fromkeys(("conv", "up"), (width, other, 3)),
            "attention": (2, width // 2),
            "split": (width, 2, width // 2 if is_square else 3),
            "merge": (*body[-1].sizes[1:], width if is_square else 5) if kind == "merge" else (),
            "stack": (draw.choice((1, width)), width),
        }.get(kind, (width, other))
        width = {"attention": width, "split": width, "stack": width}.get(kind, sizes[-1])
        width = other if kind in ("conv", "up") else width
        name = spelled[number] if spelled else f"{draw.choice(_NAMES.get(kind, (kind,)))}{number}"
        body.append(Layer(kind, name, sizes, bias))
    space = (first, first) if is_square else (4, 5)
    out = width if is_square else 2
    head = Layer("linear", "head", (width, out), bias)
    if architecture == "flatten":
        head = Layer("flat", "head", (width, *space, out), bias)
    shape = {"mlp": (6, first), "embedding": (6, 5)}.get(architecture, (6, 5, first))
    shape = (2, first, *space) if architecture in _IMAGES else shape
    rename = draw.random() < (0.75 if framework in OWN or (framework == LINEN and container == "list") else 0.25)
    stored = draw.choice([stored for stored in SOURCES if _is_possible(source, stored)])
    return Pair(seed, architecture, source, target, stored, rename, container, flags, tuple(body), head, shape)


def _is_possible(framework: str, stored: str) -> bool:
    """Whether people store models of a framework like that. Others than PyTorch and Flax have no state dicts."""
    without = {TORCH: (), NNX: ("torch.save",), OWN_NNX: ("torch.save",), LINEN: ("torch.save",)}
    return stored not in without.get(framework, ("torch.save", "state dict"))


def _weights(layer: Layer, draw: np.random.Generator) -> Leaves:
    """Random weights of a layer, with the names and the layouts of PyTorch; those of a stack are one array each."""
    sizes, kind = layer.sizes, layer.kind
    width = sizes[0] * sizes[1] if len(sizes) > 1 else sizes[0]
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        **dict.fromkeys(("norm", "rms", "gemma"), (sizes, width)),
        "embed": (sizes, 0),
        "conv": ((*sizes[1::-1], *sizes[2:] * 2), sizes[1] if len(sizes) > 1 else 0),
        "up": ((*sizes[:2], *sizes[2:] * 2), sizes[1] if len(sizes) > 1 else 0),
        "attention": ((3 * width, width), 3 * width),
        "split": ((int(np.prod(sizes[1:])), sizes[0]), int(np.prod(sizes[1:]))),
        "stack": ((sizes[0], sizes[-1], sizes[-1]), sizes[-1]),
    }
    shape, outputs = shapes.get(kind, ((sizes[-1], int(np.prod(sizes[:-1]))), sizes[-1]))
    scale = 0.5 if len(shape) == 1 or kind == "embed" else 1 / np.sqrt(np.prod(shape[1:]))
    made = {"weight": draw.normal(1.0 if kind in ("norm", "rms") else 0.0, scale, shape)}
    if kind in ("norm", "attention") or (layer.bias and outputs and kind not in ("rms", "gemma")):
        made["bias"] = draw.normal(0.0, 0.5, (sizes[0], outputs) if kind == "stack" else (outputs,))
    if kind == "attention":
        made = {"in_proj_weight": made["weight"], "in_proj_bias": made["bias"]}
        made |= {"out_proj.weight": draw.normal(0.0, 0.5, (width, width)), "out_proj.bias": draw.normal(0, 1, width)}
    return {name: value.astype(np.float32) for name, value in made.items()}


# -- by hand: the leaves of a layer in each framework, from those of PyTorch -------------------------------------------


def _of_torch(layer: Layer, weights: Leaves, flags: frozenset[str]) -> Leaves:
    if layer.kind != "stack" or "one array in PyTorch" in flags:
        return weights
    return {f"{number}.{name}": array[number] for name, array in weights.items() for number in range(len(array))}


def _of_flax(layer: Layer, weights: Leaves, flags: frozenset[str]) -> Leaves:
    kind, sizes = layer.kind, layer.sizes
    if kind == "attention":
        made: Leaves = {}
        for number, name in enumerate(("query", "key", "value")):
            weight, bias = (np.split(weights[f"in_proj_{what}"], 3)[number] for what in ("weight", "bias"))
            made |= {f"{name}.kernel": weight.T.reshape(-1, *sizes), f"{name}.bias": bias.reshape(sizes)}
        out = weights["out_proj.weight"].T
        return made | {"out.kernel": out.reshape(*sizes, -1), "out.bias": weights["out_proj.bias"]}
    weight, bias = weights["weight"], {"bias": weights["bias"]} if "bias" in weights else {}
    if kind in ("norm", "rms", "gemma"):
        return {"scale": weight + 1 if kind == "gemma" and "1 + w in the scale" in flags else weight, **bias}
    if kind == "embed":
        return {"embedding": weight}
    if kind == "split":
        return {"kernel": weight.T.reshape(sizes), **{name: array.reshape(sizes[1:]) for name, array in bias.items()}}
    if kind == "up":
        straight = "transpose_kernel" in flags
        return {
            "kernel": weight.transpose(2, 3, 1, 0) if straight else weight.transpose(2, 3, 0, 1)[::-1, ::-1],
            **bias,
        }
    if kind == "flat" and "channels first" not in flags:
        return {"kernel": weight.reshape(-1, *sizes[:3]).transpose(2, 3, 1, 0).reshape(-1, sizes[3]), **bias}
    order = {"conv": (2, 3, 1, 0), "stack": (0, 2, 1)}.get(kind, (1, 0))
    kernel = weight.transpose(order)
    return {"kernel": kernel.reshape(sizes) if kind == "merge" else kernel, **bias}


def _of_equinox(layer: Layer, weights: Leaves, flags: frozenset[str]) -> Leaves:
    kind = layer.kind
    if kind == "attention":
        names = [f"{name}_proj" for name in ("query", "key", "value")]
        parts = {what: np.split(weights[f"in_proj_{what}"], 3) for what in ("weight", "bias")}
        made = {f"{name}.{what}": parts[what][number] for number, name in enumerate(names) for what in parts}
        return made | {f"output_proj.{what}": weights[f"out_proj.{what}"] for what in parts}
    made = dict(weights)
    if kind in ("conv", "up") and "bias" in made:
        made["bias"] = made["bias"].reshape(-1, 1, 1)
    if kind == "up":
        made["weight"] = made["weight"].transpose(1, 0, 2, 3)[..., ::-1, ::-1]
    if kind == "gemma" and "1 + w in the scale" in flags:
        made["weight"] = made["weight"] + 1
    return made


def _of_own(layer: Layer, weights: Leaves, flags: frozenset[str]) -> Leaves:
    """Of layers that name their leaves w and b."""
    made = {"b" if name == "bias" else "w": array for name, array in _of_flax(layer, weights, flags).items()}
    if layer.kind in ("linear", "flat", "stack") and "own is (out, in)" in flags:
        made["w"] = made["w"].swapaxes(-1, -2)
    return made


_LEAVES = {TORCH: _of_torch, NNX: _of_flax, LINEN: _of_flax, EQUINOX: _of_equinox, **dict.fromkeys(OWN, _of_own)}


def place(pair: Pair, framework: str, number: int) -> str:
    """The path of a layer: of the body by its number, or of the head, which comes after them."""
    start = "params." if framework == LINEN else ""
    if number == len(pair.body):
        return f"{start}head"
    if pair.container == "names":
        return f"{start}body.{pair.body[number].name}"
    if framework == DICT or (framework == LINEN and pair.container == "list"):
        return f"{start}body_{number}"
    level = {LINEN: "layers_", TORCH: ""}.get(framework, "layers.") if pair.container == "sequential" else ""
    return f"{start}body.{level}{number}"


def leaves(pair: Pair, framework: str, weights: list[Leaves]) -> Leaves:
    """Every leaf of a model, by its name."""
    return {
        f"{place(pair, framework, number)}.{name}": np.ascontiguousarray(array)
        for number, layer in enumerate((*pair.body, pair.head))
        for name, array in _LEAVES[framework](layer, weights[number], pair.flags).items()
    }


def renames(pair: Pair, weights: list[Leaves]) -> dict[str, str]:
    """The names of the source, with those of the target, for each layer whose leaves correspond one to one."""
    named = {}
    for number, layer in enumerate((*pair.body, pair.head)):
        ours, theirs = (_LEAVES[side](layer, weights[number], pair.flags) for side in (pair.source, pair.target))
        if len(ours) == len(theirs) and layer.kind != "attention":
            start, end = place(pair, pair.source, number), place(pair, pair.target, number)
            named |= {f"{start}.{one}": f"{end}.{other}" for one, other in zip(ours, theirs, strict=True)}
    return named


# -- models ------------------------------------------------------------------------------------------------------------


class GemmaRMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * (1 + self.weight)


class TorchStack(nn.Module):
    """Linear layers in one array."""

    def __init__(self, count: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width, width))
        self.bias = nn.Parameter(torch.zeros(count, width)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(self.weight):
            x = torch.tanh(nn.functional.linear(x, weight, None if self.bias is None else self.bias[number]))
        return x


class TorchNet(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head


class NnxGemmaRMSNorm(nnx.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.zeros(width))

    def __call__(self, x: Array) -> Array:
        return _normed(x) * (1 + self.scale[...])


class LinenGemmaRMSNorm(linen.Module):  # type: ignore[misc]
    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Array) -> Array:
        return _normed(x) * (1 + self.param("scale", linen.initializers.zeros, x.shape[-1:]))


class LinenStep(linen.Dense):  # type: ignore[misc]
    """A layer of a stack."""

    def __call__(self, x: Array, _: None) -> tuple[Array, None]:
        return jnp.tanh(super().__call__(x)), None


class EquinoxGemmaRMSNorm(eqx.Module):  # type: ignore[misc]
    weight: Array

    def __call__(self, x: Array) -> Array:
        return _normed(x) * (1 + self.weight)


class NnxOwn(nnx.Module):  # type: ignore[misc]
    def __init__(self, made: Leaves) -> None:
        self.w = nnx.Param(jnp.asarray(made["w"]))
        self.b = nnx.Param(jnp.asarray(made["b"])) if "b" in made else None

    def __call__(self, _: Array) -> Array:
        raise NotImplementedError  # `_computed` does it; but an nnx.Sequential has only what can be called


class EquinoxOwn(eqx.Module):  # type: ignore[misc]
    w: Array
    b: Array


class NnxNames(nnx.Module):  # type: ignore[misc]
    def __init__(self, layers: dict[str, Any]) -> None:
        for name, layer in layers.items():
            setattr(self, name, layer)


class NnxNet(nnx.Module):  # type: ignore[misc]
    def __init__(self, body: Any, head: Any) -> None:
        self.body, self.head = body, head


class EquinoxNet(eqx.Module):  # type: ignore[misc]
    body: Any
    head: Any


def _normed(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def _ends(layer: Layer) -> tuple[int, int]:
    """The inputs and the outputs of a layer that is linear in PyTorch."""
    at = 1 if layer.kind == "split" else -1
    return int(np.prod(layer.sizes[:at])), int(np.prod(layer.sizes[at:]))


def _torch_layer(layer: Layer, flags: frozenset[str]) -> nn.Module:
    kind, sizes, bias = layer.kind, layer.sizes, layer.bias
    match kind:
        case "norm" | "rms" | "gemma":
            return {"norm": nn.LayerNorm, "rms": partial(nn.RMSNorm, eps=1e-5), "gemma": GemmaRMSNorm}[kind](*sizes)
        case "embed":
            return nn.Embedding(*sizes)
        case "conv":
            return nn.Conv2d(*sizes, padding=1, bias=bias)
        case "up":
            return nn.ConvTranspose2d(*sizes, stride=2, bias=bias)
        case "attention":
            return nn.MultiheadAttention(sizes[0] * sizes[1], sizes[0], batch_first=True)
        case "stack" if "one array in PyTorch" in flags:
            return TorchStack(*sizes, bias)
        case "stack":
            return nn.ModuleList(nn.Linear(sizes[1], sizes[1], bias) for _ in range(sizes[0]))
        case _:
            return nn.Linear(*_ends(layer), bias)


def _nnx_layer(layer: Layer, flags: frozenset[str]) -> Any:
    kind, sizes, rngs = layer.kind, layer.sizes, nnx.Rngs(0)
    options = {"use_bias": layer.bias, "rngs": rngs}
    match kind:
        case "norm" | "rms":
            return {"norm": nnx.LayerNorm, "rms": nnx.RMSNorm}[kind](*sizes, epsilon=1e-5, rngs=rngs)
        case "gemma":
            is_usual = "1 + w in the scale" in flags
            return nnx.RMSNorm(*sizes, epsilon=1e-5, rngs=rngs) if is_usual else NnxGemmaRMSNorm(*sizes)
        case "embed":
            return nnx.Embed(*sizes, rngs=rngs)
        case "conv":
            return nnx.Conv(*sizes[:2], (3, 3), **options)
        case "up":
            straight = "transpose_kernel" in flags
            plain = {"strides": 2, "padding": "VALID", "transpose_kernel": straight}
            return nnx.ConvTranspose(*sizes[:2], (3, 3), **plain, **options)
        case "attention":
            return nnx.MultiHeadAttention(sizes[0], sizes[0] * sizes[1], decode=False, rngs=rngs)
        case "split" | "merge":
            ends, axis = ((sizes[0], sizes[1:]), -1) if kind == "split" else ((sizes[:2], sizes[2]), (-2, -1))
            return nnx.LinearGeneral(*ends, axis=axis, **options)
        case "stack":
            made = nnx.vmap(lambda rngs: nnx.Linear(sizes[1], sizes[1], use_bias=layer.bias, rngs=rngs))
            return nnx.split_rngs(splits=sizes[0])(made)(rngs)
        case _:
            return nnx.Linear(*_ends(layer), **options)


def _linen_layer(layer: Layer, flags: frozenset[str], **name: str) -> Any:
    kind, sizes, options = layer.kind, layer.sizes, {"use_bias": layer.bias, **name}
    match kind:
        case "norm" | "rms":
            return {"norm": linen.LayerNorm, "rms": linen.RMSNorm}[kind](epsilon=1e-5, **name)
        case "gemma":
            is_usual = "1 + w in the scale" in flags
            return linen.RMSNorm(epsilon=1e-5, **name) if is_usual else LinenGemmaRMSNorm(**name)
        case "embed":
            return linen.Embed(*sizes, **name)
        case "conv":
            return linen.Conv(sizes[1], (3, 3), **options)
        case "up":
            plain = {"strides": (2, 2), "padding": "VALID", "transpose_kernel": "transpose_kernel" in flags}
            return linen.ConvTranspose(sizes[1], (3, 3), **plain, **options)
        case "attention":
            return linen.MultiHeadDotProductAttention(sizes[0], **name)
        case "split":
            return linen.DenseGeneral(sizes[1:], **options)
        case "merge":
            return linen.DenseGeneral(sizes[2], axis=(-2, -1), **options)
        case "stack":
            plain = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": sizes[0]}
            return linen.scan(LinenStep, **plain)(sizes[1], **options)
        case _:
            return linen.Dense(_ends(layer)[1], **options)


def _equinox_layer(layer: Layer, flags: frozenset[str]) -> Any:
    kind, sizes, key = layer.kind, layer.sizes, jax.random.key(0)
    options = {"use_bias": layer.bias, "key": key}
    match kind:
        case "norm":
            return eqx.nn.LayerNorm(*sizes)
        case "gemma" if "1 + w in the scale" not in flags:
            return EquinoxGemmaRMSNorm(jnp.zeros(sizes))
        case "rms" | "gemma":
            return eqx.nn.RMSNorm(*sizes, eps=1e-5, use_bias=False)
        case "embed":
            return eqx.nn.Embedding(*sizes, key=key)
        case "conv":
            return eqx.nn.Conv2d(*sizes, padding=1, **options)
        case "up":
            return eqx.nn.ConvTranspose2d(*sizes, stride=2, **options)
        case "attention":
            biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
            return eqx.nn.MultiheadAttention(sizes[0], sizes[0] * sizes[1], **biases, key=key)
        case "stack":
            made = eqx.filter_vmap(lambda key: eqx.nn.Linear(sizes[1], sizes[1], use_bias=layer.bias, key=key))
            return made(jax.random.split(key, sizes[0]))
        case _:
            return eqx.nn.Linear(*_ends(layer), **options)


def linen_module(pair: Pair) -> Any:
    class Body(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Array) -> Array:
            for layer in pair.body:
                module = _linen_layer(layer, pair.flags, name=layer.name)
                x = module(x, None)[0] if layer.kind == "stack" else module(x)
            return x

    class Net(linen.Module):  # type: ignore[misc]
        def setup(self) -> None:
            layers = [] if pair.container == "names" else [_linen_layer(layer, pair.flags) for layer in pair.body]
            self.body = {"names": Body, "list": lambda: layers, "sequential": lambda: linen.Sequential(layers)}[
                pair.container
            ]()
            self.head = _linen_layer(pair.head, pair.flags)

        def __call__(self, x: Array) -> Array:
            for module in self.body if pair.container == "list" else [self.body]:
                x = module(x)
            return self.head(_before_head(pair, x, is_channels_first=False))

    return Net()


# By framework, how containers of layers are made, and what has them and the head.
_CONTAINERS: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[list[Any]], Any], Callable[..., Any]]] = {
    TORCH: (nn.ModuleDict, nn.ModuleList, lambda layers: nn.Sequential(*layers)),
    NNX: (NnxNames, nnx.List, lambda layers: nnx.Sequential(*layers)),
    EQUINOX: (
        lambda layers: type("Names", (eqx.Module,), {"__annotations__": dict.fromkeys(layers, Any)})(**layers),
        list,
        eqx.nn.Sequential,
    ),
}
_CONTAINERS |= {OWN_NNX: _CONTAINERS[NNX], OWN_EQUINOX: _CONTAINERS[EQUINOX]}
_NETS = {TORCH: TorchNet, NNX: NnxNet, OWN_NNX: NnxNet, EQUINOX: EquinoxNet, OWN_EQUINOX: EquinoxNet}
_LAYERS = {TORCH: _torch_layer, NNX: _nnx_layer, EQUINOX: _equinox_layer}


def build(pair: Pair, framework: str, weights: list[Leaves]) -> Any:
    """The model of a pair, with these weights."""
    values = leaves(pair, framework, weights)
    if framework in IN_DICTS:
        model = _nested({name: jnp.asarray(array) for name, array in values.items()})
        if framework == LINEN:
            made = jax.eval_shape(linen_module(pair).init, jax.random.key(0), _given(pair, framework, inputs(pair)))
            assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, model), pair
        return model
    made = []
    for number, layer in enumerate((*pair.body, pair.head)):
        if framework in OWN:
            own = _LEAVES[framework](layer, weights[number], pair.flags)
            made.append(NnxOwn(own) if framework == OWN_NNX else EquinoxOwn(*map(_array, (own["w"], own.get("b")))))
        else:
            made.append(_LAYERS[framework](layer, pair.flags))
    by_name, in_list, sequential = _CONTAINERS[framework]
    match pair.container:
        case "names":
            body = by_name({layer.name: module for layer, module in zip(pair.body, made[:-1], strict=True)})
        case "list":
            body = in_list(made[:-1])
        case _:
            body = sequential(made[:-1])
    return _filled(_NETS[framework](body, made[-1]), values, pair)


def _array(value: Array) -> Array:
    return None if value is None else jnp.asarray(value)


def _filled(model: Any, values: Leaves, pair: Pair) -> Any:
    """A model with other values, without leafwise."""
    before = named(model)
    assert {name: array.shape for name, array in before.items()} == {
        name: array.shape for name, array in values.items()
    }, pair
    if isinstance(model, nn.Module):
        model.load_state_dict({name: torch.from_numpy(array) for name, array in values.items()})
        return model
    if isinstance(model, nnx.Module):
        for name, array in values.items():
            path, _, last = name.rpartition(".")
            getattr(_at(model, path), last)[...] = jnp.asarray(array)
        return model
    return jax.tree_util.tree_map_with_path(
        lambda path, value: jnp.asarray(values[_name(path)]) if eqx.is_array(value) else value, model
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _at(model: Any, path: str) -> Any:
    for entry in path.split("."):
        is_item = entry.isdecimal() or isinstance(model, dict)
        model = model[int(entry) if entry.isdecimal() else entry] if is_item else getattr(model, entry)
    return model


def named(model: Any) -> Leaves:
    """Every weight of a model, without leafwise."""
    if isinstance(model, nn.Module):
        return {name: value.numpy().copy() for name, value in model.state_dict().items()}
    if isinstance(model, nnx.Module):
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return {".".join(map(str, path)): np.array(value[...]) for path, value in state}
    flat = jax.tree_util.tree_flatten_with_path(model)[0]
    return {_name(path): np.array(value) for path, value in flat if eqx.is_array_like(value) and np.ndim(value)}


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        node = made
        for entry in path:
            node = node.setdefault(entry, {})
        node[last] = value
    return made


# -- outputs -----------------------------------------------------------------------------------------------------------


def inputs(pair: Pair) -> Array:
    draw = np.random.default_rng(pair.seed + 1)
    if pair.architecture == "embedding":
        return draw.integers(0, pair.body[0].sizes[0], pair.shape)
    return draw.normal(0, 1, pair.shape).astype(np.float32)


def _given(pair: Pair, framework: str, x: Array) -> Array:
    """Inputs for JAX: images have their channels last, except in Equinox."""
    is_moved = pair.architecture in _IMAGES and framework != EQUINOX
    return jnp.asarray(np.moveaxis(x, 1, -1) if is_moved else x)


def _before_head(pair: Pair, x: Array, is_channels_first: bool) -> Array:
    """What the head gets in JAX: each pixel, or images as vectors."""
    if pair.architecture in _IMAGES:
        wanted = "channels first" in pair.flags if pair.head.kind == "flat" else False
        wanted = is_channels_first if pair.head.kind == "flat" and is_channels_first else wanted
        if wanted != is_channels_first:
            x = jnp.moveaxis(x, *((-1, 1) if wanted else (1, -1)))
        x = x.reshape(len(x), -1) if pair.head.kind == "flat" else x
    return jnp.tanh(x)


def outputs(pair: Pair, framework: str, model: Any) -> Array:
    """What a model computes; of images, with the channels last."""
    x = inputs(pair)
    if framework == TORCH:
        with torch.no_grad():
            return _torch_outputs(pair, model, torch.from_numpy(x)).numpy()
    x = _given(pair, framework, x)
    if framework == LINEN:
        return np.asarray(linen_module(pair).apply(model, x))
    for number, layer in enumerate(pair.body):
        x = _computed(pair, framework, layer, _at(model, place(pair, framework, number)), x)
    x = _before_head(pair, x, framework == EQUINOX)
    return np.asarray(_computed(pair, framework, pair.head, _at(model, "head"), x))


def _torch_outputs(pair: Pair, model: Any, x: torch.Tensor) -> torch.Tensor:
    for number, layer in enumerate(pair.body):
        module = _at(model, place(pair, TORCH, number))
        if layer.kind == "attention":
            x = module(x, x, x, need_weights=False)[0]
        elif isinstance(module, nn.ModuleList):
            for one in module:
                x = torch.tanh(one(x))
        else:
            x = module(x)
    if pair.architecture in _IMAGES:
        x = x.flatten(1) if pair.head.kind == "flat" else x.movedim(1, -1)
    return model.head(torch.tanh(x))  # type: ignore[no-any-return]


def _computed(pair: Pair, framework: str, layer: Layer, module: Any, x: Array) -> Array:
    """What a layer computes from a batch."""
    if framework == DICT:
        return _own(layer, pair.flags, module["w"], module.get("b"), x)
    if framework in OWN:
        return _own(layer, pair.flags, *(one if one is None else one[...] for one in (module.w, module.b)), x)
    if layer.kind == "stack":
        bias = None if module.bias is None else module.bias[...]
        kernel = module.kernel[...] if framework == NNX else module.weight.swapaxes(1, 2)
        return _own(layer, frozenset(), kernel, bias, x)
    if framework == NNX:
        return module(x)
    is_attention = layer.kind == "attention"
    run = (lambda one: module(one, one, one)) if is_attention else module
    for _ in range({"attention": 1, "conv": 1, "up": 1, "embed": x.ndim}.get(layer.kind, x.ndim - 1)):
        run = jax.vmap(run)
    return run(x)


def _own(layer: Layer, flags: frozenset[str], w: Array, b: Array, x: Array) -> Array:
    """What a layer with the leaves w and b computes. They have the layout of Flax, or that of PyTorch with a flag."""
    kind, b = layer.kind, 0.0 if b is None else b
    if kind in ("linear", "flat", "stack") and "own is (out, in)" in flags:
        w = w.swapaxes(-1, -2)
    match kind:
        case "embed":
            return w[x]
        case "norm":
            x = x - x.mean(-1, keepdims=True)
            return _normed(x) * w + b
        case "rms" | "gemma":
            return _normed(x) * (w if kind == "rms" or "1 + w in the scale" in flags else 1 + w)
        case "conv":
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
        case "stack":
            for number, weight in enumerate(w):
                x = jnp.tanh(x @ weight + (b[number] if layer.bias else 0))
            return x
        case _:
            return x @ w + b


# -- loading -----------------------------------------------------------------------------------------------------------


def stored(pair: Pair, model: Any, folder: Path) -> Any:
    """The source for `lw.load`."""
    values, is_torch = named(model), pair.source == TORCH
    match pair.stored:
        case "lw.save":
            return lw.save(model, folder / "model.safetensors")
        case "safetensors":
            save = safetensors.torch.save_file if is_torch else safetensors.numpy.save_file
            save(model.state_dict() if is_torch else values, str(folder / "model.safetensors"))
            return folder / "model.safetensors"
        case "torch.save":
            torch.save(model.state_dict(), folder / "model.pt")
            return folder / "model.pt"
        case "npz":
            np.savez(folder / "model.npz", **values)
            return folder / "model.npz"
        case "NumPy dict":
            return _nested(values) if pair.source in IN_DICTS else values
        case "state dict":
            is_nnx = isinstance(model, nnx.Module)
            return model.state_dict() if is_torch else nnx.state(model) if is_nnx else to_state_dict(model)
        case _:
            return model


def outcome(pair: Pair, folder: Path) -> Outcome:
    draw, count = np.random.default_rng(pair.seed), len(pair.body) + 1
    weights, others = ([_weights(layer, draw) for layer in (*pair.body, pair.head)] for _ in range(2))
    source, target = build(pair, pair.source, weights), build(pair, pair.target, others)
    expected, wanted, before = outputs(pair, pair.source, source), leaves(pair, pair.target, weights), named(target)
    assert _close(outputs(pair, pair.target, build(pair, pair.target, weights)), expected), pair
    assert not _close(outputs(pair, pair.target, target), expected), pair
    options = {"rename": renames(pair, weights)} if pair.renames else {}
    plan = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            file = stored(pair, source, folder)
            plan = str(lw.plan(target, file, **options))
            loaded = lw.load(target, file, **options)
            changed = named(source)
            values, found = named(loaded), outputs(pair, pair.target, loaded)
        except lw.Error as error:
            kept = _same(named(target), before)
            return Outcome("refused", str(error)) if kept else Outcome("wrong", f"refused, but changed\n{plan}")
        except Exception as error:
            return Outcome("crashed", f"{type(error).__name__}: {error}\n{''.join(traceback.format_exc())}\n{plan}")
    if not _same(changed, leaves(pair, pair.source, weights)):
        return Outcome("wrong", f"the source has changed\n{plan}")
    differing = [name for name, array in wanted.items() if name not in values or not _close(values[name], array)]
    if not differing and _close(found, expected):
        return Outcome("exact")
    said = " ".join(str(warning.message) for warning in caught)
    kept = [name for name in differing if _close(values[name], before[name])]
    why = f"other values: {', '.join(differing)}; of these, as before: {', '.join(kept) or 'none'}\n{plan}\n{said}"
    layers = [{place(pair, side, number) for side in (pair.source, pair.target)} for number in range(count)]
    differ = [paths for paths in layers if any(name.startswith(f"{path}.") for path in paths for name in differing)]
    is_said = all(any(re.search(rf"(?<![\w.]){re.escape(path)}\.", said) for path in paths) for paths in differ)
    return Outcome("warned" if differ and is_said else "wrong", why)


def _close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=1e-4))


def _same(a: Leaves, b: Leaves) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: list[tuple[Pair, Outcome]]) -> str:
    rows = [
        *((name, [one.kind for pair, one in found if pair.architecture == name]) for name in _BODIES),
        *((f"from {name}", [one.kind for pair, one in found if pair.source == name]) for name in (TORCH, *JAX)),
        ("all", [one.kind for _, one in found]),
    ]
    lines = [f"| | {' | '.join(KINDS)} |", f"|---|{'--:|' * len(KINDS)}"]
    lines += [f"| {name} | {' | '.join(str(kinds.count(kind)) for kind in KINDS)} |" for name, kinds in rows]
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "pairs, by seed or by a word of their description")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    seeds = [int(word) for word in options.only if word.isdecimal()]
    words = [word for word in options.only if not word.isdecimal()]
    if words or not seeds:
        pairs = [drawn(options.seed * 1000 + number) for number in range(options.pairs)]
        pairs = [pair for pair in pairs if not words or any(word in str(pair) for word in words)]
    else:
        pairs = []
    found: list[tuple[Pair, Outcome]] = []
    for pair in [*map(drawn, seeds), *pairs]:
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(pair, Path(folder))
        found.append((pair, one))
        if seeds or one.kind in ("wrong", "crashed"):
            print(f"\n{one.kind}: python -m tools.framework_pairs {pair.seed}\n  {pair}\n{one.why}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make pairs", {"pairs": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "crashed") for _, one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
