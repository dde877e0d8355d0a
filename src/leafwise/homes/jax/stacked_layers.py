"""Layers that `nnx.vmap`, `nnx.scan`, `nn.scan` or `eqx.filter_vmap` stacked: their leaves have an axis more than those
of one layer, called `layers`. Where it is follows from the settings of the layer, or from a kernel and its bias."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

Shape = tuple[int, ...]
Sizes = tuple[int | None, ...]  # None where the settings of a layer do not say the size

_MOST = 2  # stack axes of one leaf, as of experts inside of layers

# For layers that have a setting of this name, the settings with the sizes of each leaf. The first one is used.
_SETTINGS: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (
    ("bias_shape", {"kernel": ("kernel_shape",), "bias": ("bias_shape",)}),
    ("kernel_shape", {"kernel": ("kernel_shape",), "bias": ("out_features",)}),
    ("num_spatial_dims", {"weight": ("out_channels", "in_of_group", "kernel_size"), "bias": ("out_channels", "ones")}),
    ("num_embeddings", {"embedding": ("num_embeddings", "features"), "weight": ("num_embeddings", "embedding_size")}),
    ("num_features", {"*": ("num_features",)}),
    ("group_size", {"*": ("channels_of_groups",)}),
    ("hidden_size", {"weight_ih": ("gates", "input_size"), "weight_hh": ("gates", "hidden_size"), "bias": ("gates",),
                     "bias_n": ("hidden_size",)}),
    ("batch_axis", {"kernel": ("batch_sizes", "in_features", "out_features"), "bias": ("batch_sizes", "out_features")}),
    ("lora_a", {"lora_a": ("in_features", "any"), "lora_b": ("any", "out_features")}),
    ("out_features", {"kernel": ("in_features", "out_features"), "weight": ("out_features", "in_features"),
                      "bias": ("out_features",)}),
    ("channelwise_affine", {"*": ("channels", "input_size")}),
    ("shape", {"*": ("shape",)}),
    ("negative_slope", {"*": ("slopes",)}),
)  # fmt: skip


def shape_in_one_layer(owner: Any, name: str, shape: Shape) -> Sizes | None:
    """The shape that a leaf has in a layer that is not stacked, if it has more axes than that in this one. None if it
    has no more, or if the settings of the layer do not say it."""
    settings = getattr(owner, "__dict__", {})
    for setting, leaves in _SETTINGS:
        if setting in settings:
            named = leaves.get(name, leaves.get("*", ("unknown",)))
            of_one = [_sizes(settings, part) for part in named]
            if any(part is None for part in of_one):
                return None
            sizes = tuple(size for part in of_one if part is not None for size in part)
            return sizes if 0 < len(shape) - len(sizes) <= _MOST else None
    return None


def _sizes(settings: Mapping[str, Any], name: str) -> Sizes | None:
    match name:
        case "any":
            return (None,)
        case "in_of_group":
            size: Any = settings["in_channels"] // settings["groups"]
        case "ones":
            size = (1,) * settings["num_spatial_dims"]
        case "channels_of_groups":
            size = settings["num_groups"] * settings["group_size"]
        case "gates":
            size = settings["hidden_size"] * (3 if "bias_n" in settings else 4)
        case "batch_sizes":
            size = tuple(settings["batch_axis"].values())
        case "channels" | "input_size" if name not in settings:
            return ()  # GroupNorm of Equinox has the one, BatchNorm the other
        case "slopes":
            size = () if "param_dtype" in settings else None  # that of Flax has one slope, that of Equinox any number
        case _:
            size = settings.get(name)
    if size == "scalar":  # in Equinox, one input or output
        return (1,)
    if isinstance(size, int):
        return (size,)
    return size if isinstance(size, tuple) else None


def possible_axes(shape: Shape, of_one: Sizes) -> Iterator[tuple[int, ...]]:
    """The axes of a leaf that may be those of stacked layers: without them, it has the shape that it has in one."""
    for places in combinations(range(len(shape)), len(shape) - len(of_one)):
        rest = [size for axis, size in enumerate(shape) if axis not in places]
        if all(wanted in (size, None) for size, wanted in zip(rest, of_one, strict=True)):
            yield places


def with_layers(axes: tuple[str, ...], places: tuple[int, ...]) -> tuple[str, ...]:
    """The axes of one layer, and those of the stacked layers at these places.

    >>> with_layers(("in", "out"), (1,))
    ('in', 'layers', 'out')
    """
    names = list(axes)
    for number, place in enumerate(places):
        names.insert(place, "layers" if len(places) == 1 else f"layers{number}")
    return tuple(names)


def axis_of_layers(owner: Any, name: str, shape: Shape, of_one: Sizes) -> tuple[int, ...] | None:
    """The axes of the stacked layers in a leaf of a layer. If its shape does not show which they are, because layers
    are as many as inputs, the other leaves of the layer may. None if it is not known."""
    possible = set(possible_axes(shape, of_one))
    for other, value in getattr(owner, "__dict__", {}).items() if len(possible) > 1 else ():
        beside = getattr(value, "shape", None)
        if other != name and isinstance(beside, tuple):
            of_other = shape_in_one_layer(owner, other, beside)
            if of_other is not None and len(beside) - len(of_other) == len(shape) - len(of_one):
                possible &= set(possible_axes(beside, of_other))
    return possible.pop() if len(possible) == 1 else None
