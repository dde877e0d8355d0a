"""Where the parameters of a stored optimizer are in an optimizer of the model: the group, and the position in it."""

from collections.abc import Iterable

from leafwise.checkpoint.planning.plan import Plan, the_source
from leafwise.checkpoint.planning.saved_optimizers import SavedOptimizers, seen_from
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.columns import Columns
from leafwise.core.pairing.row_pairs import Pairing
from leafwise.core.tree import Tree
from leafwise.errors import WalkError

Place = tuple[int, int]  # the group, and the position in it


class TargetOptimizer:
    """An optimizer of the target: the names and the arrays of its parameters, group by group."""

    def __init__(self, plan: Plan, node: int) -> None:
        columns = plan.target.columns
        self.optimizer = optimizer = columns.node_objects[node]
        self.stepping = columns.home(optimizer).capability(Stepping)
        self.kind = self.stepping.kind(optimizer)
        self.groups = _groups(plan.target, node)
        self.places = [(number, at) for number, names in enumerate(self.groups) for at in range(len(names))]
        self.names = dict(zip(self.places, [name for names in self.groups for name in names], strict=True))
        self.by_name = {name: place for place, name in self.names.items()}
        values = dict(zip(self.places, (value for _, value in self.stepping.held_by(optimizer)), strict=True))
        self.specs = {place: columns.home(value).spec(value) for place, value in values.items()}
        self.by_identity = {id(value): place for place, value in values.items()}
        self.is_numbered = is_numbered(self.by_name)


def is_numbered(names: Iterable[str]) -> bool:
    """Whether parameters have numbers instead of names, as in the state dicts of PyTorch."""
    return all(name.isdecimal() for name in names)


def places_of(
    plan: Plan,
    who: str,
    target: TargetOptimizer,
    groups: list[list[str]],
    from_root: dict[str, str],
    source: SavedOptimizers,
    pairing: Pairing,
) -> dict[str, Place | None]:
    """For each parameter of the source, its place in the target: found by the leaf that it fills, whatever its name, or
    by position if one side only numbers its parameters, as PyTorch does."""
    names = [name for group in groups for name in group]
    if target.is_numbered or is_numbered(names):
        theirs, ours = ([len(group) for group in side] for side in (groups, target.groups))
        if theirs != ours:
            sizes = [" + ".join(map(str, side)) or "none" for side in (theirs, ours)]
            message = (
                f"the parameters of {who} are only numbered, and their groups differ: {sizes[0]} parameters in "
                f"{the_source(plan.source)}, {sizes[1]} in the model; create the optimizer with the same groups, or "
                "save it with the names of its parameters: with lw.save, or made from model.named_parameters()"
            )
            plan.add("unsupported", who, message)
        elif not (target.is_numbered and is_numbered(names)):
            plan.notes.append(f"{who}: one side only numbers its parameters, so they are matched by position")
        return dict(zip(names, [*target.places, *[None] * len(names)], strict=False))
    columns = plan.target.columns
    places: dict[str, Place | None] = {}
    for name in names:
        leaves = filled_by(source, from_root.get(name, name), pairing)
        if leaves:
            stepped = (target.by_identity.get(id(columns.current(leaf))) for leaf in leaves)
            places[name] = next((place for place in stepped if place), None)
        else:
            places[name] = target.by_name.get(name)
    if not any(places.values()):
        # The source has an optimizer without its model, with names relative to that.
        return _places_by_ends(names, target) or places
    return places


def _places_by_ends(names: list[str], target: TargetOptimizer) -> dict[str, Place | None] | None:
    """The places of parameters whose names are the ends of names in the target. None unless all of them are found, and
    the rest of the name is the same for all."""
    first = names[0] if names else ""
    prefixes = {ours.removesuffix(first) for ours in target.by_name if ours.endswith(f".{first}")}
    complete = [prefix for prefix in prefixes if all(prefix + name in target.by_name for name in names)]
    return {name: target.by_name[complete[0] + name] for name in names} if len(complete) == 1 else None


def names_from_root(
    names: list[str], target: TargetOptimizer, source: SavedOptimizers, pairing: Pairing
) -> dict[str, str]:
    """The names of parameters from the root of the source. PyTorch names them relative to the model; if the source
    contains several models with these parameters, the one counts whose weights the optimizer of the target steps."""
    if not names or all(name in source.rows for name in names):
        return {}
    columns = pairing.target.columns
    for row in source.rows:
        if not row.endswith(f".{names[0]}"):
            continue
        from_root = {name: row.removesuffix(names[0]) + name for name in names}
        leaves = (leaf for name in from_root.values() for leaf in filled_by(source, name, pairing))
        stepped = (id(columns.current(leaf)) in target.by_identity for leaf in leaves)
        if all(name in source.rows for name in from_root.values()) and any(stepped):
            return from_root
    return {}


def target_groups(target: TargetOptimizer, places: dict[str, Place | None]) -> list[list[str]]:
    """The parameters of the source in the groups of the target, and those that the target does not have."""
    groups: list[list[str]] = [[] for _ in target.groups]
    others: list[str] = []
    for name, place in places.items():
        (others if place is None else groups[place[0]]).append(name)
    return [*groups, *([others] if others else [])]


def places_by_names(
    target: TargetOptimizer, groups: list[list[str]], names_of_groups: list[list[str] | None]
) -> dict[str, Place | None] | None:
    """The places of numbered parameters in the target, by the names that PyTorch stores beside the numbers if the
    optimizer was created with names. None if there are no names, or if they are ambiguous."""
    if not all(number.isdecimal() for numbers in groups for number in numbers):
        return None
    places: dict[str, Place | None] = {}
    for numbers, names in zip(groups, names_of_groups, strict=True):
        if names is None or len(names) != len(numbers):
            return None
        for number, name in zip(numbers, names, strict=True):
            ends = [place for place, ours in target.names.items() if f".{ours}".endswith(f".{name}")]
            if len(ends) != 1 or ends[0] in places.values():
                return None
            places[number] = ends[0]
    return places if len(places) == sum(map(len, groups)) else None


def filled_by(source: SavedOptimizers, name: str, pairing: Pairing) -> list[int]:
    """The leaves of the target that a leaf of the source fills, under any of its names."""
    row = source.rows.get(name)
    if row is None:
        return []
    rows = pairing.source.columns.rows_of(pairing.source.leaf(row))
    targets = [pairing.target_of.get(row) for row in rows]
    return [pairing.target.leaf(target) for target in targets if target is not None]


def group_nodes(columns: Columns, node: int) -> list[int]:
    groups = next((child for child in columns.children(node) if columns.node_names[child] == "param_groups"), None)
    if groups is None:
        name = columns.node_text(node) or "the optimizer"
        raise WalkError(f"cannot plan {name}: it has no node param_groups; see the capability Stepping")
    return list(columns.children(groups))


def _groups(t: Tree, node: int) -> list[list[str]]:
    """The names of the parameters of each group, as the walk lists them, relative to the tree."""
    columns = t.columns
    groups = []
    for group in group_nodes(columns, node):
        listed = next(value for name, value in columns.own_scalars[group] if name == "params")
        groups.append([seen_from(t.path.names, name) for name in listed])
    return groups
