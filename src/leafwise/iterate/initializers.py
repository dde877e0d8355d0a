"""Initialisers by name, fans from axes, and what PyTorch's own layers begin with."""

import inspect
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from leafwise.core.capabilities.filling import Draw, Filling
from leafwise.core.columns import Columns
from leafwise.core.home import Spec
from leafwise.core.leaf import Leaf
from leafwise.core.tree import Tree
from leafwise.iterate.distributions import constant, normal, uniform
from leafwise.iterate.rules import Rule


class Orthogonal(NamedTuple):
    """A matrix with orthogonal rows or columns; the one initialiser that needs the whole leaf."""

    gain: float


class Padded(NamedTuple):
    """Numbers with a row of zeros, as embeddings have for padding."""

    draw: Draw
    zero_row: int


Drawn = Draw | Orthogonal | Padded


class Site(NamedTuple):
    """A leaf that gets initial values: itself, the layer that owns it, and the other leaves of that, by name."""

    leaf: Leaf
    owner: Any
    others: Mapping[str, Leaf]


class InitialiserError(Exception):
    """Why an initialiser does not fit a leaf; whoever catches it knows the path and the rule."""


# -- fans ----------------------------------------------------------------------------------------------------

_SPACE = {"d", "h", "w"}


def fans(leaf: Leaf) -> tuple[int, int]:
    """How many numbers go into each output of a leaf, and come out of each input; told by its axes."""
    sizes = dict(zip(leaf.axes or (), leaf.shape or (), strict=False))
    if not {"in", "out"} <= sizes.keys() or sizes.keys() - {"in", "out"} - _SPACE:
        axes = f"its axes are {', '.join(leaf.axes)}" if leaf.axes else "nobody says what its axes mean"
        raise InitialiserError(
            f"the fans are the sizes of its axes in and out, and {axes}; "
            "use normal, uniform or another initialiser without fans, or lw.add_roles"
        )
    space = math.prod(size for axis, size in sizes.items() if axis in _SPACE)
    found = sizes["in"] * space, sizes["out"] * space
    # PyTorch takes the other axis of a transposed convolution, which stores its weight the other way round.
    return found[::-1] if leaf.role == "conv_transpose.weight" else found


def _fan(leaf: Leaf, mode: str) -> float:
    into, out = fans(leaf)
    if mode not in ("fan_in", "fan_out", "fan_avg"):
        raise InitialiserError(f"mode= takes 'fan_in', 'fan_out' or 'fan_avg', not {mode!r}")
    return {"fan_in": into, "fan_out": out, "fan_avg": (into + out) / 2}[mode] or 1


def _gain(nonlinearity: str, slope: float) -> float:
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}
    gains["leaky_relu"] = math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in gains:
        raise InitialiserError(f"nonlinearity= takes {', '.join(gains)}, not {nonlinearity!r}")
    return gains[nonlinearity]


# -- by name -------------------------------------------------------------------------------------------------


def _zeros(site: Site) -> Drawn:
    return constant(0.0)


def _ones(site: Site) -> Drawn:
    return constant(1.0)


def _constant(site: Site, value: float) -> Drawn:
    return constant(value)


def _uniform(site: Site, low: float = -1.0, high: float = 1.0) -> Drawn:
    return uniform(low, high)


def _normal(site: Site, mean: float = 0.0, std: float = 1.0) -> Drawn:
    return normal(mean, std)


def _truncated_normal(site: Site, mean: float = 0.0, std: float = 1.0, cut: float = 2.0) -> Drawn:
    return normal(mean, std, cut)


def _xavier_uniform(site: Site, gain: float = 1.0) -> Drawn:
    return _symmetric(math.sqrt(3) * gain / math.sqrt(_fan(site.leaf, "fan_avg")))


def _xavier_normal(site: Site, gain: float = 1.0) -> Drawn:
    return normal(0.0, gain / math.sqrt(_fan(site.leaf, "fan_avg")))


def _kaiming_uniform(site: Site, mode: str = "fan_in", nonlinearity: str = "relu", slope: float = 0.01) -> Drawn:
    return _symmetric(math.sqrt(3) * _gain(nonlinearity, slope) / math.sqrt(_fan(site.leaf, mode)))


def _kaiming_normal(site: Site, mode: str = "fan_in", nonlinearity: str = "relu", slope: float = 0.01) -> Drawn:
    return normal(0.0, _gain(nonlinearity, slope) / math.sqrt(_fan(site.leaf, mode)))


def _lecun_uniform(site: Site) -> Drawn:
    return _symmetric(math.sqrt(3 / _fan(site.leaf, "fan_in")))


def _lecun_normal(site: Site) -> Drawn:
    return normal(0.0, math.sqrt(1 / _fan(site.leaf, "fan_in")))


def _orthogonal(site: Site, gain: float = 1.0) -> Drawn:
    if len(site.leaf.shape or ()) < 2:
        raise InitialiserError("only a leaf with at least two axes can be orthogonal")
    return Orthogonal(gain)


def _symmetric(bound: float) -> Drawn:
    return uniform(-bound, bound)


INITIALISERS: dict[str, Callable[..., Drawn]] = {
    "zeros": _zeros,
    "ones": _ones,
    "constant": _constant,
    "uniform": _uniform,
    "normal": _normal,
    "truncated_normal": _truncated_normal,
    "xavier_uniform": _xavier_uniform,
    "xavier_normal": _xavier_normal,
    "kaiming_uniform": _kaiming_uniform,
    "kaiming_normal": _kaiming_normal,
    "lecun_uniform": _lecun_uniform,
    "lecun_normal": _lecun_normal,
    "orthogonal": _orthogonal,
}


_TAKES = {name: tuple(inspect.signature(make).parameters)[1:] for name, make in INITIALISERS.items()}


def check_options(options: Mapping[str, Any]) -> None:
    """Raises where an initialiser is not known, or does not take an option; before any leaf is looked at."""
    init = options.get("init")
    if init is None or callable(init):
        further = [name for name in options if name != "init"]
        if further:
            raise InitialiserError(f"{'a callable' if callable(init) else 'init=None'} takes no {further[0]!r}")
        return
    if isinstance(init, str) and init in _OF_DEFAULTS:
        further = [name for name in options if name not in ("init", "zero_row")]
        if further:
            raise InitialiserError(
                f"what the layer begins with takes no {further[0]!r}; name an initialiser: init='normal', …"
            )
        return
    if not isinstance(init, str) or init not in INITIALISERS:
        near = get_close_matches(str(init), INITIALISERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(INITIALISERS)}, or a callable"
        raise InitialiserError(f"no initialiser is called {init!r}; {hint}")
    for name in options:
        if name != "init" and name not in _TAKES[init]:
            takes = ", ".join(_TAKES[init]) or "nothing"
            raise InitialiserError(f"{init!r} takes no {name!r}; it takes {takes}")


def drawn_by(site: Site, options: Mapping[str, Any]) -> Any:
    """What an initialiser means for a leaf: something to draw, or an array."""
    init = options.get("init")
    if init is None:
        raise InitialiserError(f"the callable returned options without 'init': {dict(options)}")
    check_options(options)
    if callable(init):
        found = init(site.leaf, site.others)
        return drawn_by(site, found) if isinstance(found, Mapping) else found
    make = _OF_DEFAULTS.get(init) or INITIALISERS[init]
    try:
        drawn = make(site, **{name: value for name, value in options.items() if name != "init"})
    except TypeError as error:
        raise InitialiserError(str(error).replace(f"_{init}()", init)) from error
    return _checked(drawn, options)


def _checked(drawn: Drawn, options: Mapping[str, Any]) -> Drawn:
    """What is to be drawn; raises where it is made of anything but numbers."""
    fields = drawn.draw if isinstance(drawn, Padded) else drawn
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if not all(isinstance(field, int | float) for field in fields):
        raise InitialiserError(f"{given}: these must be numbers")
    if isinstance(fields, Draw) and fields.scale:
        if not all(math.isfinite(field) for field in fields):
            raise InitialiserError(f"{given}: these must be finite")
        if fields.scale < 0:
            raise InitialiserError(f"{given}: the width is below zero")
    return drawn


def check_fits(drawn: Drawn, spec: Spec) -> None:
    """Raises where what is to be drawn does not fit the dtype of a leaf."""
    if spec.dtype.startswith(("float", "bfloat")):
        return
    if not isinstance(drawn, Draw) or drawn.scale:
        raise InitialiserError(f"random numbers do not fit into {spec.dtype}")
    if not spec.dtype.startswith("complex") and not float(drawn.shift).is_integer():
        raise InitialiserError(f"{drawn.shift!r} does not fit into {spec.dtype}")


def checked_array(array: Any, spec: Spec) -> Any:
    """An array that somebody made for a leaf, or a number; raises where it does not fit."""
    kind = array.dtype.kind
    if kind not in "biufc" and array.dtype.type.__module__ != "ml_dtypes":
        raise InitialiserError(f"the callable returned no numbers: {array.dtype} of shape {array.shape}")
    if kind == "c" and not spec.dtype.startswith("complex"):
        raise InitialiserError(f"complex numbers do not fit into {spec.dtype}")
    if array.shape not in ((), spec.shape):
        raise InitialiserError(f"it has the shape {spec.shape}, and was given {array.shape}")
    wide = "float64" if kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return array.astype(wide)


# -- what PyTorch's layers begin with --------------------------------------------------------------------------

_LIKE_WEIGHT = {"init": "kaiming_uniform", "nonlinearity": "leaky_relu", "slope": math.sqrt(5)}
_BOUND = "uniform, as wide as its weight"
_HIDDEN = "uniform, by the hidden size"
_TABLE = "normal, but for padding"
_OF_LAYERS: dict[str, dict[str, Any]] = {
    "linear.weight": _LIKE_WEIGHT,
    "conv.weight": _LIKE_WEIGHT,
    "conv_transpose.weight": _LIKE_WEIGHT,
    "bilinear.weight": {"init": _BOUND},
    "bias": {"init": _BOUND},
    "embedding.table": {"init": _TABLE},
    "norm.scale": {"init": "ones"},
    "norm.bias": {"init": "zeros"},
    "norm.mean": {"init": "zeros"},
    "norm.variance": {"init": "ones"},
    "norm.count": {"init": "zeros"},
    "rnn.weight_ih": {"init": _HIDDEN},
    "rnn.weight_hh": {"init": _HIDDEN},
    "rnn.weight_hr": {"init": _HIDDEN},
    "rnn.bias_ih": {"init": _HIDDEN},
    "rnn.bias_hh": {"init": _HIDDEN},
    "attention.qkv": {"init": "xavier_uniform"},
    "attention.q": {"init": "xavier_uniform"},
    "attention.k": {"init": "xavier_uniform"},
    "attention.v": {"init": "xavier_uniform"},
    "attention.bias": {"init": "zeros"},
    "activation.slope": {"init": "constant", "value": 0.25},
}


def _bound_of_weight(site: Site) -> Drawn:
    """Biases are as wide as the weight beside them, by its fan-in; and so is a bilinear weight, by its first input."""
    leaves = [site.leaf, *site.others.values()]
    weight = next((leaf for leaf in leaves if (leaf.role or "").endswith(".weight")), None)
    if weight is None:
        raise InitialiserError(
            "a bias is as wide as the weight beside it, and there is none; give it a rule of its own"
        )
    if weight.role == "bilinear.weight":
        return _symmetric(1 / math.sqrt((weight.shape or (0, 0))[1] or 1))
    return _symmetric(1 / math.sqrt(_fan(weight, "fan_in")))


def _bound_of_hidden(site: Site) -> Drawn:
    return _symmetric(1 / math.sqrt(site.owner.hidden_size or 1))


def _table(site: Site, zero_row: int | None = None) -> Drawn:
    drawn = normal(0.0, 1.0)
    return drawn if zero_row is None else Padded(drawn, zero_row)


_OF_DEFAULTS: dict[str, Callable[..., Drawn]] = {
    _BOUND: _bound_of_weight,
    _HIDDEN: _bound_of_hidden,
    _TABLE: _table,
}


class Defaults(Rule):
    """What the layers of PyTorch itself begin with, in their own `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__("**", init="as PyTorch's layers begin")

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        columns = tree.columns
        stock: dict[type, bool] = {}
        found: list[tuple[int, Hashable]] = []
        transformers = [
            columns.row_ranges[node]
            for node in columns.nodes_where(
                lambda home, obj: home.type_name(obj) == "Transformer" and home.capability(Filling).is_stock(obj)
            )
        ]
        rows = list(rows)
        for row, (role, _) in zip(rows, columns.row_roles(rows), strict=True):
            owner = columns.node_objects[columns.row_nodes[row]]
            if type(owner) not in stock:
                stock[type(owner)] = columns.home(owner).capability(Filling).is_stock(owner)
            if not stock[type(owner)]:
                continue
            if role is not None and any(first <= row < last for first, last in transformers):
                role = "attention.qkv" if _OF_LAYERS.get(role) is _LIKE_WEIGHT else role  # it resets all matrices so
            if role in _OF_LAYERS:
                found.append((row, _place(columns, row, owner, role)))
        return found

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(place, tuple)
        role, changed = place
        return {**_OF_LAYERS[role], **dict(changed)}

    def __repr__(self) -> str:
        return "the default rules"


def _place(columns: Columns, row: int, owner: Any, role: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The role, and what a layer has of its own about it."""
    name = columns.row_names[row]
    if role == "embedding.table" and getattr(owner, "padding_idx", None) is not None:
        return role, (("zero_row", owner.padding_idx),)
    if role == "activation.slope" and isinstance(getattr(owner, "init", None), int | float):
        return role, (("value", owner.init),)
    if role == "bias" and columns.type_name(columns.row_nodes[row]) == "NonDynamicallyQuantizableLinear":
        return "norm.bias", ()  # the projection out of attention, which begins with zeros
    if role == "attention.bias" and name in ("bias_k", "bias_v"):
        return role, (("init", "normal"), ("std", 1 / math.sqrt(owner.embed_dim)))
    return role, ()
