"""The state of an optimizer by the names of its parameters, whatever their order and their groups."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leafwise.core.columns import Columns
from leafwise.core.path import Path
from leafwise.core.tree import Tree

if TYPE_CHECKING:
    from leafwise.checkpoint.planning import Plan

Place = tuple[int, int]  # the group, and the position in it


class OptimizerPlan:
    """What an optimizer gets: for each of its parameters the rows and plain values of its state in the source, by their
    keys; and for groups with the same parameters as one of the source, its options."""

    def __init__(self, node: int, path: str) -> None:
        self.node, self.path = node, path
        self.states: dict[Place, dict[str, int]] = {}
        self.values: dict[Place, dict[str, Any]] = {}
        self.options: dict[int, dict[str, Any]] = {}
        self.option_rows: dict[int, dict[str, int]] = {}


def optimizer_nodes(columns: Columns, below: int) -> list[int]:
    """The nodes that are optimizers."""
    nodes = range(below, columns.node_ends[below])
    return [node for node in nodes if columns.home(obj := columns.node_objects[node]).steps(obj)]


def plan_optimizers(
    plan: "Plan", nodes: list[int], target_of_source: Callable[[str], str | None]
) -> list[OptimizerPlan]:
    if not nodes:
        return []
    fronts = plan.target._columns.node_keys(plan.target._node)
    source = _Source(plan.source)
    return [_planned(plan, node, fronts[node], source, target_of_source) for node in nodes]


class _Source:
    """Rows and plain values of the source, by name."""

    def __init__(self, s: Tree) -> None:
        columns = s._columns
        self.rows = dict(zip(columns.keys(s._rows, s._node), s._rows, strict=True))
        fronts = columns.node_keys(s._node)
        self.values = {
            f"{fronts[node]}.{name}" if fronts[node] else name: value
            for node, name, value in columns.scalars
            if node in fronts
        }

    def groups(self, front: str) -> list[list[str]]:
        """The names of the parameters of each group of an optimizer."""
        groups: list[list[str]] = []
        while (params := self.values.get(f"{front}param_groups.{len(groups)}.params")) is not None:
            groups.append([".".join(Path.parse(str(name)).names) for name in params])
        return groups


def _planned(
    plan: "Plan", node: int, path: str, source: _Source, target_of_source: Callable[[str], str | None]
) -> OptimizerPlan:
    found = OptimizerPlan(node, path)
    front = f"{path}." if path else ""
    ours = _groups(plan.target, node)
    theirs = source.groups(front)
    if not theirs:
        plan.found("missing", path or "the optimizer", f"no optimizer in the source for {path or 'this one'}")
        return found
    place_of = {name: (which, at) for which, names in enumerate(ours) for at, name in enumerate(names)}
    by_number = all(name.isdecimal() for names in theirs for name in names)
    counted = [name for names in ours for name in names]
    if by_number and not all(name.isdecimal() for name in counted):
        # As PyTorch saves them, by order alone.
        plan.notes.append(f"{path or 'the optimizer'}: the source numbers its parameters; taken in their order")

    def place(name: str) -> Place | None:
        if by_number:
            return place_of.get(name) or (place_of[counted[int(name)]] if int(name) < len(counted) else None)
        return place_of.get(name) or place_of.get(target_of_source(name) or "")

    places = {name: place(name) for names in theirs for name in names}
    _plan_states(plan, found, front, source, places)
    _plan_options(plan, found, front, source, theirs, places, ours)
    return found


def _groups(t: Tree, node: int) -> list[list[str]]:
    """The names of the parameters of each group, as the walk lists them, seen from the tree."""
    columns = t._columns
    groups = next(child for child in columns.children(node) if columns.node_names[child] == "param_groups")
    here = t.path.names
    found = []
    for group in columns.children(groups):
        listed = next(value for name, value in columns.own_scalars[group] if name == "params")
        paths = [Path.parse(text).names for text in listed]
        found.append(
            [".".join(names[len(here) :] if here and names[: len(here)] == here else names) for names in paths]
        )
    return found


def _plan_states(
    plan: "Plan", found: OptimizerPlan, front: str, source: _Source, places: dict[str, Place | None]
) -> None:
    begin = f"{front}state."
    unknown: dict[str, str] = {}
    for kind in (source.rows, source.values):
        for name in kind:
            if not name.startswith(begin):
                continue
            parameter, key = _split(name[len(begin) :], places)
            place = places.get(parameter)
            if place is None:
                if kind is source.rows:
                    unknown.setdefault(parameter or name[len(begin) :], name)
            elif kind is source.rows:
                found.states.setdefault(place, {})[key] = source.rows[name]
            else:
                found.values.setdefault(place, {})[key] = source.values[name]
    for parameter, name in unknown.items():
        plan.found(
            "unexpected",
            name,
            f"the source has state for {parameter}, which {found.path or 'the optimizer'} does not step",
        )


def _split(rest: str, places: dict[str, Place | None]) -> tuple[str, str]:
    """The name of a parameter, and the key of its state after it."""
    parameter, dot, key = rest.rpartition(".")
    while dot:
        if parameter in places:
            return parameter, key
        parameter, dot, last = parameter.rpartition(".")
        key = f"{last}.{key}"
    return "", rest


def _plan_options(
    plan: "Plan",
    found: OptimizerPlan,
    front: str,
    source: _Source,
    theirs: list[list[str]],
    places: dict[str, Place | None],
    ours: list[list[str]],
) -> None:
    by_members = {frozenset(places[name] for name in names): which for which, names in enumerate(theirs)}
    for which, names in enumerate(ours):
        same = by_members.get(frozenset((which, at) for at in range(len(names))))
        if same is None:
            plan.notes.append(
                f"{front}param_groups.{which} has other parameters than any group of the source, and keeps its options"
            )
            continue
        begin = f"{front}param_groups.{same}."
        for name, value in source.values.items():
            if name.startswith(begin) and name != f"{begin}params" and name != f"{begin}param_names":
                found.options.setdefault(which, {})[name[len(begin) :]] = value
        for name, row in source.rows.items():
            if name.startswith(begin):
                found.option_rows.setdefault(which, {})[name[len(begin) :]] = row


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """State with dotted keys as it was: dicts in dicts, and lists where the keys count up from nothing.

    >>> nested({"step": 1, "old_dirs.0": 2, "old_dirs.1": 3})
    {'step': 1, 'old_dirs': [2, 3]}
    """
    if not any("." in key for key in flat):
        return flat
    found: dict[str, Any] = {}
    for key, value in flat.items():
        head, _, rest = key.partition(".")
        if rest:
            found.setdefault(head, {})[rest] = value
        else:
            found[head] = value
    for head in {key.partition(".")[0] for key in flat if "." in key}:
        inner = nested(found[head])
        in_order = list(inner) == [str(number) for number in range(len(inner))]
        found[head] = list(inner.values()) if in_order else inner
    return found
