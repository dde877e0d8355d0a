"""Weights of one framework for a model of another: how a plan of the model reads the source.

Both sides are taken apart into the parts of layers (`core.roles.layer_parts`), which have the same names in all
frameworks. Each leaf of the model is made from the leaves of the source that have its parts, and their axes are lined
up by name.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import record_of
from leafwise.checkpoint.planning.flattening import flattenings, reordered
from leafwise.checkpoint.planning.plan import Plan, few, the_source
from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.columns import Columns
from leafwise.core.pairing.row_matching import match_names
from leafwise.core.pairing.row_pairs import Side
from leafwise.core.path import listed, plural
from leafwise.core.roles.layer_parts import LAYERS, CarriedLeaf, LeafParts, axes_by_name, is_own_state, parts_of_both
from leafwise.core.roles.named_axes import laid_out, regrouped
from leafwise.core.roles.recipes import (
    Recipe,
    RecipeError,
    Reshaped,
    Shape,
    Summed,
    Taken,
    Zeros,
    concatenated,
    cut,
    stacked,
)
from leafwise.core.tree import Tree
from leafwise.files.record import HeaderRecord
from leafwise.files.stored_file import StoredFile

# What a file records as the beginning of the types of its nodes, and what leaves are called, by framework.
_PACKAGES = {"flax.nnx.": "Flax NNX", "equinox.": "Equinox"}
_NAMES_OF_FLAX = frozenset({"kernel", "embedding"})

# Leaves that leafwise knows, but that have no counterpart in other frameworks.
_HIDDEN_STATISTICS = (
    "Equinox stores these statistics divided by a number that depends on the count of batches; create the BatchNorm "
    'with mode="ema", whose statistics are those of other frameworks'
)
_NOT_CARRIED = dict.fromkeys(("norm.hidden_mean", "norm.hidden_variance"), _HIDDEN_STATISTICS)

_FROM_ONE = "norm.scale_minus_one"
_NOT_FROM_ONE = (
    "one of the norms multiplies by 1 plus its scale, as GemmaRMSNorm does, and the other by its scale, as far as is "
    "known; add or subtract 1 first, or declare the role norm.scale_minus_one with lw.add_roles"
)

_BEHIND_A_WEIGHT = (
    "{} is not the weight: PyTorch computes the weight from it and other leaves; first make it a weight again, with "
    "torch.nn.utils.prune.remove, remove_weight_norm or remove_spectral_norm"
)


class CarriedSource(NamedTuple):
    """How to read a source of another framework, and the names of its leaves that only that framework has."""

    reading: Reading
    dropped: set[str]


def may_be_carried(plan: Plan, target: Side, source: Side) -> bool:
    """Whether the source may have weights of another framework than the model."""
    ours, theirs = _frameworks(plan.target, target.names), _frameworks(plan.source, source.names)
    if ours | theirs not in ({"PyTorch"}, set()) and _may_be_stacked(target.names, source.names):
        return True
    if not ours:  # arrays in containers, which say nothing about their layout
        are_of_torch = theirs == {"PyTorch"} or _is_of_torch(plan.source)
        return _is_of_jax(plan.target) and (are_of_torch or _are_called_weight(source) > _are_called_weight(target))
    if ours == {"PyTorch"} and theirs == {"Flax"}:  # unless the leaves of the model are called like that, too
        of_flax = {name for name in source.names if name.rpartition(".")[2] in _NAMES_OF_FLAX}
        return not of_flax or not of_flax <= set(target.names)
    return ours != theirs and (theirs != frozenset() or ours != {"PyTorch"} or _is_of_jax(plan.source))


_NUMBER = re.compile(r"(?:^|[._])\d+(?=\.)")  # of a layer in a list


def _may_be_stacked(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a leaf of one side has the name of one of the other, but for the number of a layer."""
    first, second = set(names) - set(others), set(others) - set(names)
    unnumbered: dict[str, set[str]] = {}
    for name in first:
        unnumbered.setdefault(_NUMBER.sub("", name).removeprefix("."), set()).add(name)
    return any(
        len(_NUMBER.findall(name)) != len(_NUMBER.findall(other))
        for name in second
        for other in unnumbered.get(_NUMBER.sub("", name).removeprefix("."), ())
    )


def _are_called_weight(side: Side) -> bool:
    return any(name.rpartition(".")[2] == "weight" for name in side.names)


def carried_source(plan: Plan, target: Side, source: Side, row_of: dict[str, int]) -> CarriedSource | None:
    """How to read the source as weights of another framework; None if every leaf would be read as it is. `row_of` has
    the rows of the source by their names after `rename=`."""
    ours, theirs = _frameworks(plan.target, target.names), _frameworks(plan.source, source.names)
    wanted = _leaves(target, target.rows, target.names)
    stored = _leaves(source, list(row_of.values()), list(row_of))
    framework = ", ".join(sorted(theirs)) or ("JAX" if _is_of_jax(plan.source) else "PyTorch")
    carrying = _Carrying(plan, framework, is_torch=theirs == {"PyTorch"} or _is_of_torch(plan.source))
    is_of_torch = _is_of_torch(plan.source)
    is_to_torch = ours == {"PyTorch"}
    by_names = _are_called_weight(source) and ours != {"Equinox"}
    is_from_torch = is_of_torch or theirs == {"PyTorch"} or (not theirs and by_names)  # `weight` is a name of PyTorch
    is_from_other = not is_of_torch and (bool(theirs) or _is_of_jax(plan.source))
    carrying.is_certain = is_from_other if is_to_torch else is_from_torch
    recipes = carrying.recipes(stored, wanted)
    own = {leaf.name for leaf in wanted if is_own_state(leaf)}  # state that both sides have under one name is loaded
    recipes |= {leaf.name: Taken(leaf.name, leaf.shape or ()) for leaf in stored if leaf.name in own}
    same = all(isinstance(recipe, Taken) and recipe.name == name for name, recipe in recipes.items())
    on_both_sides = {leaf.name for leaf in wanted} & {leaf.name for leaf in stored}
    is_complete = all(
        leaf.name in recipes or leaf.name in on_both_sides or is_own_state(leaf) for leaf in (*wanted, *stored)
    )
    in_model = {used: name for name, recipe in recipes.items() for used in recipe.names()} if carrying.is_torch else {}
    candidates = flattenings(stored if carrying.is_torch else wanted, carrying.turned_convolutions, in_model)
    come_last = any("Flax" in name for name in theirs), any("Flax" in name for name in ours)
    recipes |= reordered(recipes, plan.flatten, candidates, wanted, come_last)
    plan.warnings += [
        *carrying.warnings,
        *(flattening.warning() for name, flattening in candidates.items() if name not in plan.flatten),
    ]
    if (not recipes and _weight_names(stored) == _weight_names(wanted)) or (
        same and is_complete and not carrying.refused
    ):
        plan.notes += carrying.copied_note()
        return None
    shapes = {leaf.name: leaf.shape for leaf in stored}
    recipes |= {
        leaf.name: Taken(leaf.name, leaf.shape)
        for leaf in wanted
        if is_own_state(leaf) and leaf.shape is not None and leaf.name not in recipes
        if shapes.get(leaf.name) == leaf.shape
    }
    for name, reason in carrying.refused.items():
        plan.foreign_sources[source.leaf(row_of[name])] = reason
    for name, message in carrying.partly_used:
        plan.add("unexpected", name, message)
    plan.notes += carrying.notes + carrying.copied_note()
    plan.notes += _untied(plan, target, source, row_of, recipes)
    used = {name for recipe in recipes.values() for name in recipe.names()} | on_both_sides
    keeps = frozenset(leaf.name for leaf in wanted if leaf.name not in recipes.keys() | used and is_own_state(leaf))
    what = "counts of batches and random streams are not carried between frameworks"
    dropped = [leaf.name for leaf in stored if leaf.name not in used and is_own_state(leaf)]
    if dropped:
        leaves = plural(len(dropped), "leaf", "leaves")
        plan.notes.append(f"{leaves} of {the_source(plan.source)} not used ({listed(dropped, 3)}): {what}")
    return CarriedSource(Reading(framework, recipes, keeps, what), set(dropped))


def _untied(plan: Plan, target: Side, source: Side, row_of: dict[str, int], recipes: dict[str, Recipe]) -> list[str]:
    """A note for each leaf of the source with several names that become several leaves of the model."""
    leaves = {name: target.leaf(row) for row, name in zip(target.rows, target.names, strict=True)}
    filled: dict[int, dict[str, int]] = {}  # by leaf of the source, its names and the leaves of the model they fill
    for name, recipe in recipes.items():
        for used in recipe.names():
            if (row := row_of[used]) in source.columns.ties or row in source.columns.further_rows:
                filled.setdefault(source.leaf(row), {})[used] = leaves[name]
    return [
        f"{listed(list(names), 3)} are one leaf in {the_source(plan.source)}, and {len(set(names.values()))} in the "
        "model, with equal values"
        for names in filled.values()
        if len(names) > 1 and len(set(names.values())) > 1
    ]


def _frameworks(t: Tree, names: Sequence[str]) -> frozenset[str]:
    """The frameworks whose layers a tree has; empty if that is not known, as for a file with the names of PyTorch."""
    columns = t.columns
    frameworks = _frameworks_of(columns, columns.node_objects)
    record = record_of(columns)
    if record is not None:
        kinds = {node.type for node in record.nodes.values()}
        frameworks |= {name for start, name in _PACKAGES.items() if any(kind.startswith(start) for kind in kinds)}
    frameworks -= {""}
    if not frameworks and (_are_names_of_flax(names) or _has_roles_by_name(t)):
        frameworks = {"Flax"}
    return frozenset(frameworks)


def _frameworks_of(columns: Columns, objects: list[Any]) -> set[str]:
    """The frameworks of the types of nodes or leaves; an empty text for those of none."""
    examples = list({type(obj): obj for obj in objects}.values())
    frameworks: set[str] = set()
    for home, numbers in columns.by_home(examples).items():
        converting = home.capability(Converting)
        frameworks |= {converting.framework(type(examples[number])) for number in numbers}
    return frameworks


def _are_names_of_flax(names: Sequence[str]) -> bool:
    """Whether leaves are called as in Flax, where none is called weight."""
    lasts = {name.rpartition(".")[2] for name in names}
    return bool(lasts & _NAMES_OF_FLAX) and "weight" not in lasts


def _has_roles_by_name(t: Tree) -> bool:
    """Whether containers have arrays whose names imply their roles, like the variables of Flax Linen."""
    roles = t.columns.row_roles(t.rows) if _is_of_jax(t) else []
    return any(role is not None and not role.startswith("rng.") for role, _ in roles)


def _weight_names(leaves: list[CarriedLeaf]) -> set[str]:
    return {leaf.called for leaf in leaves} & {"weight", "kernel"}


def _is_of_torch(t: Tree) -> bool:
    """Whether arrays without layers are certainly of PyTorch: its tensors, or a file that it wrote."""
    root = t.columns.node_objects[0]
    if isinstance(root, StoredFile):
        return root.format.startswith(("PyTorch", "TorchScript", "torch"))
    return _frameworks_of(t.columns, t.columns.row_values) == {"PyTorch"}


def _is_of_jax(t: Tree) -> bool:
    """Whether arrays in memory, without layers, are those of JAX."""
    return not t.is_file and any(home.roles_by_name for home in t.columns.homes)


def _leaves(side: Side, rows: Sequence[int], names: Sequence[str]) -> list[CarriedLeaf]:
    columns = side.columns
    record = record_of(columns)
    in_dicts = _saved_in_dicts(record, columns.keys(rows, 0)) if record is not None else [False] * len(rows)
    roles = columns.row_roles(rows)
    return [
        CarriedLeaf(
            name,
            side.spec(row).shape,
            role,
            axes,
            (is_in_dict and role is None)
            if record is not None
            else not columns.home(columns.node_objects[columns.row_nodes[row]]).roles_by_class,
            columns.row_names[row].rpartition(".")[2],
        )
        for row, name, is_in_dict, (role, axes) in zip(rows, names, in_dicts, roles, strict=True)
    ]


def _saved_in_dicts(record: HeaderRecord, keys: Sequence[str]) -> list[bool]:
    """For each key of a leaf, whether leafwise saved it as an item of a dict, such as a state dict, and not of a layer.
    Dicts whose items are not recorded do not count."""
    dicts = {key: node.keys for key, node in record.nodes.items() if node.type in ("dict", "collections.OrderedDict")}
    items = {f"{key}.{name}".removeprefix(".") for key, names in dicts.items() for name, _ in names or ()}
    whole = {key for key, names in dicts.items() if names is None}
    return [key in items or key.rpartition(".")[0] in whole for key in keys]


class _Piece(NamedTuple):
    """One part of a leaf: the number of the part, and all parts of the leaf."""

    of: LeafParts
    number: int


class _Carrying:
    """Makes the recipes of the leaves of a model, and collects what cannot be made."""

    def __init__(self, plan: Plan, framework: str, is_torch: bool) -> None:
        self._source, self._framework, self.is_torch = the_source(plan.source), framework, is_torch
        self.is_certain = False  # whether the source is known to be of another framework
        self.turned_convolutions: set[str] = set()  # whose channels come last on one side only, by both names
        self._copied: list[CarriedLeaf] = []  # leaves of which no side says what their axes are
        self._convolutions: list[CarriedLeaf] = []  # kernels that only names describe on both sides
        self._given: dict[str, list[_Piece]] = {}  # by part of the model, the parts of the source
        self._needed: dict[str, list[_Piece]] = {}  # by part of the model, where it is in its leaves
        self._computed: tuple[set[str], set[str]] = set(), set()  # by side, leaves that a weight is computed from
        self.refused: dict[str, str] = {}
        self.partly_used: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def recipes(self, stored: list[CarriedLeaf], wanted: list[CarriedLeaf]) -> dict[str, Recipe]:
        self._computed = _names_behind_weights(stored), _names_behind_weights(wanted)
        sources, targets = parts_of_both(list(filter(_has_parts, stored)), list(filter(_has_parts, wanted)))
        given, self._needed = _pieces(sources), _pieces(targets)
        keys, their_keys = list(self._needed), list(given)
        partners = {keys[ours]: their_keys[theirs] for ours, theirs in match_names(keys, their_keys).sources.items()}
        self._given = {key: given[partner] for key, partner in partners.items()}
        for key in keys:
            # A cell without this bias is one whose bias is zero, if it has the others.
            if key not in self._given and key.endswith("bias_hh.n") and _sibling(key) in self._given:
                self._given[key] = []
        taken = set(partners.values())
        by_name = {parts.leaf.name: parts for parts in sources if taken.isdisjoint(parts.keys)}
        for number, parts in enumerate(targets):  # what rename= pairs is not ignored, whatever part it is
            other = by_name.get(parts.leaf.name)
            if other is not None and self._given.keys().isdisjoint(parts.keys):
                targets[number] = LeafParts(parts.leaf, (parts.leaf.name,))
                self._given[parts.leaf.name] = [_Piece(LeafParts(other.leaf, (parts.leaf.name,)), 0)]
                self._needed[parts.leaf.name] = [_Piece(targets[number], 0)]
                taken.update(other.keys)
        recipes = {
            parts.leaf.name: self._made(parts) for parts in targets if all(key in self._given for key in parts.keys)
        }
        self._note_biases(recipes)
        self._note_convolutions()
        self._warn_of_copied()
        for parts in sources:
            unused = [key for key in parts.keys if key not in taken]
            if unused and len(unused) < len(parts.keys):
                name, listing = parts.leaf.name, ", ".join(unused)
                message = f"a part of {name} in {self._source} has no place in the model: {listing}"
                self.partly_used.append((name, message))
        return recipes

    def _note_convolutions(self) -> None:
        names = [leaf.name for leaf in self._convolutions]
        if names:
            self.notes.append(f"read as convolutions, not as transposed ones: {few(names)}")
        # A transposed convolution read as a convolution has another shape, unless it has as many inputs as outputs.
        square = [leaf.name for leaf in self._convolutions if _has_equal_channels(leaf)]
        if square:
            self.warnings.append(
                f"{listed(square, 3)}: read as convolutions; names and shapes do not show whether these are transposed "
                "convolutions, which have another layout; if they are, load from the model itself"
            )

    def copied_note(self) -> list[str]:
        names = [leaf.name for leaf in self._copied]
        return [f"copied as they are, because no side says what their axes are: {few(names)}"] if names else []

    def _warn_of_copied(self) -> None:
        square = [leaf.name for leaf in self._copied if len(set(leaf.shape or ())) < len(leaf.shape or ())]
        if square and self.is_certain:
            self.warnings.append(
                f"{listed(square)}: copied from another framework, which may store them transposed; names and "
                "shapes do not show it; declare their roles with lw.add_roles"
            )

    def _note_biases(self, recipes: dict[str, Recipe]) -> None:
        added = [name for name, recipe in recipes.items() if "summed" in recipe.words()]
        zero = [name for name, recipe in recipes.items() if "zeros" in recipe.words()]
        if added:
            self.notes.append(
                f"where the model has one bias and {self._framework} has two, it is their sum: {few(added)}"
            )
        if zero:
            self.notes.append(
                f"where the model has two biases and {self._framework} has one, the second becomes zero: {few(zero)}"
            )

    def _made(self, target: LeafParts) -> Recipe:
        """A leaf of the model from the parts of the source."""
        leaf = target.leaf
        shares = [self._given[key] for key in target.keys]
        first = next(share for share in (*shares, *(self._given[_sibling(key)] for key in target.keys)) if share)[0]
        try:
            if all(self._is_first(target, key) for key in target.keys) and _are_whole(target, shares):
                whole = [self._turned(parts.of, None, target, leaf.shape) for parts in shares[0]]
                return whole[0] if len(whole) == 1 else Summed(tuple(whole))
            if not any(self._is_first(target, key) for key in target.keys):
                return Zeros(Taken(first.of.leaf.name, first.of.leaf.shape or ()), leaf.shape or ())
            made = [self._part(target, key) for key in target.keys]
            if target.along == LAYERS:
                return stacked(made, _place(leaf.axes, LAYERS))
            return made[0] if len(made) == 1 else concatenated(made, _place(leaf.axes, target.along))
        except RecipeError as error:
            self.refused[first.of.leaf.name] = f"cannot become {leaf.name}: {error}"
            return Taken(first.of.leaf.name, first.of.leaf.shape or ())

    def _part(self, target: LeafParts, key: str) -> Recipe:
        shape, share = _part_shape(target), self._given[key]
        if not share:  # zero, like a bias that the cell of the source does not have
            other = self._given[_sibling(key)][0].of.leaf
            return Zeros(Taken(other.name, other.shape or ()), shape or ())
        parts = [self._turned(piece.of, piece.number, target, shape) for piece in share]
        total = parts[0] if len(parts) == 1 else Summed(tuple(parts))
        return total if self._is_first(target, key) else Zeros(total, total.shape)

    def _is_first(self, target: LeafParts, key: str) -> bool:
        """Whether a leaf is the first with this part: if a cell has two biases that are added, the other is zero."""
        names = (piece.of.leaf.name for piece in self._needed[key])
        return min(names, key=lambda name: "bias_hh" in name) == target.leaf.name

    def _turned(self, source: LeafParts, number: int | None, target: LeafParts, shape: Shape | None) -> Recipe:
        """A leaf of the source, or one of its parts, with the axes of a leaf of the model."""
        axes, wanted = self._axes(source.leaf, target.leaf)
        recipe: Recipe = Taken(source.leaf.name, source.leaf.shape or ())
        if number is not None and source.along == LAYERS:
            axis = _place(source.leaf.axes, LAYERS)
            layer = cut(recipe, axis, [1] * len(source.keys))[number]
            recipe = Reshaped(layer, (*layer.shape[:axis], *layer.shape[axis + 1 :]))
            axes = axes and tuple(name for name in axes if name != LAYERS)
        elif number is not None and len(source.keys) > 1:
            axis = _place(axes, "out")
            size, rest = divmod(recipe.shape[axis], len(source.keys))
            if rest:
                raise RecipeError(f"{recipe.shape[axis]} outputs cannot be {len(source.keys)} equal parts")
            recipe = cut(recipe, axis, [size] * len(source.keys))[number]
        if target.along == LAYERS:
            wanted = wanted and tuple(name for name in wanted if name != LAYERS)
        if axes is None or wanted is None:
            return recipe
        if target.leaf.role == "conv.weight" or source.leaf.role == "conv.weight":
            if (axes[0] == "out") != (wanted[0] == "out"):
                self.turned_convolutions |= {source.leaf.name, target.leaf.name}
        if target.leaf.role == "conv_transpose.weight":
            recipe = regrouped(recipe, axes, wanted, shape)
        return laid_out(recipe, axes, wanted, shape)

    def _axes(self, source: CarriedLeaf, target: CarriedLeaf) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """The axes of both leaves, from their roles, or from a name and the role of the other. None for both if the
        leaf is read as it is."""
        self._check_carried(source, target)
        if _are_biases_by_name(source, target):
            return None, None
        if source.role is not None and target.role is not None:
            if _kind(source.role) != _kind(target.role):
                raise RecipeError(f"its role is {source.role} there and {target.role} in the model")
            if source.axes is not None and target.axes is not None:
                return source.axes, target.axes
        elif source.role is not None and source.axes is not None:
            if (axes := self._by_name(target, source)) is not None:
                return source.axes, axes
        elif target.role is not None and target.axes is not None:
            if (axes := self._by_name(source, target)) is not None:
                return axes, target.axes
        elif source.called == target.called:  # a new name does not change a layout
            if len(source.shape or ()) > 1:
                self._copied.append(target)
            return None, None
        if len(source.shape or ()) <= 1 and len(target.shape or ()) <= 1:
            return None, None
        raise RecipeError(
            "the order of its axes is not known; declare the role of the leaf with lw.add_roles, or save the model "
            "that it is from with lw.save, which records roles"
        )

    def _check_carried(self, source: CarriedLeaf, target: CarriedLeaf) -> None:
        """Raises if one of the leaves has no counterpart in other frameworks."""
        if (source.role == _FROM_ONE) != (target.role == _FROM_ONE):
            raise RecipeError(_NOT_FROM_ONE)
        for leaf, computed in zip((source, target), self._computed, strict=True):
            if leaf.role in _NOT_CARRIED:
                raise RecipeError(_NOT_CARRIED[leaf.role])
            if leaf.name in computed:
                raise RecipeError(_BEHIND_A_WEIGHT.format(leaf.name))

    def _by_name(self, leaf: CarriedLeaf, partner: CarriedLeaf) -> tuple[str, ...] | None:
        """The axes of a leaf without a role, from its name and the role of its partner."""
        ndim, role = len(leaf.shape or ()), partner.role or ""
        if not leaf.has_only_names:
            return None
        if role == "conv_transpose.weight":
            if leaf.called == "weight" and self.is_torch and partner.axes is not None:
                return ("in", "out", *(axis for axis in ("d", "h", "w") if axis in map(_bare, partner.axes)))
            raise RecipeError(
                "frameworks store transposed convolutions in different ways, and names do not say which this is; save "
                "the model that it is from with lw.save, which records the axes, or load from the model itself"
            )
        if role == "conv.weight" and partner.has_only_names:
            self._convolutions.append(leaf)
        if role.startswith(("norm.", "embedding.", "activation.")) and partner.axes is not None:
            return partner.axes if len(partner.axes) == ndim else ("features",) * min(ndim, 1)
        if role == "bias" and ndim == 1:
            return ("out",)
        return axes_by_name(leaf, role)


def warn_of_layouts(plan: Plan) -> None:
    """Warns of square weights that the source calls otherwise than the model, without saying what their axes are."""
    ours, theirs = plan.target.columns, plan.source.columns
    doubtful = []
    for feed in plan.feeds if not plan.is_carried and not _is_of_torch(plan.source) else ():
        if ours.row_names[feed.row] == _last(theirs.row_names[feed.source]) or feed.source in plan.recipes:
            continue  # as almost always
        (role, axes), shape = ours.row_role(feed.row), ours.facts([feed.row])[0].spec.shape or ()
        is_weight = role is None or (axes is not None and "out" in axes)
        if is_weight and len(shape) > 1 and len(set(shape)) < len(shape) and theirs.row_role(feed.source)[0] is None:
            doubtful.append(feed.name)
    if doubtful:
        plan.warnings.append(
            f"{listed(doubtful)}: the source calls {'it' if len(doubtful) == 1 else 'them'} otherwise, and neither "
            "names nor shapes show whether it stores them transposed; load from the model that they are from"
        )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _has_parts(leaf: CarriedLeaf) -> bool:
    return leaf.shape is not None and not is_own_state(leaf)


def _names_behind_weights(leaves: list[CarriedLeaf]) -> set[str]:
    """The names of leaves that have the role of a weight, but from which a layer of PyTorch computes it: pruning and
    spectral norm keep `weight_orig`, and the older weight norm keeps `weight_v` beside `weight_g`."""
    names = {leaf.name for leaf in leaves}
    return {
        name
        for name in names
        if (name.endswith("_orig") and {name[:-4] + "mask", name[:-4] + "u"} & names)
        or (name.endswith("_v") and name[:-1] + "g" in names)
    }


def _has_equal_channels(leaf: CarriedLeaf) -> bool:
    """Whether a kernel has as many inputs as outputs: the last two axes in Flax, the first two elsewhere."""
    shape = leaf.shape or (1, 1)
    first, second = shape[-2:] if leaf.called == "kernel" else shape[:2]
    return first == second


def _bare(axis: str) -> str:
    return axis.removeprefix("-")


def _are_biases_by_name(source: CarriedLeaf, target: CarriedLeaf) -> bool:
    """Whether both are biases, and a name, which does not show of what layer, makes one of them that of a norm."""
    is_by_name = source.has_only_names or target.has_only_names
    return is_by_name and {source.role, target.role} == {"bias", "norm.bias"}


def _kind(role: str) -> str:
    """What a role is in every framework: the projections of attention are linear layers."""
    if role in ("attention.q", "attention.k", "attention.v", "attention.out", "attention.qkv"):
        return "linear.weight"
    if role.startswith("rnn."):
        return "rnn.weight" if "weight" in role else "rnn.bias"
    return "bias" if role == "attention.bias" else role


def _pieces(side: Iterable[LeafParts]) -> dict[str, list[_Piece]]:
    pieces: dict[str, list[_Piece]] = {}
    for parts in side:
        for number, key in enumerate(parts.keys):
            pieces.setdefault(key, []).append(_Piece(parts, number))
    return pieces


def _sibling(key: str) -> str:
    """The bias beside the one that some cells do not have."""
    return key.removesuffix("bias_hh.n") + "bias_ih.n" if key.endswith("bias_hh.n") else key


def _are_whole(target: LeafParts, shares: list[list[_Piece]]) -> bool:
    """Whether leaves of the source have the same parts as a leaf of the model, in the same order."""
    places = [(piece.of.leaf.name, len(piece.of.keys), piece.number) for piece in shares[0]]
    count = len(target.keys)
    if not shares[0] or any(number or parts != count for _, parts, number in places):
        return False
    return all(
        [(piece.of.leaf.name, piece.number) for piece in share] == [(name, number) for name, _, _ in places]
        for number, share in enumerate(shares)
    )


def _place(axes: tuple[str, ...] | None, along: str) -> int:
    """The axis along which the parts of a leaf follow each other."""
    if axes is None or along not in axes:
        raise RecipeError("its axis of outputs is not known")
    return axes.index(along)


def _part_shape(target: LeafParts) -> Shape | None:
    shape, count = target.leaf.shape, len(target.keys)
    if shape is None or (count == 1 and target.along != LAYERS):
        return shape
    axis = _place(target.leaf.axes, target.along)
    size = () if target.along == LAYERS else (shape[axis] // count,)
    return (*shape[:axis], *size, *shape[axis + 1 :])
