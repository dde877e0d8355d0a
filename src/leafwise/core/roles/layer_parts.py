"""The parts of layers that leaves consist of, under the same names for all frameworks.

`fc.weight` of PyTorch and `fc.kernel` of Flax are both the part `fc.weight`; `attn.in_proj_weight` is the parts
`attn.query.weight`, `attn.key.weight` and `attn.value.weight`, one after the other. Two models line up where they have
the same parts. What a leaf is follows from its role. Leaves of files without roles have only their names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from leafwise.core.home import Axes
from leafwise.core.roles.recipes import Shape

Names = tuple[str, ...]


class CarriedLeaf(NamedTuple):
    """A leaf of one side: its name, its shape, its role and axes if they are known, and whether they can only be
    inferred from its name, as in a file that has no roles. `called` is the last entry of its name before `rename=`,
    because a new name does not change a layout."""

    name: str
    shape: Shape | None
    role: str | None
    axes: Axes
    has_only_names: bool
    called: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class LeafParts(NamedTuple):
    """The parts of a leaf, in the order in which they follow each other along one of its axes: that of its outputs, or
    that of stacked layers."""

    leaf: CarriedLeaf
    keys: tuple[str, ...]
    along: str = "out"


class Gates(NamedTuple):
    """The gates of a recurrent cell, in the order of all frameworks, and the gate whose two biases are not added."""

    names: tuple[str, ...]
    apart: str


LAYERS = "layers"  # the axis of stacked layers

GATES = {1: Gates(("all",), ""), 3: Gates(("r", "z", "n"), "n"), 4: Gates(("i", "f", "g", "o"), "")}

_WEIGHTS = """
    linear.weight bilinear.weight conv.weight conv_transpose.weight embedding.table norm.scale norm.scale_minus_one
    activation.slope
    attention.q attention.k attention.v attention.out
"""
_PART_OF_ROLE = {
    **dict.fromkeys(_WEIGHTS.split(), "weight"),
    **dict.fromkeys(("bias", "norm.bias"), "bias"),
    **dict.fromkeys(("norm.mean", "norm.hidden_mean"), "running_mean"),
    **dict.fromkeys(("norm.variance", "norm.hidden_variance"), "running_var"),
}
_PART_OF_NAME = {
    **dict.fromkeys(("weight", "kernel", "scale", "embedding"), "weight"),
    **dict.fromkeys(("running_mean", "mean"), "running_mean"),
    **dict.fromkeys(("running_var", "var"), "running_var"),
}
_PROJECTIONS = {
    **dict.fromkeys(("query", "query_proj"), "query"),
    **dict.fromkeys(("key", "key_proj"), "key"),
    **dict.fromkeys(("value", "value_proj"), "value"),
    **dict.fromkeys(("out", "out_proj", "output_proj"), "out"),
}
_QKV = ("query", "key", "value")
_FUSED = {"attention.qkv": "weight", "attention.bias": "bias"}
_SINGLE = {"q_proj_weight": "query", "k_proj_weight": "key", "v_proj_weight": "value"}
_RNN_LEAF = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)(?:_l(\d+)(_reverse)?)?")

# Leaves that count or draw random numbers: other frameworks have none.
_OWN_STATE = ("norm.count", "rng.")
_STREAM = re.compile(r"\.rngs\.(?:\w+\.)?(?:key|count)$")  # a random stream of Flax NNX, or one of several


def is_own_state(leaf: CarriedLeaf) -> bool:
    """Whether a leaf counts batches or draws random numbers, which other frameworks do not store."""
    if leaf.role is not None:
        return leaf.role.startswith(_OWN_STATE)
    if _STREAM.search(f".{leaf.name}") is not None:
        return leaf.shape in ((), (2,), (4,))  # a state of Flax NNX has the names of its streams, and no types
    return leaf.has_only_names and leaf.last == "num_batches_tracked"


def parts_of_both(
    source: Sequence[CarriedLeaf], target: Sequence[CarriedLeaf]
) -> tuple[list[LeafParts], list[LeafParts]]:
    """The parts of each leaf of both sides. Levels that only containers of one framework add are left out, unless two
    parts of a side would have the same name then. A leaf of stacked layers has one part for each layer, if the other
    side has these."""
    both = _PartsOfSide(source).parts(), _PartsOfSide(target).parts()
    shorter = _without_levels(both[0]), _without_levels(both[1])
    first, second = shorter if all(map(_is_unambiguous, both, shorter)) else both
    return _unstacked(first, second), _unstacked(second, first)


def parts_of(leaves: Sequence[CarriedLeaf]) -> list[LeafParts]:
    """The parts of each leaf of one side, without the levels that only containers of one framework add, unless two
    parts would have the same name then."""
    parts = _PartsOfSide(leaves).parts()
    shorter = _without_levels(parts)
    return shorter if _is_unambiguous(parts, shorter) else parts


class _PartsOfSide:
    def __init__(self, leaves: Sequence[CarriedLeaf]) -> None:
        if any(leaf.has_only_names for leaf in leaves):
            leaves = [_with_role_by_name(leaf, beside) for leaf, beside in _with_siblings(leaves)]
        self._leaves = leaves
        self._attention = _attention_paths(leaves)
        self._gates = _gates_of_cells(leaves)
        # The paths of modules that are several cells, one for each layer.
        self._many_layers = {_owner(leaf.name) for leaf in leaves if re.fullmatch(r"weight_hh_l[1-9]\d*", leaf.last)}
        self._collections = _collections(leaves)
        self._weights = Counter(_owner(leaf.name) for leaf in leaves if _PART_OF_NAME.get(leaf.last) == "weight")

    def parts(self) -> list[LeafParts]:
        return [LeafParts(leaf, tuple(self._keys(leaf))) for leaf in self._leaves]

    def _keys(self, leaf: CarriedLeaf) -> Iterable[str]:
        role, path = leaf.role or "", leaf.name.split(".")[:-1]
        if role.startswith("rnn."):
            return self._cell_keys(leaf, path)
        if role in _FUSED and leaf.last.startswith("in_proj"):
            return [self._key([*path, child], _FUSED[role]) for child in _QKV]
        if role.startswith("attention.") and leaf.last in _SINGLE:
            return [self._key([*path, _SINGLE[leaf.last]], "weight")]
        if role.startswith("norm.") and path and path[-1].endswith("state_index"):
            return [self._key(path[:-1], _PART_OF_ROLE[role])]  # beside the model, in a state
        if path and ".".join(path[:-1]) in self._attention:
            path = [*path[:-1], _PROJECTIONS.get(path[-1], path[-1])]
        return [self._key(path, self._part(leaf))]

    def _part(self, leaf: CarriedLeaf) -> str:
        if leaf.role is not None:
            return _PART_OF_ROLE.get(leaf.role, leaf.last)
        part = _PART_OF_NAME.get(leaf.last, leaf.last)
        is_alone = part != "weight" or self._weights[_owner(leaf.name)] == 1
        return part if is_alone else leaf.last

    def _cell_keys(self, leaf: CarriedLeaf, path: list[str]) -> list[str]:
        cell, layer, what = cell_of(leaf)
        names, apart = self._gates.get(".".join(cell) + layer, GATES[1])
        if ".".join(path) in self._many_layers:
            match = _RNN_LEAF.fullmatch(leaf.last)
            cell = [*cell, match[2]] if match is not None and match[2] else cell
        if leaf.last.endswith("_reverse"):
            cell = [*cell, "reverse"]
        kind, _, gate = what.partition(".")
        if gate:
            return [self._key(cell, what)]
        return [self._key(cell, _bias_of(kind, name, apart)) for name in names]

    def _key(self, path: Sequence[str], part: str) -> str:
        path = path[1:] if path and path[0] in self._collections else path
        return ".".join((*path, part))


def _bias_of(kind: str, gate: str, apart: str) -> str:
    """Biases of one gate are added to each other, except those of the gate whose second bias is multiplied."""
    if kind in ("bias", "bias_ih", "bias_hh"):
        kind = "bias" if gate != apart else "bias_ih" if kind == "bias" else kind
    return f"{kind}.{gate}"


def cell_of(leaf: CarriedLeaf) -> tuple[list[str], str, str]:
    """The path of the cell of a leaf, which of the layers of one module it belongs to, and which part of it the leaf
    is."""
    path, what = leaf.name.split(".")[:-1], (leaf.role or "").removeprefix("rnn.")
    match = _RNN_LEAF.fullmatch(leaf.last)
    if match is not None:
        return path, leaf.last[len(match[1]) :], what
    is_inside = path and _CELL_LAYER.fullmatch(path[-1])  # in a layer of the cell, as in Flax
    return (path if leaf.last in ("bias", "bias_n") and not is_inside else path[:-1]), "", what


_CELL_LAYER = re.compile(r"dense_[ih]|[ih][ifgorzn]_?")


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _attention_paths(leaves: Iterable[CarriedLeaf]) -> set[str]:
    """The paths of the layers of attention, by the roles of their leaves."""
    paths = set()
    for leaf in leaves:
        if leaf.role in ("attention.qkv", "attention.q"):
            path = leaf.name.split(".")[:-1]
            paths.add(".".join(path[:-1] if path and path[-1] in _PROJECTIONS else path))
    return paths


def _gates_of_cells(leaves: Iterable[CarriedLeaf]) -> dict[str, Gates]:
    """The gates of each cell: its hidden weight has as many outputs as inputs for each of them."""
    gates = {}
    for leaf in leaves:
        if leaf.role == "rnn.weight_hh" and leaf.shape is not None and leaf.axes is not None:
            sizes = dict(zip(leaf.axes, leaf.shape, strict=True))
            path, layer, _ = cell_of(leaf)
            count, rest = divmod(sizes["out"], max(sizes["in"], 1))
            if not rest and count in GATES:
                gates[".".join(path) + layer] = GATES[count]
    return gates


def _collections(leaves: Sequence[CarriedLeaf]) -> frozenset[str]:
    """First entries of names that say where leaves are stored, not which layer they are: the collections of Flax Linen,
    and the two parts of a model whose statistics are in a state beside it."""
    tops = {leaf.name.partition(".")[0] for leaf in leaves if "." in leaf.name}
    if tops and tops <= {"params", "batch_stats"} and not any("." not in leaf.name for leaf in leaves):
        return frozenset(tops)
    states = {leaf.name.partition(".")[0] for leaf in leaves if "state_index." in leaf.name}
    if len(tops) == 2 and len(states) == 1 and tops in ({"0", "1"}, {"model", "state"}):
        return frozenset(tops)
    return frozenset()


# -- levels that only some frameworks have -----------------------------------------------------------------------------


def _without_levels(parts: list[LeafParts]) -> list[LeafParts]:
    return [LeafParts(leaf, tuple(map(_without_levels_of_containers, keys))) for leaf, keys, _ in parts]


def _without_levels_of_containers(key: str) -> str:
    """A name without the levels that containers of layers and of cells add in some frameworks.

    >>> _without_levels_of_containers("net.layers.0.weight"), _without_levels_of_containers("net.layers_0.bias")
    ('net.0.weight', 'net.0.bias')
    """
    entries = key.split(".")
    kept = []
    for entry, following in zip(entries, [*entries[1:], ""], strict=True):
        if (entry == "layers" and following.isdecimal()) or entry in ("cell", "forward_rnn"):
            continue
        if entry.startswith("layers_") and entry[7:].isdecimal():
            entry = entry[7:]
        kept.append("reverse" if entry == "backward_rnn" else entry)
    return ".".join(kept)


def _unstacked(parts: list[LeafParts], others: list[LeafParts]) -> list[LeafParts]:
    """With a part for each of the stacked layers, where the other side has a part of each."""
    by_key = {key: other for other in others for key in other.keys}
    return [_layers_of(leaf_parts, by_key) for leaf_parts in parts]


def _layers_of(parts: LeafParts, others: Mapping[str, LeafParts]) -> LeafParts:
    leaf, key = parts.leaf, parts.keys[0]
    if len(parts.keys) > 1 or key in others or (leaf.axes is not None and LAYERS not in leaf.axes):
        return parts
    possible = []
    for before, after in _places_of_numbers(key):
        count = next(number for number in range(len(others) + 1) if f"{before}{number}{after}" not in others)
        if count and (axes := _axes_of_stack(leaf, others[f"{before}0{after}"], count)) is not None:
            names = tuple(f"{before}{number}{after}" for number in range(count))
            role = others[names[0]].leaf.role if leaf.role is None else leaf.role
            possible.append(LeafParts(leaf._replace(role=role, axes=axes), names, LAYERS))
    return possible[0] if len(possible) == 1 else parts


def _places_of_numbers(key: str) -> Iterator[tuple[str, str]]:
    """What is before and after the number of a layer in the names that the layers of a stack may have as modules of
    their own: behind any level, as in a list, or at its end, as in Flax Linen.

    >>> list(_places_of_numbers("layers.weight"))
    [('', '.layers.weight'), ('layers.', '.weight'), ('layers_', '.weight'), ('', '.weight')]
    """
    entries = [f"{entry}." for entry in key.split(".")]
    for place in range(len(entries)):
        yield "".join(entries[:place]), "." + "".join(entries[place:])[:-1]
    for place, entry in enumerate(entries[:-1]):
        before, after = "".join(entries[: place + 1])[:-1], "." + "".join(entries[place + 1 :])[:-1]
        yield f"{before}_", after
        if entry == "layers.":  # a level that is left out in front of a number
            yield before.removesuffix("layers"), after


def _axes_of_stack(leaf: CarriedLeaf, layer: LeafParts, count: int) -> Axes:
    """The axes of a leaf that may have `count` stacked layers, from the leaf of the first of them; None if it does not
    have these layers, or if its shape does not show which axis is theirs."""
    shape, of_layer = leaf.shape or (), layer.leaf
    if leaf.axes is not None:
        return leaf.axes if shape[leaf.axes.index(LAYERS)] == count else None
    axes_of_layer = of_layer.axes
    if of_layer.role is None and leaf.role is None and leaf.called == of_layer.called:  # they are copied as they are
        axes_of_layer = tuple(f"axis{number}" for number in range(len(of_layer.shape or ())))
    elif not leaf.has_only_names:
        return None
    if axes_of_layer is None or len(layer.keys) > 1:
        return None
    sizes = dict(zip(axes_of_layer, of_layer.shape or (), strict=True))
    possible = []
    for place in range(len(shape)):
        alone = leaf._replace(shape=(*shape[:place], *shape[place + 1 :]))
        is_same = leaf.called == of_layer.called or len(axes_of_layer) == 1
        axes = axes_of_layer if is_same else axes_by_name(alone, of_layer.role or "")
        if axes is not None and shape[place] == count and dict(zip(axes, alone.shape or (), strict=False)) == sizes:
            possible.append((*axes[:place], LAYERS, *axes[place:]))
    return possible[0] if len(possible) == 1 else None


def _is_unambiguous(longer: list[LeafParts], shorter: list[LeafParts]) -> bool:
    """Whether parts that are distinct stay distinct."""
    names: dict[str, str] = {}
    pairs = zip(longer, shorter, strict=True)
    both = [keys for before, after in pairs for keys in zip(before.keys, after.keys, strict=True)]
    return all(names.setdefault(new, old) == old for old, new in both)


# -- names without roles -----------------------------------------------------------------------------------------------

_TORCH_ROLES: dict[str, tuple[str, Names]] = {
    "in_proj_weight": ("attention.qkv", ("out", "in")),
    "in_proj_bias": ("attention.bias", ("out",)),
    "q_proj_weight": ("attention.q", ("out", "in")),
    "k_proj_weight": ("attention.k", ("out", "in")),
    "v_proj_weight": ("attention.v", ("out", "in")),
}
_RNN_AXES = {"weight": ("out", "in"), "bias": ("out",)}

# The layers inside a layer of Flax, and the roles of their leaves.
FLAX_ATTENTION: dict[str, tuple[str, Names]] = {
    **{f"{child}.kernel": (f"attention.{child[0]}", ("in", "heads", "head_dim")) for child in _QKV},
    **{f"{child}.bias": ("bias", ("heads", "head_dim")) for child in _QKV},
    "out.kernel": ("attention.out", ("heads", "head_dim", "out")),
    "out.bias": ("bias", ("out",)),
}
EQUINOX_ATTENTION: dict[str, tuple[str, Names]] = {
    **{f"{child}_proj.weight": (f"attention.{child[0]}", ("out", "in")) for child in _QKV},
    "output_proj.weight": ("attention.out", ("out", "in")),
    **{f"{child}_proj.bias": ("bias", ("out",)) for child in (*_QKV, "output")},
}


def flax_gates(gates: str, spelled: Mapping[str, str] = {}) -> dict[str, tuple[str, Names]]:
    """The roles of the leaves of a cell of Flax with a layer for each gate. `spelled` has other names of layers."""
    rows: dict[str, tuple[str, Names]] = {}
    for gate in gates:
        apart = gate == "n"
        for kind, letter in (("ih", "i"), ("hh", "h")):
            layer = spelled.get(letter + gate, letter + gate)
            rows[f"{layer}.kernel"] = f"rnn.weight_{kind}.{gate}", ("in", "out")
            rows[f"{layer}.bias"] = f"rnn.bias_{kind}.n" if apart else f"rnn.bias.{gate}", ("out",)
    return rows


_STRUCTURES = (FLAX_ATTENTION, EQUINOX_ATTENTION, flax_gates("ifgo"), flax_gates("rzn"))


def role_by_structure(children: Iterable[str], child: str, name: str) -> tuple[str | None, Axes]:
    """The role of the leaf `name` in the layer `child`, and its axes if the layer is not stacked, if the layers beside
    it are all those of attention or of a recurrent cell of Flax, whose names are known."""
    beside = set(children)
    for rows in _STRUCTURES:
        if {row.partition(".")[0] for row in rows} <= beside:
            if f"{child}.{name}" in rows:
                return rows[f"{child}.{name}"]
    return None, None


def _with_siblings(leaves: Sequence[CarriedLeaf]) -> Iterable[tuple[CarriedLeaf, set[str]]]:
    """Each leaf, with the names of the layers beside its own."""
    beside: dict[str, set[str]] = {}
    for leaf in leaves:
        entries = leaf.name.split(".")
        if len(entries) > 1:
            beside.setdefault(".".join(entries[:-2]), set()).add(entries[-2])
    for leaf in leaves:
        yield leaf, beside.get(".".join(leaf.name.split(".")[:-2]), set())


def _with_role_by_name(leaf: CarriedLeaf, beside: set[str]) -> CarriedLeaf:
    """A leaf with the role that its name implies, if it has none, and if that name is unmistakable."""
    if not leaf.has_only_names or leaf.shape is None:
        return leaf
    if leaf.called == "kernel" and f".{leaf.name}".rsplit(".", 2)[1].startswith("ConvTranspose"):
        # The name that Linen gives such a layer, which looks like a convolution and has one of two layouts.
        return leaf._replace(role="conv_transpose.weight", axes=None)
    if leaf.role is not None:
        return leaf
    role: str | None
    axes: Axes
    role, axes = _TORCH_ROLES.get(leaf.called, (None, None))
    if role is None and (match := _RNN_LEAF.fullmatch(leaf.called)) is not None:
        role, axes = f"rnn.{match[1]}", _RNN_AXES[match[1].partition("_")[0]]
    if role is None and "." in leaf.name:
        role, axes = role_by_structure(beside, leaf.name.split(".")[-2], leaf.called)
    if role is None or axes is None or len(axes) != len(leaf.shape):
        return leaf
    return leaf._replace(role=role, axes=axes)


def axes_by_name(leaf: CarriedLeaf, role: str) -> Axes:
    """The axes of a leaf without a role, whose partner has this role: `kernel` is a name of Flax, and `weight` one of
    PyTorch and of Equinox, which have the same layout. None if the name does not say."""
    ndim = len(leaf.shape or ())
    space = ("d", "h", "w")[5 - ndim :] if 3 <= ndim <= 5 else ()
    layouts: dict[tuple[str, str], Names] = {
        ("kernel", "linear.weight"): ("in", "out"),
        ("kernel", "conv.weight"): (*space, "in", "out"),
        ("weight", "linear.weight"): ("out", "in"),
        ("weight", "conv.weight"): ("out", "in", *space),
        ("weight", "bilinear.weight"): ("out", "in1", "in2"),
    }
    role = "linear.weight" if role.startswith("attention.") else role
    axes = layouts.get((leaf.called, role))
    return axes if axes is not None and len(axes) == ndim else None
