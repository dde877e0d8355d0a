"""The default initial values of PyTorch's layers, as the first rule of `lw.initialize`."""

import math
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from leafwise.core.capabilities.filling import Filling
from leafwise.core.columns import Columns
from leafwise.core.tree import Tree
from leafwise.iterate.initializers import AS_WIDE_AS_WEIGHT, BY_HIDDEN_SIZE, NORMAL_BUT_FOR_PADDING, ONE_OF_THREE
from leafwise.iterate.leaf_seeds import PROJECTION_ROLES
from leafwise.iterate.rules import Rule

_MATRIX = {"init": "kaiming_uniform", "nonlinearity": "leaky_relu", "slope": math.sqrt(5)}
_BY_ROLE: dict[str, dict[str, Any]] = {
    "linear.weight": _MATRIX,
    "conv.weight": _MATRIX,
    "conv_transpose.weight": _MATRIX,
    "bilinear.weight": {"init": AS_WIDE_AS_WEIGHT},
    "bias": {"init": AS_WIDE_AS_WEIGHT},
    "embedding.table": {"init": NORMAL_BUT_FOR_PADDING},
    "norm.scale": {"init": "ones"},
    "norm.bias": {"init": "zeros"},
    "norm.mean": {"init": "zeros"},
    "norm.variance": {"init": "ones"},
    "norm.count": {"init": "zeros"},
    "rnn.weight_ih": {"init": BY_HIDDEN_SIZE},
    "rnn.weight_hh": {"init": BY_HIDDEN_SIZE},
    "rnn.weight_hr": {"init": BY_HIDDEN_SIZE},
    "rnn.bias_ih": {"init": BY_HIDDEN_SIZE},
    "rnn.bias_hh": {"init": BY_HIDDEN_SIZE},
    "rnn.bias_hh.n": {"init": BY_HIDDEN_SIZE},
    "rnn.bias": {"init": BY_HIDDEN_SIZE},
    "attention.qkv": {"init": "xavier_uniform"},
    "attention.q": {"init": "xavier_uniform"},
    "attention.k": {"init": "xavier_uniform"},
    "attention.v": {"init": "xavier_uniform"},
    "attention.out": _MATRIX,
    "attention.bias": {"init": "zeros"},
    "activation.slope": {"init": "constant", "value": 0.25},
}


class LayerDefaults(Rule):
    """The initial values that PyTorch's layers set in `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__("**", init="as PyTorch's layers begin")

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        columns = tree.columns
        stock: dict[type, bool] = {}
        places: list[tuple[int, Hashable]] = []
        transformers = [
            columns.row_ranges[node]
            for node in columns.nodes_where(
                lambda home, obj: home.type_name(obj) == "Transformer" and home.capability(Filling).is_stock(obj)
            )
        ]
        of_stock = []
        for row in rows:
            owner = columns.node_objects[columns.row_nodes[row]]
            if type(owner) not in stock:
                # Leaves in tuples have roles only in the state of an Equinox model.
                is_stock = type(owner) is tuple or columns.home(owner).capability(Filling).is_stock(owner)
                stock[type(owner)] = is_stock
            if stock[type(owner)]:
                of_stock.append(row)
        for row, (role, _) in zip(of_stock, columns.row_roles(of_stock), strict=True):
            owner = columns.node_objects[columns.row_nodes[row]]
            if role is not None and any(first <= row < last for first, last in transformers):
                # A Transformer resets all of its matrices like this.
                role = "attention.qkv" if _BY_ROLE.get(role) is _MATRIX else role
            if role is not None and role not in _BY_ROLE and role.startswith("rnn."):
                role = ".".join(role.split(".")[:2])  # of one gate
            if role in _BY_ROLE:
                places.append((row, _place(columns, row, owner, role)))
        return places

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(place, tuple)
        role, own_options = place
        return {**_BY_ROLE[role], **dict(own_options)}

    def __repr__(self) -> str:
        return "the default rules"


def _place(columns: Columns, row: int, owner: Any, role: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The role whose defaults apply, and the options that this layer changes."""
    name = columns.row_names[row]
    if role == "norm.count" and name.endswith("ema_first_time_index"):
        return "norm.scale", ()  # true, so that Equinox forgets the statistics with the first batch
    if role == "embedding.table" and getattr(owner, "padding_idx", None) is not None:
        return role, (("zero_row", owner.padding_idx),)
    if role == "activation.slope" and isinstance(getattr(owner, "init", None), int | float):
        return role, (("value", owner.init),)
    if role.startswith("rnn.") and not hasattr(owner, "hidden_size"):
        return role, (("hidden", _hidden_size(columns, columns.node_parents[columns.row_nodes[row]])),)
    if role in PROJECTION_ROLES and not hasattr(owner, "embed_dim") and _have_one_shape(columns, row):
        return role, (("init", ONE_OF_THREE),)
    if role == "bias" and _is_of_attention(columns, row):
        return "attention.bias", ()  # zeros
    if role == "attention.bias" and name in ("bias_k", "bias_v"):
        return role, (("init", "normal"), ("std", 1 / math.sqrt(owner.embed_dim)))
    return role, ()


def _is_of_attention(columns: Columns, row: int) -> bool:
    """Whether a bias is that of a projection of attention, which begins at zero."""
    node = columns.row_nodes[row]
    roles = columns.row_roles([beside for beside in columns.own_rows(node) if beside != row])
    is_projection = any((role or "").startswith("attention.") for role, _ in roles)
    return is_projection or columns.type_name(node) == "NonDynamicallyQuantizableLinear"


def _have_one_shape(columns: Columns, row: int) -> bool:
    """Whether query, key and value of a layer of attention have one shape: PyTorch has one matrix for them then."""
    layer = columns.node_parents[columns.row_nodes[row]]
    rows = list(range(*columns.row_ranges[layer])) if layer >= 0 else []
    of_projections = [
        row for row, (role, _) in zip(rows, columns.row_roles(rows), strict=True) if role in PROJECTION_ROLES
    ]
    return len(of_projections) == 3 and len({facts.spec.shape for facts in columns.facts(of_projections)}) == 1


def _hidden_size(columns: Columns, cell: int) -> int:
    """The hidden size of a recurrent cell whose weights are in layers inside it, as in Flax."""
    for row in range(*columns.row_ranges[cell]) if cell >= 0 else ():
        role, axes = columns.row_role(row)
        if role is not None and axes is not None and role.startswith("rnn.weight_hh") and "in" in axes:
            return (columns.facts([row])[0].spec.shape or (1,))[axes.index("in")]
    return 1
