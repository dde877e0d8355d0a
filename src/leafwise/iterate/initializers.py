"""Initializers by name, and the distribution that each gives for a leaf."""

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from leafwise.core.capabilities.filling import Draw
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_castable, is_float, number_kind
from leafwise.core.home import Spec
from leafwise.core.leaf import Leaf
from leafwise.iterate.distributions import constant, normal, uniform


class Orthogonal(NamedTuple):
    """A matrix with orthogonal rows or columns. Unlike other distributions, it must be drawn as a whole."""

    gain: float


class Padded(NamedTuple):
    """Random numbers with one row of zeros, for the padding index of embeddings."""

    draw: Draw
    zero_row: int


Distribution = Draw | Orthogonal | Padded


class LeafContext(NamedTuple):
    """A leaf to initialize, the layer that owns it, and the layer's other leaves by name."""

    leaf: Leaf
    owner: Any
    siblings: Mapping[str, Leaf]


class InitializerError(Exception):
    """An initializer does not fit a leaf, for the given reason. The caller adds the path and the rule."""


# -- fans ----------------------------------------------------------------------------------------------------

_SPACE = {"d", "h", "w", "-d", "-h", "-w"}


def fans(leaf: Leaf) -> tuple[int, int]:
    """Fan-in and fan-out of a leaf, from its axes: the inputs of each output, and the outputs of each input. Those of
    one layer if several are stacked."""
    sizes = dict(zip(leaf.axes or (), leaf.shape or (), strict=False))
    if {"heads", "head_dim"} <= sizes.keys():  # the outputs of a projection of attention, or the inputs of the last one
        sizes["in" if "out" in sizes else "out"] = sizes.pop("heads") * sizes.pop("head_dim")
    sizes = {axis: size for axis, size in sizes.items() if not axis.startswith("layers")}
    if not {"in", "out"} <= sizes.keys() or sizes.keys() - {"in", "out"} - _SPACE:
        axes = f"its axes are {', '.join(leaf.axes)}" if leaf.axes else "its axes are not known"
        raise InitializerError(
            f"fan-in and fan-out need the axes in and out, but {axes}; "
            "use an initializer without fans, such as normal or uniform, or declare the axes with lw.add_roles"
        )
    space = math.prod(size for axis, size in sizes.items() if axis in _SPACE)
    fan_in, fan_out = sizes["in"] * space, sizes["out"] * space
    if leaf.role != "conv_transpose.weight":
        return fan_in, fan_out
    # PyTorch exchanges the fans of transposed convolutions, because their weights are stored with in before out. It
    # has the outputs of one group and all inputs.
    groups = groups_of(leaf.columns, leaf.row)
    return fan_out // groups, fan_in * groups


def groups_of(columns: Columns, row: int) -> int:
    """The groups of a transposed convolution that has all outputs, and the inputs of one group, as in Equinox; 1 if it
    has all inputs, as in PyTorch."""
    axes = columns.row_role(row)[1] or ()
    groups = getattr(columns.node_objects[columns.row_nodes[row]], "groups", 1)
    return groups if any(axis.startswith("-") for axis in axes) and type(groups) is int and groups > 0 else 1


def _fan(leaf: Leaf, mode: str) -> float:
    fan_in, fan_out = fans(leaf)
    if mode not in ("fan_in", "fan_out", "fan_avg"):
        raise InitializerError(f"mode= takes 'fan_in', 'fan_out' or 'fan_avg', not {mode!r}")
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode] or 1


def _gain(nonlinearity: str, slope: float) -> float:
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}
    gains["leaky_relu"] = math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in gains:
        raise InitializerError(f"nonlinearity= takes one of {', '.join(gains)}, not {nonlinearity!r}")
    return gains[nonlinearity]


# -- by name -------------------------------------------------------------------------------------------------


def _zeros(context: LeafContext) -> Distribution:
    return constant(0.0)


def _ones(context: LeafContext) -> Distribution:
    return constant(1.0)


def _constant(context: LeafContext, value: float) -> Distribution:
    return constant(value)


def _uniform(context: LeafContext, low: float = -1.0, high: float = 1.0) -> Distribution:
    return uniform(low, high)


def _normal(context: LeafContext, mean: float = 0.0, std: float = 1.0) -> Distribution:
    return normal(mean, std)


def _truncated_normal(context: LeafContext, mean: float = 0.0, std: float = 1.0, cut: float = 2.0) -> Distribution:
    return normal(mean, std, cut)


def _xavier_uniform(context: LeafContext, gain: float = 1.0) -> Distribution:
    return _symmetric(math.sqrt(3) * gain / math.sqrt(_fan(context.leaf, "fan_avg")))


def _xavier_normal(context: LeafContext, gain: float = 1.0) -> Distribution:
    return normal(0.0, gain / math.sqrt(_fan(context.leaf, "fan_avg")))


def _kaiming_uniform(
    context: LeafContext, mode: str = "fan_in", nonlinearity: str = "relu", slope: float = 0.01
) -> Distribution:
    return _symmetric(math.sqrt(3) * _gain(nonlinearity, slope) / math.sqrt(_fan(context.leaf, mode)))


def _kaiming_normal(
    context: LeafContext, mode: str = "fan_in", nonlinearity: str = "relu", slope: float = 0.01
) -> Distribution:
    return normal(0.0, _gain(nonlinearity, slope) / math.sqrt(_fan(context.leaf, mode)))


def _lecun_uniform(context: LeafContext) -> Distribution:
    return _symmetric(math.sqrt(3 / _fan(context.leaf, "fan_in")))


def _lecun_normal(context: LeafContext) -> Distribution:
    return normal(0.0, math.sqrt(1 / _fan(context.leaf, "fan_in")))


def _orthogonal(context: LeafContext, gain: float = 1.0) -> Distribution:
    if len(context.leaf.shape or ()) < 2:
        raise InitializerError("only a leaf with at least two axes can be orthogonal")
    return Orthogonal(gain)


def _symmetric(bound: float) -> Distribution:
    return uniform(-bound, bound)


INITIALIZERS: dict[str, Callable[..., Distribution]] = {
    make.__name__.removeprefix("_"): make
    for make in (
        _zeros, _ones, _constant, _uniform, _normal, _truncated_normal, _xavier_uniform, _xavier_normal,
        _kaiming_uniform, _kaiming_normal, _lecun_uniform, _lecun_normal, _orthogonal,
    )
}  # fmt: skip


# -- of layers -------------------------------------------------------------------------------------------------

# Names for initializers of PyTorch's layers that are unnamed there. They appear in messages.
AS_WIDE_AS_WEIGHT = "uniform, as wide as its weight"
BY_HIDDEN_SIZE = "uniform, by the hidden size"
NORMAL_BUT_FOR_PADDING = "normal, but for padding"
ONE_OF_THREE = "xavier_uniform, for query, key and value together"


def _bound_of_weight(context: LeafContext) -> Distribution:
    """The bound for a bias follows from the fan-in of its layer's weight; the bound for a bilinear weight follows from
    the size of its first input."""
    leaves = [context.leaf, *context.siblings.values()]
    weight = next((leaf for leaf in leaves if (leaf.role or "").endswith(".weight")), None)
    if weight is None:
        raise InitializerError(
            "the default range of a bias follows from the weight of its layer, and there is none; add a rule for it"
        )
    if weight.role == "bilinear.weight":
        return _symmetric(1 / math.sqrt((weight.shape or (0, 0))[1] or 1))
    return _symmetric(1 / math.sqrt(_fan(weight, "fan_in")))


def _bound_of_hidden(context: LeafContext, hidden: int | None = None) -> Distribution:
    return _symmetric(1 / math.sqrt((context.owner.hidden_size if hidden is None else hidden) or 1))


def _xavier_of_three(context: LeafContext) -> Distribution:
    """For a projection that is one of three in a single matrix of PyTorch."""
    fan_in, fan_out = fans(context.leaf)
    return _symmetric(math.sqrt(6 / ((fan_in + 3 * fan_out) or 1)))


def _embedding(context: LeafContext, zero_row: int | None = None) -> Distribution:
    draw = normal(0.0, 1.0)
    return draw if zero_row is None else Padded(draw, zero_row)


_OF_LAYERS: dict[str, Callable[..., Distribution]] = {
    AS_WIDE_AS_WEIGHT: _bound_of_weight,
    BY_HIDDEN_SIZE: _bound_of_hidden,
    NORMAL_BUT_FOR_PADDING: _embedding,
    ONE_OF_THREE: _xavier_of_three,
}


# -- options ---------------------------------------------------------------------------------------------------

_TAKES = {name: tuple(inspect.signature(make).parameters)[1:] for name, make in INITIALIZERS.items()}


def check_options(options: Mapping[str, Any]) -> None:
    """Raises if an initializer is unknown, or has no option of a given name. Needs no leaf."""
    init = options.get("init")
    if init is None or callable(init):
        further = [name for name in options if name != "init"]
        if further:
            raise InitializerError(f"{'a callable' if callable(init) else 'init=None'} takes no option {further[0]!r}")
        return
    if isinstance(init, str) and init in _OF_LAYERS:
        further = [name for name in options if name not in ("init", "zero_row", "hidden")]
        if further:
            raise InitializerError(
                f"the default of the layer takes no option {further[0]!r}; name an initializer: init='normal', …"
            )
        return
    if not isinstance(init, str) or init not in INITIALIZERS:
        near = get_close_matches(str(init), INITIALIZERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(INITIALIZERS)} or a callable"
        raise InitializerError(f"unknown initializer {init!r}; {hint}")
    for name in options:
        if name != "init" and name not in _TAKES[init]:
            takes = ", ".join(_TAKES[init]) or "none"
            raise InitializerError(f"{init!r} takes no option {name!r}; its options are: {takes}")


def initial_values_of(context: LeafContext, options: Mapping[str, Any]) -> Any:
    """The initial values of a leaf: a distribution, or the array that a callable returned."""
    init = options.get("init")
    if init is None:
        raise InitializerError(f"the callable returned options without 'init': {dict(options)}")
    check_options(options)
    if callable(init):
        returned = init(context.leaf, context.siblings)
        return initial_values_of(context, returned) if isinstance(returned, Mapping) else returned
    make = _OF_LAYERS.get(init) or INITIALIZERS[init]
    try:
        distribution = make(context, **{name: value for name, value in options.items() if name != "init"})
    except TypeError as error:
        raise InitializerError(str(error).replace(f"_{init}()", init)) from error
    return _checked(distribution, options)


def _checked(distribution: Distribution, options: Mapping[str, Any]) -> Distribution:
    """Returns the distribution; raises if its options are not finite numbers."""
    fields = distribution.draw if isinstance(distribution, Padded) else distribution
    options_text = ", ".join(f"{name}={value!r}" for name, value in options.items())
    drawn = fields[1:] if isinstance(fields, Draw) else fields  # without the name of the shape
    if not all(isinstance(field, int | float) for field in drawn):
        raise InitializerError(f"{options_text}: options must be numbers")
    if isinstance(fields, Draw) and fields.scale:
        if not all(math.isfinite(field) for field in drawn):
            raise InitializerError(f"{options_text}: options must be finite")
        if fields.scale < 0:
            raise InitializerError(f"{options_text}: the std or width must not be negative")
    return distribution


def check_fits(distribution: Distribution, spec: Spec) -> None:
    """Raises if the numbers of a distribution do not fit the dtype of a leaf."""
    if not is_castable(spec.dtype):
        raise InitializerError(f"leafwise does not cast to {spec.dtype}")
    if is_float(spec.dtype):
        return
    if not isinstance(distribution, Draw) or distribution.scale:
        raise InitializerError(f"random numbers do not fit into {spec.dtype}")
    if number_kind(spec.dtype) != "complex" and not float(distribution.shift).is_integer():
        raise InitializerError(f"{distribution.shift!r} does not fit into {spec.dtype}")


def checked_array(array: Any, spec: Spec) -> Any:
    """The array or number that a callable returned for a leaf; raises if it does not fit the leaf."""
    kind = array.dtype.kind
    if kind not in "biufc" and array.dtype.type.__module__ != "ml_dtypes":
        raise InitializerError(f"the callable must return numbers, not {array.dtype} of shape {array.shape}")
    if kind == "c" and number_kind(spec.dtype) != "complex":
        raise InitializerError(f"complex numbers do not fit into {spec.dtype}")
    if array.shape not in ((), spec.shape):
        raise InitializerError(f"the callable returned the shape {array.shape}, but the leaf has {spec.shape}")
    wide = "float64" if kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return array.astype(wide)
