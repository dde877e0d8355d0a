"""The state of an optimizer by the names of its parameters, whatever their order and their groups."""

from collections.abc import Callable, Iterable
from typing import Any

from leafwise.checkpoint.names import Match
from leafwise.checkpoint.plans import Plan
from leafwise.core.leaf import shape_text
from leafwise.core.path import Path
from leafwise.core.tree import Tree

Place = tuple[int, int]  # the group, and the position in it

# Options that schedulers add to groups, which a new optimizer may not have yet.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"})


class OptimizerPlan:
    """What an optimizer gets: for each of its parameters the rows and plain values of its state in the source, by their
    keys; and for groups with the same parameters as one of the source, its options."""

    def __init__(self, node: int, path: str) -> None:
        self.node, self.path = node, path
        self.states: dict[Place, dict[str, int]] = {}
        self.values: dict[Place, dict[str, Any]] = {}
        self.options: dict[int, dict[str, Any]] = {}
        self.option_rows: dict[int, dict[str, int]] = {}
        self.casts: dict[Place, dict[str, str]] = {}  # the dtype that state gets whose parameter is cast


def plan_optimizers(plan: Plan, found: Match) -> list[OptimizerPlan]:
    if not found.target_nodes:
        return []
    fronts = plan.target._columns.node_keys(plan.target._node)
    source = _Source(plan.source, found.give)
    return [_planned(plan, node, fronts[node], source, found) for node in found.target_nodes]


class _Source:
    """Rows and plain values of the source, by name."""

    def __init__(self, s: Tree, give: Callable[[str], str | None]) -> None:
        columns = s._columns
        fronts = columns.node_keys(s._node)
        self.rows = self._named(zip(columns.keys(s._rows, s._node), s._rows, strict=True), give)
        values = (
            (f"{fronts[node]}.{name}" if fronts[node] else name, value)
            for node, name, value in columns.scalars
            if node in fronts
        )
        self.values = self._named(values, give)

    @staticmethod
    def _named(pairs: Iterable[tuple[str, Any]], give: Callable[[str], str | None]) -> dict[str, Any]:
        return {new: value for name, value in pairs if (new := give(name)) is not None}

    def groups(self, front: str) -> list[list[str]]:
        """The names of the parameters of each group of an optimizer."""
        groups: list[list[str]] = []
        while (params := self.values.get(f"{front}param_groups.{len(groups)}.params")) is not None:
            groups.append([".".join(Path.parse(str(name)).names) for name in params])
        return groups


def _planned(plan: Plan, node: int, path: str, source: _Source, match: Match) -> OptimizerPlan:
    found = OptimizerPlan(node, path)
    front = f"{path}." if path else ""
    ours = _groups(plan.target, node)
    theirs = source.groups(front)
    who = path or "the optimizer"
    if not theirs:
        plan.found("missing", who, f"no optimizer in the source for {path or 'this one'}")
        return found
    places = _places(plan, who, ours, theirs, match)
    covered = set(places.values())
    for which, names in enumerate(ours):
        for at, name in enumerate(names):
            if (which, at) not in covered:
                plan.found(
                    "missing", f"{front}state.{name}", f"{who} of the source does not step {name}: no state for it"
                )
    _plan_states(plan, found, front, source, places)
    _check_states(plan, found, ours, match)
    _plan_options(plan, found, front, source, theirs, places, ours)
    return found


def _places(
    plan: Plan, who: str, ours: list[list[str]], theirs: list[list[str]], match: Match
) -> dict[str, Place | None]:
    """For each parameter that the source names, where it stands in the target: by what the target calls it, or by
    order where one of the two only numbers them, as PyTorch does."""
    place_of = {name: (which, at) for which, names in enumerate(ours) for at, name in enumerate(names)}
    in_order = list(place_of.values())
    given = [name for names in theirs for name in names]
    numbered = [all(name.isdecimal() for name in names) for names in (given, place_of)]
    if any(numbered):
        if not all(numbered):
            plan.notes.append(f"{who}: parameters are numbered on one side; taken in their order")
        return {name: in_order[number] if number < len(in_order) else None for number, name in enumerate(given)}
    return {name: place_of.get(match.target_names.get(name, name)) for name in given}


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
    plan: Plan, found: OptimizerPlan, front: str, source: _Source, places: dict[str, Place | None]
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


def _check_states(plan: Plan, found: OptimizerPlan, ours: list[list[str]], match: Match) -> None:
    """State must fit its parameter. Where a parameter keeps its values, because its shape differs, it gets no state;
    where it is cast, so is the state that had its dtype."""
    columns, theirs = plan.target._columns, plan.source._columns
    optimizer = columns.node_objects[found.node]
    home = columns.home(optimizer)
    shapes = iter([columns.home(value).spec(value) for _, value in home.held_by(optimizer)])
    specs = {(which, at): next(shapes) for which, names in enumerate(ours) for at in range(len(names))}
    kept = {problem.name for problem in (*plan.allowed, *plan.problems) if problem.kind in ("shape", "dtype")}
    feeds = {feed.name: feed for feed in plan.feeds if "cast" in feed.how}
    for place in list(found.states):
        name = ours[place[0]][place[1]]
        if name in kept:
            del found.states[place]
            found.values.pop(place, None)
            plan.notes.append(f"{name} keeps its values, and gets no state")
            continue
        rows = found.states[place]
        facts = theirs.facts(list(rows.values()))
        for key, fact in zip(rows, facts, strict=True):
            if home.like_parameter(key) and fact.spec.shape not in (specs[place].shape, ()):
                has, wanted = shape_text(fact.spec.shape), shape_text(specs[place].shape)
                plan.found(
                    "shape", f"{found.path}.state.{name}.{key}", f"{key} of {name} is {has}, and {name} is {wanted}"
                )
        if name in feeds:
            (was,) = theirs.facts([feeds[name].source])
            turned = [key for key, fact in zip(rows, facts, strict=True) if fact.spec.dtype == was.spec.dtype]
            found.casts[place] = dict.fromkeys(turned, specs[place].dtype)


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
    plan: Plan,
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
        known = _options(plan.target, found.node, which)
        for kind, taken in ((source.values, found.options), (source.rows, found.option_rows)):
            for name, value in kind.items():
                key = name[len(begin) :] if name.startswith(begin) else ""
                if not key or key in ("params", "param_names"):
                    continue
                if key not in known and key not in _OF_SCHEDULERS:
                    what = f"the source has the option {key}, which {found.path or 'the optimizer'} has not"
                    plan.found("unexpected", name, f"{what}; is it another kind of optimizer?")
                    continue
                taken.setdefault(which, {})[key] = value


def _options(t: Tree, node: int, which: int) -> set[str]:
    """The options that a group of an optimizer of the target has."""
    columns = t._columns
    groups = next(child for child in columns.children(node) if columns.node_names[child] == "param_groups")
    group = list(columns.children(groups))[which]
    names = {name for name, _ in columns.own_scalars.get(group, ())}
    return names | {columns.row_names[row] for row in columns.own_rows(group)}


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
