"""Layers behind a convolution whose output is flattened: between a framework where channels come first and one where
they come last, their inputs have another order. `flatten=` of `lw.load` reorders them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leafwise.core.path import listed
from leafwise.core.roles.layer_parts import CarriedLeaf
from leafwise.core.roles.recipes import Recipe, Reshaped, Turned
from leafwise.errors import QueryError


class Flattening(NamedTuple):
    """A leaf of the model whose inputs may be the flattened output of a convolution: the number of its inputs, and the
    name and the channels of the convolution."""

    name: str
    inputs: int
    convolution: str
    channels: int

    def warning(self) -> str:
        positions = self.inputs // self.channels
        return (
            f"{self.name}: if its {self.inputs:,} inputs are the flattened output of {self.convolution} "
            f"({positions:,} positions of {self.channels:,} channels), they have another order where channels come "
            f'last; pass flatten="{self.name}" to reorder them'
        )


def flattenings(leaves: list[CarriedLeaf], turned: set[str], names: Mapping[str, str]) -> dict[str, Flattening]:
    """The leaves of linear layers behind a convolution whose channels come last in one of the frameworks (`turned` has
    its names), if their inputs may be the positions of all channels. `leaves` are those of PyTorch, in the order of its
    layers, and `names` has the name in the model of each."""
    candidates: dict[str, Flattening] = {}
    before: tuple[CarriedLeaf, int] | None = None
    for leaf in leaves:
        shape = leaf.shape or ()
        if leaf.name in turned:
            before = leaf, shape[0] if leaf.called == "weight" else shape[-1]
        elif len(shape) > 1 and before is not None:
            inputs = shape[-1] if leaf.called == "weight" else shape[0]
            (convolution, channels), before = before, None
            if len(shape) == 2 and inputs > channels and inputs % channels == 0:
                name = names.get(leaf.name, leaf.name)
                candidates[name] = Flattening(name, inputs, convolution.name, channels)
    return candidates


def asked_channels(flatten: Any) -> dict[str, int | None]:
    """The argument `flatten=`: names of leaves, with the number of channels if it is given."""
    if isinstance(flatten, str):
        return {flatten: None}
    if flatten is None or isinstance(flatten, list | tuple | set):
        flatten = dict.fromkeys(flatten or ())
    is_dict = isinstance(flatten, Mapping) and all(isinstance(name, str) for name in flatten)
    if not is_dict or not all(count is None or (type(count) is int and count > 0) for count in flatten.values()):
        raise QueryError(
            "flatten= takes the name of a leaf of the model, a list of names, or a dict of names and the numbers of "
            f"channels, not {flatten!r:.100}"
        )
    return dict(flatten)


def reordered(
    recipes: dict[str, Recipe],
    asked: dict[str, int | None],
    candidates: dict[str, Flattening],
    wanted: Sequence[CarriedLeaf],
    channels_come_last: tuple[bool, bool],
) -> dict[str, Recipe]:
    """The recipes of the leaves that `flatten=` names, with their inputs in the order of the model. The flags are those
    of the source and of the model."""
    by_name = {leaf.name: leaf for leaf in wanted}
    if unknown := [name for name in asked if name not in by_name or name not in recipes]:
        raise QueryError(f"flatten= names {listed(unknown, 3)}, which gets no value; it takes names of the model")
    if asked and channels_come_last[0] == channels_come_last[1]:
        raise QueryError("flatten= is not needed here: channels come in the same place in the source and in the model")
    return {
        name: _reordered(by_name[name], recipes[name], _channels(name, count, candidates), channels_come_last[0])
        for name, count in asked.items()
    }


def _channels(name: str, count: int | None, candidates: dict[str, Flattening]) -> int:
    if count is not None:
        return count
    if name not in candidates:
        raise QueryError(
            f"flatten= names {name}, but leafwise sees no convolution in front of it; give the number of channels: "
            f'flatten={{"{name}": 16}}'
        )
    return candidates[name].channels


def _reordered(leaf: CarriedLeaf, recipe: Recipe, channels: int, is_last_in_source: bool) -> Recipe:
    shape = recipe.shape
    axes = (
        ("in",) if len(shape) == 1 else leaf.axes or {"weight": ("out", "in"), "kernel": ("in", "out")}.get(leaf.called)
    )
    if axes is None or "in" not in axes:
        raise QueryError(f"flatten= names {leaf.name}, whose axis of inputs is not known; declare its role first")
    axis = axes.index("in")
    positions, rest = divmod(shape[axis], channels)
    if rest:
        raise QueryError(
            f"flatten=: the {shape[axis]:,} inputs of {leaf.name} are not a multiple of {channels} channels"
        )
    parts = (positions, channels) if is_last_in_source else (channels, positions)
    apart = Reshaped(recipe, (*shape[:axis], *parts, *shape[axis + 1 :]))
    order = (*range(axis), axis + 1, axis, *range(axis + 2, len(shape) + 1))
    return Reshaped(Turned(apart, order, _ORDERS[is_last_in_source]), shape)


_ORDERS = {True: "positions, channels → channels, positions", False: "channels, positions → positions, channels"}
