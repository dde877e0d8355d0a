"""Loads weights between PyTorch and JAX in random pairs of models with one architecture, and compares their outputs.

Each pair has a seed, which draws an architecture (its sizes are square in every second one), a framework of JAX, the
direction, the kind of source, and whether names are passed as `rename=`. The weights of both models are made from the
same arrays by hand, and both must then compute the same: this shows that a pair is one architecture. `lw.load` has to
bring a model with other weights to the same outputs, or refuse, or warn and name a leaf of the layer that differs.

    python -m tools.framework_pairs                 200 pairs, and records the table (a minute)
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
from flax.traverse_util import unflatten_dict
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
OWN = {DICT: LINEN, OWN_NNX: NNX, OWN_EQUINOX: EQUINOX}  # and where their layers of a library are from
IN_DICTS = (LINEN, DICT)
# How a source is stored, and by which frameworks.
SOURCES = {
    **dict.fromkeys(("model", "lw.save", "safetensors", "npz", "NumPy dict"), (TORCH, *JAX)),
    "state dict": (TORCH, NNX, LINEN, OWN_NNX),
    "torch.save": (TORCH,),
}


class Layer(NamedTuple):
    """A layer, in the words of PyTorch. `sizes` are those of its inputs, then of its outputs, then of a kernel; of its
    heads, then of each head; or the number of layers of a stack, then their width. `flags` are those of the pair."""

    kind: str
    name: str
    sizes: tuple[int, ...]
    bias: bool
    flags: frozenset[str]


class Pair(NamedTuple):
    """Two models of one architecture: `body` is in a container, `head` beside it. `flags` are details that differ
    between models of one framework; `shape` is that of an input."""

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

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.body, self.head)

    def __str__(self) -> str:
        sizes = " ".join(f"{layer.kind}{layer.sizes}" for layer in self.layers)
        renamed, flags = ", rename=" if self.renames else "", "".join(f"; {flag}" for flag in sorted(self.flags))
        return f"{self.architecture}, {self.source} → {self.target}, {self.stored}{renamed}; {sizes}{flags}"


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
# Details, and the architectures and frameworks of JAX that have them.
FLAGS = {
    "1 + w in the scale": ("gemma",),
    "channels first": ("flatten",),
    "transpose_kernel": ("transposed",),
    "one array in PyTorch": ("stack",),
    "own in PyTorch": ("projections", *OWN),
    **dict.fromkeys(("own is (out, in)", "own is called weight", "head of the library"), tuple(OWN)),
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
    stored = draw.choice([stored for stored, frameworks in SOURCES.items() if source in frameworks])
    containers = ("names",) if architecture in ("stack", "projections") else ("names", "list", "sequential")
    container, is_square, bias = draw.choice(containers), draw.random() < 0.5, draw.random() < 0.7
    possible = [flag for flag, of in FLAGS.items() if {architecture, framework} & set(of)]
    flags = {flag for flag in possible if draw.random() < (0.3 if len(possible) > 2 else 0.5)}
    # Of arrays that only have names, docs/carrying.md says how a weight is read: as PyTorch stores it.
    has_only_names = framework == DICT or (framework in OWN and source != TORCH and stored not in ("model", "lw.save"))
    has_only_names |= framework == OWN_EQUINOX  # whose files do not show of which framework such layers are
    if has_only_names and "own is called weight" in flags:
        flags = flags - {"own is called weight"} if architecture in _IMAGES else flags | {"own is (out, in)"}
    # What docs/carrying.md says that nothing can show: names alone, and layers of one's own, do not say whether a norm
    # adds 1, in which order a flattened output is, and which framework wrote a transposed convolution.
    has_only_names = stored not in ("model", "lw.save") or framework in OWN
    if has_only_names and architecture == "gemma":
        flags -= {"1 + w in the scale"}
    if framework in OWN and architecture == "flatten":
        flags |= {"channels first"}
    if has_only_names and architecture == "transposed" and source == EQUINOX:
        stored = "lw.save"
    spelled = draw.choice(_PROJECTIONS) if architecture == "projections" else ()
    body: list[Layer] = []
    first = width = 3 if architecture in _IMAGES else 4
    for number, kind in enumerate(_BODIES[architecture][0].split()):
        other = width if is_square else width + draw.choice((1, 2))
        # The sizes of a layer, and those of its outputs.
        sizes, width = {
            **dict.fromkeys(("norm", "rms", "gemma"), ((width,), width)),
            **dict.fromkeys(("conv", "up"), ((width, other, 3), other)),
            "attention": ((2, width // 2), width),
            "split": ((width, 2, width // 2 if is_square else 3), width),
            "merge": ((*body[-1].sizes[1:], width), width) if kind == "merge" else ((), 0),
            "stack": ((draw.choice((1, width)), width), width),
        }.get(kind, ((width, other), other))
        name = spelled[number] if spelled else f"{draw.choice(_NAMES.get(kind, (kind,)))}{number}"
        body.append(Layer(kind, name, sizes, bias, frozenset(flags)))
    space = (first, first) if is_square else (4, 5)
    ends = (width, *(space if architecture == "flatten" else ()), width if is_square else 2)
    head = Layer("flat" if architecture == "flatten" else "linear", "head", ends, bias, frozenset(flags))
    shape = {"mlp": (6, first), "embedding": (6, 5)}.get(architecture, (6, 5, first))
    shape = (2, first, *space) if architecture in _IMAGES else shape
    rename = draw.random() < (0.75 if framework in OWN or (framework == LINEN and container == "list") else 0.25)
    return Pair(
        seed, architecture, source, target, stored, rename, container, frozenset(flags), tuple(body), head, shape
    )


def _ends(layer: Layer) -> tuple[int, int]:
    """The inputs and the outputs of a layer that is linear in PyTorch."""
    at = 1 if layer.kind == "split" else -1
    return int(np.prod(layer.sizes[:at])), int(np.prod(layer.sizes[at:]))


def _weights(layer: Layer, draw: np.random.Generator) -> Leaves:
    """Random weights of a layer, with the names and the layouts of PyTorch; those of a stack are one array each."""
    kind, sizes, is_norm = layer.kind, layer.sizes, layer.kind in ("norm", "rms", "gemma")
    if kind == "attention":
        width = sizes[0] * sizes[1]
        shapes = {"in_proj_weight": (3 * width, width), "in_proj_bias": (3 * width,)}
        shapes |= {"out_proj.weight": (width, width), "out_proj.bias": (width,)}
    else:
        kernels = {
            "conv": (*sizes[1::-1], *sizes[2:] * 2),
            "up": (*sizes[:2], *sizes[2:] * 2),
            "stack": (sizes[0], sizes[-1], sizes[-1]),
        }
        shape = sizes if is_norm or kind == "embed" else kernels.get(kind, _ends(layer)[::-1])
        shapes = {"weight": shape}
        if kind == "norm" or (layer.bias and kind not in ("rms", "gemma", "embed")):
            shapes["bias"] = shape[:2] if kind == "stack" else shape[1:2] if kind == "up" else shape[:1]
    means = {"weight": 1.0 if kind in ("norm", "rms") else 0.0}
    return {name: draw.normal(means.get(name, 0.0), 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


# -- by hand: the leaves of a layer in each framework, from those of PyTorch -------------------------------------------


def _of_torch(layer: Layer, weights: Leaves) -> Leaves:
    if layer.kind != "stack" or "one array in PyTorch" in layer.flags:
        return weights
    return {f"{number}.{name}": array[number] for name, array in weights.items() for number in range(len(array))}


def _of_flax(layer: Layer, weights: Leaves) -> Leaves:
    kind, sizes = layer.kind, layer.sizes
    if kind == "attention":
        made: Leaves = {}
        for number, name in enumerate(("query", "key", "value")):
            weight, bias = (np.split(weights[f"in_proj_{what}"], 3)[number] for what in ("weight", "bias"))
            made |= {f"{name}.kernel": weight.T.reshape(-1, *sizes), f"{name}.bias": bias.reshape(sizes)}
        out = weights["out_proj.weight"].T
        return made | {"out.kernel": out.reshape(*sizes, -1), "out.bias": weights["out_proj.bias"]}
    weight = weights["weight"]
    bias: Any = {"bias": weights["bias"]} if "bias" in weights else {}
    if kind in ("norm", "rms", "gemma"):
        return {"scale": weight + 1 if "1 + w in the scale" in layer.flags else weight, **bias}
    if kind == "embed":
        return {"embedding": weight}
    if kind == "split":
        return {"kernel": weight.T.reshape(sizes), **{name: array.reshape(sizes[1:]) for name, array in bias.items()}}
    if kind == "up" and "transpose_kernel" not in layer.flags:
        return {"kernel": weight.transpose(2, 3, 0, 1)[::-1, ::-1], **bias}
    if kind == "flat" and "channels first" not in layer.flags:
        return {"kernel": weight.reshape(-1, *sizes[:3]).transpose(2, 3, 1, 0).reshape(-1, sizes[3]), **bias}
    order = {"conv": (2, 3, 1, 0), "up": (2, 3, 1, 0), "stack": (0, 2, 1)}.get(kind, (1, 0))
    kernel = weight.transpose(order)
    return {"kernel": kernel.reshape(sizes) if kind == "merge" else kernel, **bias}


def _of_equinox(layer: Layer, weights: Leaves) -> Leaves:
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
    if kind == "gemma" and "1 + w in the scale" in layer.flags:
        made["weight"] = made["weight"] + 1
    return made


def _of_own(layer: Layer, weights: Leaves) -> Leaves:
    """Of layers that name their leaves w and b, or weight and bias."""
    w, b = ("weight", "bias") if "own is called weight" in layer.flags else ("w", "b")
    made = {b if name == "bias" else w: array for name, array in _of_flax(layer, weights).items()}
    if layer.kind in ("linear", "flat", "stack") and "own is (out, in)" in layer.flags:
        made[w] = made[w].swapaxes(-1, -2)
    return made


_LEAVES = {TORCH: _of_torch, NNX: _of_flax, LINEN: _of_flax, EQUINOX: _of_equinox, **dict.fromkeys(OWN, _of_own)}


def _leaves_of(framework: str, layer: Layer, weights: Leaves) -> Leaves:
    made = _LEAVES[_kind(framework, layer)](layer, weights)
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def _kind(framework: str, layer: Layer) -> str:
    """The framework that a layer is of, in a model that may have own layers beside those of a library."""
    is_of_library = "head of the library" in layer.flags and layer.name == "head" and layer.kind == "linear"
    return OWN.get(framework, framework) if is_of_library else framework


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
        f"{place(pair, framework, number)}.{name}": array
        for number, layer in enumerate(pair.layers)
        for name, array in _leaves_of(framework, layer, weights[number]).items()
    }


def renames(pair: Pair, weights: list[Leaves]) -> dict[str, str]:
    """The names of the source, with those of the target, for each layer whose leaves correspond one to one."""
    named: dict[str, str] = {}
    for number, layer in enumerate(pair.layers):
        ours, theirs = (_leaves_of(side, layer, weights[number]) for side in (pair.source, pair.target))
        if len(ours) == len(theirs) and layer.kind != "attention":
            start, end = place(pair, pair.source, number), place(pair, pair.target, number)
            named |= {f"{start}.{one}": f"{end}.{other}" for one, other in zip(ours, theirs, strict=True)}
    return named


# -- models ------------------------------------------------------------------------------------------------------------


class TorchGemmaRMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * (1 + self.weight)


class TorchOwn(nn.Module):
    """A linear layer, or a stack of them in one array."""

    def __init__(self, weight: Array, bias: Array = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weight.shape))
        self.bias = None if bias is None else nn.Parameter(torch.zeros(bias.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.ndim == 2:
            return nn.functional.linear(x, self.weight, self.bias)
        for number, weight in enumerate(self.weight):
            x = torch.tanh(nn.functional.linear(x, weight, None if self.bias is None else self.bias[number]))
        return x


class NnxOwn(nnx.Module):  # type: ignore[misc]
    """A layer, whose outputs are those of `_own`, or a container."""

    def __init__(self, parts: dict[str, Any]) -> None:
        for name, part in parts.items():
            setattr(self, name, nnx.Param(jnp.asarray(part)) if isinstance(part, np.ndarray) else part)

    def __call__(self, x: Array) -> Array:
        raise NotImplementedError  # an nnx.Sequential has only what can be called


def _equinox(parts: dict[str, Any], name: str = "Own") -> Any:
    fields = {key: jnp.asarray(part) if isinstance(part, np.ndarray) else part for key, part in parts.items()}
    return type(name, (eqx.Module,), {"__annotations__": dict.fromkeys(parts, Any)})(**fields)


def _torch_layer(layer: Layer, made: Leaves) -> nn.Module:
    kind, bias = layer.kind, layer.bias
    sizes: Any = layer.sizes
    if (kind == "linear" and "own in PyTorch" in layer.flags and layer.name != "head") or (
        kind == "stack" and "one array in PyTorch" in layer.flags
    ):
        return TorchOwn(**made)
    makers: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: nn.LayerNorm(*sizes),
        "rms": lambda: nn.RMSNorm(*sizes, eps=1e-5),
        "gemma": lambda: TorchGemmaRMSNorm(*sizes),
        "embed": lambda: nn.Embedding(*sizes),
        "conv": lambda: nn.Conv2d(*sizes, padding=1, bias=bias),
        "up": lambda: nn.ConvTranspose2d(*sizes, stride=2, bias=bias),
        "attention": lambda: nn.MultiheadAttention(sizes[0] * sizes[1], sizes[0], batch_first=True),
        "stack": lambda: nn.ModuleList(nn.Linear(sizes[1], sizes[1], bias) for _ in range(sizes[0])),
    }
    return makers.get(kind, lambda: nn.Linear(*_ends(layer), bias))()


def _nnx_layer(layer: Layer, made: Leaves) -> Any:
    kind, sizes, rngs = layer.kind, layer.sizes, nnx.Rngs(0)
    options, plain = {"use_bias": layer.bias, "rngs": rngs}, {"epsilon": 1e-5, "rngs": rngs}
    gemma = type("GemmaRMSNorm", (NnxOwn,), {})
    up = {"strides": 2, "padding": "VALID", "transpose_kernel": "transpose_kernel" in layer.flags}
    stack = nnx.vmap(lambda rngs: nnx.Linear(sizes[1], sizes[1], use_bias=layer.bias, rngs=rngs))
    makers: dict[str, Callable[[], Any]] = {
        "norm": lambda: nnx.LayerNorm(*sizes, **plain),
        "rms": lambda: nnx.RMSNorm(*sizes, **plain),
        "gemma": lambda: gemma(made) if _is_own(NNX, layer) else nnx.RMSNorm(*sizes, **plain),
        "embed": lambda: nnx.Embed(*sizes, rngs=rngs),
        "conv": lambda: nnx.Conv(*sizes[:2], (3, 3), **options),
        "up": lambda: nnx.ConvTranspose(*sizes[:2], (3, 3), **up, **options),
        "attention": lambda: nnx.MultiHeadAttention(sizes[0], sizes[0] * sizes[1], decode=False, rngs=rngs),
        "split": lambda: nnx.LinearGeneral(sizes[0], sizes[1:], **options),
        "merge": lambda: nnx.LinearGeneral(sizes[:2], sizes[2], axis=(-2, -1), **options),
        "stack": lambda: nnx.split_rngs(splits=sizes[0])(stack)(rngs),
    }
    return makers.get(kind, lambda: nnx.Linear(*_ends(layer), **options))()


def _linen_layer(layer: Layer) -> Any:
    sizes, options = layer.sizes, {"use_bias": layer.bias}
    up = {"strides": (2, 2), "padding": "VALID", "transpose_kernel": "transpose_kernel" in layer.flags}
    makers: dict[str, Callable[[], Any]] = {
        "norm": lambda: linen.LayerNorm(epsilon=1e-5),
        "rms": lambda: linen.RMSNorm(epsilon=1e-5),
        "gemma": lambda: linen.RMSNorm(epsilon=1e-5),
        "embed": lambda: linen.Embed(*sizes),
        "conv": lambda: linen.Conv(sizes[1], (3, 3), **options),
        "up": lambda: linen.ConvTranspose(sizes[1], (3, 3), **up, **options),
        "attention": lambda: linen.MultiHeadDotProductAttention(sizes[0]),
        "split": lambda: linen.DenseGeneral(sizes[1:], **options),
        "merge": lambda: linen.DenseGeneral(sizes[2], axis=(-2, -1), **options),
    }
    return makers.get(layer.kind, lambda: linen.Dense(_ends(layer)[1], **options))()


def _equinox_layer(layer: Layer, made: Leaves) -> Any:
    sizes, key = layer.sizes, jax.random.key(0)
    options = {"use_bias": layer.bias, "key": key}
    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(sizes[1], sizes[1], use_bias=layer.bias, key=key))
    rms: Callable[[], Any] = lambda: eqx.nn.RMSNorm(*sizes, eps=1e-5, use_bias=False)  # noqa: E731
    makers: dict[str, Callable[[], Any]] = {
        "norm": lambda: eqx.nn.LayerNorm(*sizes),
        "rms": rms,
        "gemma": lambda: _equinox(made, "GemmaRMSNorm") if _is_own(EQUINOX, layer) else rms(),
        "embed": lambda: eqx.nn.Embedding(*sizes, key=key),
        "conv": lambda: eqx.nn.Conv2d(*sizes, padding=1, **options),
        "up": lambda: eqx.nn.ConvTranspose2d(*sizes, stride=2, **options),
        "attention": lambda: eqx.nn.MultiheadAttention(sizes[0], sizes[0] * sizes[1], **biases, key=key),
        "stack": lambda: stack(jax.random.split(key, sizes[0])),
    }
    return makers.get(layer.kind, lambda: eqx.nn.Linear(*_ends(layer), **options))()


_LAYERS: dict[str, Callable[[Layer, Leaves], Any]] = {
    TORCH: _torch_layer,
    NNX: _nnx_layer,
    EQUINOX: _equinox_layer,
    OWN_NNX: lambda _, made: NnxOwn(made),
    OWN_EQUINOX: lambda _, made: _equinox(made),
}
# By framework, how containers of layers are made.
_CONTAINERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    TORCH: {"names": nn.ModuleDict, "list": nn.ModuleList, "sequential": lambda layers: nn.Sequential(*layers)},
    NNX: {"names": NnxOwn, "list": nnx.List, "sequential": lambda layers: nnx.Sequential(*layers)},
    EQUINOX: {"names": _equinox, "list": list, "sequential": eqx.nn.Sequential},
}


def build(pair: Pair, framework: str, weights: list[Leaves]) -> Any:
    """The model of a pair, with these weights, which it gets without leafwise."""
    values = leaves(pair, framework, weights)
    if framework in IN_DICTS:
        return unflatten_dict({name: jnp.asarray(array) for name, array in values.items()}, sep=".")
    layers = {
        layer.name: _LAYERS[_kind(framework, layer)](layer, _leaves_of(framework, layer, made))
        for layer, made in zip(pair.layers, weights, strict=True)
    }
    makers, head = _CONTAINERS[OWN.get(framework, framework)], layers.pop("head")
    body = makers[pair.container](layers if pair.container == "names" else list(layers.values()))
    model = makers["names"]({"body": body, "head": head})
    if framework == TORCH:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in values.items()})
    elif isinstance(model, nnx.Module):
        for name, array in values.items():
            _at(model, name)[...] = jnp.asarray(array)
    else:
        leaves_of_model, structure = jax.tree_util.tree_flatten_with_path(model)
        filled = [jnp.asarray(values[_name(path)]) if eqx.is_array(leaf) else leaf for path, leaf in leaves_of_model]
        model = jax.tree.unflatten(structure, filled)
    assert _same(named(model), values), pair
    return model


def named(model: Any) -> Leaves:
    """Every weight of a model, without leafwise."""
    if isinstance(model, nn.Module):
        return {name: value.numpy().copy() for name, value in model.state_dict().items()}
    if isinstance(model, nnx.Module):
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return {".".join(map(str, path)): np.array(value[...]) for path, value in state}
    flat = jax.tree_util.tree_flatten_with_path(model)[0]
    return {_name(path): np.array(value) for path, value in flat if isinstance(value, jax.Array | np.ndarray)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")  # type: ignore[no-any-return]


def _at(model: Any, path: str) -> Any:
    for entry in path.split("."):
        is_item = entry.isdecimal() or isinstance(model, dict)
        model = model[int(entry) if entry.isdecimal() else entry] if is_item else getattr(model, entry)
    return model


# -- outputs -----------------------------------------------------------------------------------------------------------


def outputs(pair: Pair, framework: str, model: Any) -> Array:
    """What a model computes; of images, with the channels last."""
    draw, is_image = np.random.default_rng(pair.seed + 1), pair.architecture in _IMAGES
    x: Array = draw.normal(0, 1, pair.shape).astype(np.float32)
    if pair.architecture == "embedding":
        x = draw.integers(0, pair.body[0].sizes[0], pair.shape)
    is_last = is_image and framework not in (TORCH, EQUINOX)  # whether images have their channels last
    compute: Callable[..., Array] = _torch_computed if framework == TORCH else _computed
    x = torch.from_numpy(x) if framework == TORCH else jnp.asarray(np.moveaxis(x, 1, -1) if is_last else x)
    for number, layer in enumerate(pair.body):
        x = compute(_kind(framework, layer), layer, _at(model, place(pair, framework, number)), x)
    if is_image and is_last != ("channels first" not in pair.flags and framework not in (TORCH, EQUINOX)):
        x = jnp.moveaxis(x, -1, 1)
    if pair.head.kind == "flat":
        x = x.reshape(len(x), -1)
    elif is_image and not is_last:
        x = x.movedim(1, -1) if framework == TORCH else jnp.moveaxis(x, 1, -1)
    x = torch.tanh(x) if framework == TORCH else jnp.tanh(x)
    head = _at(model, place(pair, framework, len(pair.body)))
    return np.asarray(compute(_kind(framework, pair.head), pair.head, head, x))


@torch.no_grad()
def _torch_computed(_: str, layer: Layer, module: Any, x: Array) -> Array:
    if layer.kind == "attention":
        return module(x, x, x, need_weights=False)[0]
    for one in module if isinstance(module, nn.ModuleList) else ():
        x = torch.tanh(one(x))
    return x if isinstance(module, nn.ModuleList) else module(x)


def _is_own(framework: str, layer: Layer) -> bool:
    """Whether the layers of a framework do not compute what this layer does."""
    is_gemma = layer.kind == "gemma" and "1 + w in the scale" not in layer.flags
    return framework in OWN or layer.kind == "stack" or is_gemma


def _computed(framework: str, layer: Layer, module: Any, x: Array) -> Array:
    """What a layer of JAX computes from a batch."""
    if _is_own(framework, layer):
        return _own(framework, layer, named(module), x)
    if framework == LINEN:
        return _linen_layer(layer).apply({"params": module}, x)
    if framework == NNX:
        return module(x)
    run = (lambda one: module(one, one, one)) if layer.kind == "attention" else module
    for _ in range({"attention": 1, "conv": 1, "up": 1, "embed": x.ndim}.get(layer.kind, x.ndim - 1)):
        run = jax.vmap(run)
    return run(x)


def _own(framework: str, layer: Layer, made: Leaves, x: Array) -> Array:
    """What a layer with these leaves computes. They have the layout of Flax, or that of PyTorch with a flag."""
    kind, flags = layer.kind, layer.flags
    b: Array = next((array for name, array in made.items() if name.startswith("b")), 0.0)
    w = next(array for name, array in made.items() if not name.startswith("b"))
    if kind in ("linear", "flat", "stack") and (framework == EQUINOX or "own is (out, in)" in flags):
        w = w.swapaxes(-1, -2)
    match kind:
        case "embed":
            return jnp.asarray(w)[x]
        case "norm" | "rms" | "gemma":
            x = x - x.mean(-1, keepdims=True) if kind == "norm" else x
            scale = 1 + w if kind == "gemma" and "1 + w in the scale" not in flags else w
            return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale + b
        case "conv":
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
        case "stack":
            for number, weight in enumerate(w):
                x = jnp.tanh(x @ weight + (b[number] if layer.bias else 0))
            return x
        case _:
            return x @ w + b


# -- loading -----------------------------------------------------------------------------------------------------------


def _stored(pair: Pair, model: Any, folder: Path) -> Any:
    """The source for `lw.load`."""
    values, is_torch, file = named(model), pair.source == TORCH, folder / "model.safetensors"
    match pair.stored:
        case "model":
            return model
        case "NumPy dict":
            return unflatten_dict(values, sep=".") if pair.source in IN_DICTS else values
        case "state dict":
            is_nnx = isinstance(model, nnx.Module)
            return model.state_dict() if is_torch else nnx.state(model) if is_nnx else to_state_dict(model)
        case "lw.save":
            lw.save(model, file)
        case "safetensors" if is_torch:
            safetensors.torch.save_file(model.state_dict(), file)
        case "safetensors":
            safetensors.numpy.save_file(values, file)
        case "torch.save":
            torch.save(model.state_dict(), file := folder / "model.pt")
        case _:
            np.savez(file := folder / "model.npz", **values)
    return file


def outcome(pair: Pair, folder: Path) -> Outcome:
    draw = np.random.default_rng(pair.seed)
    weights, others = ([_weights(layer, draw) for layer in pair.layers] for _ in range(2))
    source, target = build(pair, pair.source, weights), build(pair, pair.target, others)
    expected, wanted, before = outputs(pair, pair.source, source), leaves(pair, pair.target, weights), named(target)
    assert _close(outputs(pair, pair.target, build(pair, pair.target, weights)), expected), pair
    assert not _close(outputs(pair, pair.target, target), expected), pair
    options: dict[str, Any] = {"rename": renames(pair, weights)} if pair.renames else {}
    plan = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            file = _stored(pair, source, folder)
            plan = str(lw.plan(target, file, **options))
            caught.clear()
            loaded = lw.load(target, file, **options)
            values, computed = named(loaded), outputs(pair, pair.target, loaded)
        except lw.Error as error:
            is_unchanged = _same(named(target), before)
            return Outcome("refused", str(error)) if is_unchanged else Outcome("wrong", f"{error}, but changed\n{plan}")
        except Exception:
            return Outcome("crashed", f"{traceback.format_exc()}\n{plan}")
    if not _same(named(source), leaves(pair, pair.source, weights)):
        return Outcome("wrong", f"the source has changed\n{plan}")
    differing = [name for name, array in wanted.items() if not _close(values[name], array)]
    if not differing and _close(computed, expected):
        return Outcome("exact")
    message = "\n".join(str(warning.message) for warning in caught)
    kept = [name for name in differing if _close(values[name], before[name])]
    why = f"differing: {', '.join(differing)}; kept: {', '.join(kept) or 'none'}\n{plan}\n{message}"
    places = [{place(pair, side, number) for side in (pair.source, pair.target)} for number in range(len(weights))]
    wrong = [paths for paths in places if any(name.startswith(f"{path}.") for path in paths for name in differing)]
    is_named = [any(re.search(rf"(?<![\w.]){re.escape(path)}\.", message) for path in paths) for paths in wrong]
    return Outcome("warned" if is_named and all(is_named) else "wrong", why)


def _close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)


def _same(a: Leaves, b: Leaves) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: list[tuple[Pair, Outcome]]) -> str:
    rows = {name: [one.kind for pair, one in found if pair.architecture == name] for name in _BODIES}
    rows |= {f"from {name}": [one.kind for pair, one in found if pair.source == name] for name in (TORCH, *JAX)}
    rows["all"] = [one.kind for _, one in found]
    lines = [f"| | {' | '.join(KINDS)} |", f"|---|{'--:|' * len(KINDS)}"]
    lines += [f"| {name} | {' | '.join(str(kinds.count(kind)) for kind in KINDS)} |" for name, kinds in rows.items()]
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "pairs, by their seeds or by words of their descriptions")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    seeds = [int(word) for word in options.only if word.isdecimal()]
    words = [word for word in options.only if not word.isdecimal()]
    found: list[tuple[Pair, Outcome]] = []
    for pair in map(drawn, seeds or range(options.seed * 1000, options.seed * 1000 + options.pairs)):
        if words and not any(word in str(pair) for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(pair, Path(folder))
        found.append((pair, one))
        if seeds or one.kind in ("wrong", "crashed"):
            print(f"\n{one.kind}: python -m tools.framework_pairs {pair.seed}\n  {pair}\n{one.why}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make pairs", {"framework pairs": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "crashed") for _, one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
