"""Roles and axes: of the layers of Flax NNX and Equinox, for the table in `core.roles.role_table`, and in the variable
dicts of Flax Linen, which have no layers, only names that Linen gives to leaves.

A leaf of a layer inside another one, such as the projections of attention, may have a row in the outer layer, with a
dot in its name. That row comes first.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from leafwise.core.home import Axes
from leafwise.core.roles.layer_parts import EQUINOX_ATTENTION, FLAX_ATTENTION, flax_gates, role_by_structure
from leafwise.core.roles.role_table import Roles, add_rows, has_inner_leaves
from leafwise.core.roles.role_table import role_of as role_in_table
from leafwise.homes.jax.specs import is_key_dtype, key_role
from leafwise.homes.jax.stacked_layers import axis_of_layers, shape_in_one_layer, with_layers

_BIAS = ("bias", ("out",))

_KERNEL: Roles = {"kernel": ("linear.weight", ("in", "out")), "bias": _BIAS}
_SCALE: Roles = {
    "scale": ("norm.scale", ("*features",)),
    "bias": ("norm.bias", ("*features",)),
    "mean": ("norm.mean", ("*features",)),
    "var": ("norm.variance", ("*features",)),
}
_DENSE: Roles = {
    "dense_i.kernel": ("rnn.weight_ih", ("in", "out")),
    "dense_h.kernel": ("rnn.weight_hh", ("in", "out")),
    "dense_i.bias": ("rnn.bias", ("out",)),
    "dense_h.bias": ("rnn.bias", ("out",)),
}
_DENSE_GRU: Roles = {**_DENSE, "dense_h.bias": ("rnn.bias_hh", ("out",))}

NNX_ROWS: list[tuple[str, Roles]] = [
    ("flax.nnx.Linear", _KERNEL),
    ("flax.nnx.LinearGeneral", _KERNEL),
    ("flax.nnx.Einsum", {"kernel": ("einsum.weight", ("*axis",)), "bias": ("einsum.bias", ("*axis",))}),
    ("flax.nnx.Conv", {"kernel": ("conv.weight", ("*space", "in", "out")), "bias": _BIAS}),
    ("flax.nnx.ConvTranspose", {"kernel": ("conv_transpose.weight", ("*-space", "in", "out")), "bias": _BIAS}),
    ("flax.nnx.Embed", {"embedding": ("embedding.table", ("vocab", "features"))}),
    *((f"flax.nnx.{norm}", _SCALE) for norm in ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")),
    ("flax.nnx.PReLU", {"negative_slope": ("activation.slope", ())}),
    ("flax.nnx.MultiHeadAttention", FLAX_ATTENTION),
    ("flax.nnx.LSTMCell", flax_gates("ifgo", {"if": "if_"})),
    ("flax.nnx.OptimizedLSTMCell", _DENSE),
    ("flax.nnx.GRUCell", _DENSE_GRU),
    ("flax.nnx.SimpleCell", _DENSE),
    ("flax.nnx.LoRA", {"lora_a": ("lora.a", ("in", "rank")), "lora_b": ("lora.b", ("rank", "out"))}),
    ("flax.nnx.RngStream", {"key": ("rng.key", ()), "count": ("rng.count", ())}),
]

_WEIGHT: Roles = {"weight": ("linear.weight", ("out", "in")), "bias": _BIAS}
_NORM: Roles = {"weight": ("norm.scale", ("*features",)), "bias": ("norm.bias", ("*features",))}
_CELL: Roles = {
    "weight_ih": ("rnn.weight_ih", ("out", "in")),
    "weight_hh": ("rnn.weight_hh", ("out", "in")),
    "bias": ("rnn.bias", ("out",)),
    "bias_n": ("rnn.bias_hh.n", ("out",)),
}
_BIAS_OF_CONVOLUTION = ("bias", ("out", "*space"))
# Beside the model, in a State, under the name of the index: the statistics of BatchNorm.
_STATE: Roles = {
    "*ema_state_index.0": ("norm.mean", ("*features",)),
    "*ema_state_index.1": ("norm.variance", ("*features",)),
    "*ema_first_time_index": ("norm.count", ()),
    "*batch_state_index.0": ("norm.hidden_mean", ("*features",)),
    "*batch_state_index.1": ("norm.hidden_variance", ("*features",)),
    "*batch_counter": ("norm.count", ()),
}

EQUINOX_ROWS: list[tuple[str, Roles]] = [
    ("equinox.nn.Linear", _WEIGHT),
    (
        "equinox.nn.ConvTranspose",
        {"weight": ("conv_transpose.weight", ("out", "in", "*-space")), "bias": _BIAS_OF_CONVOLUTION},
    ),
    ("equinox.nn.Conv", {"weight": ("conv.weight", ("out", "in", "*space")), "bias": _BIAS_OF_CONVOLUTION}),
    ("equinox.nn.Embedding", {"weight": ("embedding.table", ("vocab", "features"))}),
    *((f"equinox.nn.{norm}", _NORM) for norm in ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm")),
    ("equinox.nn.LSTMCell", _CELL),
    ("equinox.nn.GRUCell", _CELL),
    ("equinox.nn.PReLU", {"negative_slope": ("activation.slope", ("*features",))}),
    ("equinox.nn.MultiheadAttention", EQUINOX_ATTENTION),
    ("equinox.nn.WeightNorm", {"g": ("weight_norm.scale", ("*axis",))}),
    ("equinox.nn.State", _STATE),
]

add_rows([*NNX_ROWS, *EQUINOX_ROWS])


def role_of(owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]) -> tuple[str | None, Axes]:
    """The role and the axes of a leaf of a layer. `lineage()` is the layer, the one that it is in, and so on."""
    if is_key_dtype(value.dtype):
        return key_role(value), None
    shape = tuple(value.shape)
    of_one = shape_in_one_layer(owner, name, shape)
    if of_one is None:
        return _role_in_layer(owner, name, len(shape), lineage())
    role, axes = _role_in_layer(owner, name, len(of_one), lineage())
    places = axis_of_layers(owner, name, shape, of_one) if axes is not None else None
    return role, None if axes is None or places is None else with_layers(axes, places)


def _role_in_layer(owner: Any, name: str, ndim: int, above: tuple[Any, ...]) -> tuple[str | None, Axes]:
    """The role and the axes of a leaf with `ndim` axes in a layer that is not stacked."""
    if len(above) > 1 and has_inner_leaves(type(above[1])):
        inner = role_in_table(type(above[1]), f"{_name_in(above[1], owner)}.{name}", ndim)
        if inner[0] is not None:
            return inner
    role, axes = role_in_table(type(owner), name, ndim)
    if role == "conv_transpose.weight" and getattr(owner, "transpose_kernel", False):
        return role, tuple(axis.removeprefix("-") for axis in (*(axes or ())[:-2], "out", "in"))
    if axes is None and role in ("linear.weight", "bias"):
        axes = _general_axes(owner, name)
    return role, axes


def is_equinox_state(obj: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(obj, equinox.nn.State)


def _role_in_state(above: tuple[Any, ...], name: str, ndim: int) -> tuple[str | None, Axes]:
    """The role and the axes of an array in a tuple of an `eqx.nn.State`. `above` is the tuple, the state, and so on."""
    if not is_equinox_state(above[1]):
        return None, None
    children = jax.tree_util.tree_flatten(above[1], is_leaf=lambda child: child is not above[1])
    number = next((number for number, child in enumerate(children[0]) if child is above[0]), None)
    marker = "" if number is None else str(children[1].node_data()[1][number])
    return role_in_table(type(above[1]), f"{marker}.{name}", ndim)


def _name_in(layer: Any, child: Any) -> str | None:
    """The name of a layer inside another one."""
    return next((name for name, value in getattr(layer, "__dict__", {}).items() if value is child), None)


def _general_axes(owner: Any, name: str) -> Axes:
    """The axes of a linear layer over several axes."""
    inputs, outputs = getattr(owner, "in_features", None), getattr(owner, "out_features", None)
    if not isinstance(inputs, tuple) or not isinstance(outputs, tuple) or getattr(owner, "batch_axis", None):
        return None
    axes = (*_numbered("in", len(inputs)), *_numbered("out", len(outputs)))
    return axes if name == "kernel" else axes[len(inputs) :]


def _numbered(axis: str, count: int) -> tuple[str, ...]:
    return (axis,) if count == 1 else tuple(f"{axis}{number}" for number in range(count))


# -- variable dicts ---------------------------------------------------------------------------------------------

_SPACE = ("d", "h", "w")
_MOST_INNER_LAYERS = 64  # attention and recurrent cells have fewer layers inside them
_LONGEST_LINE = 16  # a kernel of one row or column, without a bias, is that of a convolution if it is not longer


def role_in_container(
    owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
) -> tuple[str | None, Axes]:
    """The role and the axes of an array in a dict, if its name is one that the layers of Linen use, or in a tuple of
    the state of an Equinox model."""
    above = lineage()
    ndim = len(value.shape)
    if not isinstance(owner, Mapping):
        return _role_in_state(above, name, ndim) if isinstance(owner, tuple) and len(above) > 1 else (None, None)
    layers = _axis_of_layers(owner)
    known: tuple[str | None, Axes] = None, None
    if len(above) > 1 and isinstance(above[1], Mapping) and len(above[1]) <= _MOST_INNER_LAYERS:
        child = next((str(key) for key, layer in above[1].items() if layer is owner), "")
        known = role_by_structure(map(str, above[1]), child, name)
    if known[1] is None:
        known = _role_in_layer_of_linen(owner, name, ndim if layers is None else ndim - 1, layers)
    role, axes = known
    if axes is not None and layers is not None and len(axes) == ndim - 1:
        return role, with_layers(axes, (layers,))
    if axes is None or len(axes) > ndim:
        return _role_of_stack(owner, name, ndim) if ndim > 1 else None, None
    return role, axes if len(axes) == ndim else None


def _role_in_layer_of_linen(
    owner: Mapping[str, Any], name: str, ndim: int, layers: int | None
) -> tuple[str | None, Axes]:
    """The role and the axes of an array with `ndim` axes besides that of stacked layers, at `layers`."""
    if name == "kernel" and ndim == 2:
        return "linear.weight", ("in", "out")
    if name == "negative_slope" and ndim == 0:
        return "activation.slope", ()
    if name == "kernel" and 3 <= ndim <= 5 and _is_convolution(owner, layers):
        return "conv.weight", (*_SPACE[5 - ndim :], "in", "out")
    if name == "embedding" and ndim == 2:
        return "embedding.table", ("vocab", "features")
    return _role_of_vector(owner, name) if ndim == 1 else (None, None)


def _axis_of_layers(owner: Mapping[str, Any]) -> int | None:
    """The axis of the layers that `nn.scan` or `nn.vmap` stacked, from a kernel and its bias, which have it at the same
    place. None if they are not stacked, if there are none, or if several axes may be the one."""
    kernel, bias = (tuple(getattr(owner.get(name), "shape", ())) for name in ("kernel", "bias"))
    if not 1 < len(bias) < len(kernel) or kernel[-len(bias) :] == bias:  # a linear layer may have several outputs
        return None
    possible = [
        axis
        for axis in range(len(bias))
        if kernel[axis] == bias[axis] and _without(kernel, axis)[1 - len(bias) :] == _without(bias, axis)
    ]
    return possible[0] if len(possible) == 1 else None


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _role_of_stack(owner: Mapping[str, Any], name: str, ndim: int) -> str | None:
    """The role of a bias or a scale with several axes: those of stacked layers, of a linear layer over several axes, or
    of a norm over several. Which of these it is, and so what its axes are, is not known."""
    kernel = owner.get("kernel")
    if name == "bias" and kernel is not None:
        return "bias" if len(getattr(kernel, "shape", ())) > ndim else None
    if "scale" in owner and owner.keys() <= {"scale", "bias"}:
        return {"scale": "norm.scale", "bias": "norm.bias"}[name]
    return None


def _is_convolution(owner: Mapping[str, Any], layers: int | None) -> bool:
    """Whether a kernel is that of a convolution, whose bias has one number for each filter. The layers of attention
    have kernels of three axes, too, and biases of two, or none; without a bias, they may be stacked."""
    kernel, bias = (getattr(owner.get(name), "shape", None) for name in ("kernel", "bias"))
    if kernel is not None and bias is None:  # or it is one that optax masks
        height, width = kernel[:2] if len(kernel) == 4 else (1, 1)
        return len(kernel) > 3 and (height == width or (1 in (height, width) and height + width <= _LONGEST_LINE))
    return kernel is not None and len(bias or ()) == (1 if layers is None else 2)


def _role_of_vector(owner: Mapping[str, Any], name: str) -> tuple[str | None, Axes]:
    if name == "scale":
        return "norm.scale", ("features",)
    if name == "bias" and "kernel" in owner:
        return "bias", ("out",)
    if name == "bias" and ("scale" in owner or len(owner) == 1):  # other dicts are not those of a layer of Linen
        return "norm.bias", ("features",)
    statistics = {"mean": "norm.mean", "var": "norm.variance"}
    if name in statistics and statistics.keys() <= owner.keys():
        return statistics[name], ("features",)
    return None, None
