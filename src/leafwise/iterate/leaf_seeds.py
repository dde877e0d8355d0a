"""What seeds the random numbers of a leaf: the name of its part, which is the same in every framework.

Where PyTorch has one leaf and another framework has several, as the three projections of attention and the gates of
recurrent cells, these are parts of one array of random numbers, one after the other.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from leafwise.core.columns import Columns
from leafwise.core.roles.layer_parts import GATES, CarriedLeaf, LeafParts, parts_of

_PROJECTIONS = ("query", "key", "value")
PROJECTION_ROLES = ("attention.q", "attention.k", "attention.v")


class LeafSeed(NamedTuple):
    """The name that seeds the random numbers of a leaf, and which of its rows the leaf begins with."""

    name: str
    first_row: int = 0


def leaf_seeds(columns: Columns, rows: Sequence[int]) -> list[LeafSeed]:
    """What seeds the random numbers of each leaf."""
    all_rows = range(len(columns.row_names))
    names, roles = columns.keys(all_rows, 0), columns.row_roles(all_rows)
    needs_shapes = any(role is not None and role.startswith(("rnn.", "attention.")) for role, _ in roles)
    shapes = [facts.spec.shape for facts in columns.facts(all_rows)] if needs_shapes else [None] * len(names)
    leaves = [
        CarriedLeaf(name, shape, role, axes, has_only_names=False, called=columns.row_names[row])
        for row, name, shape, (role, axes) in zip(all_rows, names, shapes, roles, strict=True)
    ]
    parts = parts_of(leaves)
    fused = _fused_projections(parts)
    seeds = [_seed(part, fused) for part in parts]
    count = Counter(seeds)
    # Two leaves never get the same numbers, whatever their names.
    return [seeds[row] if count[seeds[row]] == 1 else LeafSeed(names[row]) for row in rows]


def _seed(parts: LeafParts, fused: set[str]) -> LeafSeed:
    leaf, keys, _ = parts
    if (leaf.role or "").startswith("rnn."):
        return _seed_in_cell(leaf, keys[0].split(".")[:-2])
    layer, projection, part = _of_projection(keys[0])
    if len(keys) > 1 or projection not in _PROJECTIONS or _joined(layer, part) not in fused:
        return LeafSeed(keys[0])
    return LeafSeed(_joined(layer, _PROJECTIONS[0], part), _PROJECTIONS.index(projection) * _count_of_rows(leaf))


def _seed_in_cell(leaf: CarriedLeaf, cell: list[str]) -> LeafSeed:
    """The one bias of a gate in JAX is the first one of PyTorch."""
    kind, _, gate = (leaf.role or "").removeprefix("rnn.").partition(".")
    name = _joined(*cell, "bias_ih" if kind == "bias" else kind)
    if "layers" in (leaf.axes or ()):
        return LeafSeed(_joined(name, gate))
    gates = next((gates.names for gates in GATES.values() if gate in gates.names), ("",))
    return LeafSeed(name, gates.index(gate) * _count_of_rows(leaf) if gate else 0)


def _fused_projections(parts: list[LeafParts]) -> set[str]:
    """The weights and biases of layers of attention whose query, key and value have one shape, so that they are one
    leaf in PyTorch."""
    shapes: dict[str, dict[str, object]] = {}
    layers = set()
    for leaf, keys, _ in parts:
        layer, projection, part = _of_projection(keys[0])
        if len(keys) == 1 and projection in _PROJECTIONS and "layers" not in (leaf.axes or ("layers",)):
            shapes.setdefault(_joined(layer, part), {})[projection] = leaf.shape
            if leaf.role in PROJECTION_ROLES:
                layers.add(layer)
    fused = {key for key, of_key in shapes.items() if len(of_key) == 3 and len(set(of_key.values())) == 1}
    return {key for layer in layers for key in (_joined(layer, "weight"), _joined(layer, "bias")) if key in fused}


def _count_of_rows(leaf: CarriedLeaf) -> int:
    """The size of the axis in which random numbers are numbered first."""
    sizes = dict(zip(leaf.axes or (), leaf.shape or (), strict=False))
    return sizes.get("heads") or sizes.get("out") or 1


def _of_projection(key: str) -> tuple[str, str, str]:
    """The name of a layer, a layer inside it, and a part of that."""
    owner, _, part = key.rpartition(".")
    layer, _, projection = owner.rpartition(".")
    return layer, projection, part


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)
