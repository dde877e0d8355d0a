"""The state of an optimizer by the names of its parameters, whatever their order and their groups."""

from functools import cached_property
from typing import Any, NamedTuple

from leafwise.checkpoint.names import Match
from leafwise.checkpoint.plans import Plan
from leafwise.checkpoint.values import PlainValues, can_be_made
from leafwise.core.capabilities.stepping import GLOBAL_STATE, PARAMETERS, Stepping
from leafwise.core.columns import Columns
from leafwise.core.leaf import shape_text
from leafwise.core.path import Path
from leafwise.core.tree import Tree
from leafwise.files.record import NodeType
from leafwise.files.stored_file import StoredFile

Place = tuple[int, int]  # the group, and the position in it
Order = tuple[int, ...]

# Options that schedulers add to groups, which a new optimizer may not have yet.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"})
# What tells one optimizer from another.
_NOT_TAKEN = frozenset({"decoupled_weight_decay"})


class OptimizerPlan:
    """What an optimizer gets: for each of its parameters the rows and plain values of its state in the source, by their
    keys; and for groups with the same parameters as one of the source, its options."""

    def __init__(self, node: int, path: str) -> None:
        self.node, self.path = node, path
        self.reset: set[Place] = set()  # the parameters whose state becomes that of the source, also where it has none
        self.states: dict[Place, dict[str, int]] = {}
        self.values: dict[Place, dict[str, Any]] = {}
        self.options: dict[int, dict[str, Any]] = {}
        self.option_rows: dict[int, dict[str, int]] = {}
        self.option_types: dict[int, dict[str, NodeType]] = {}
        self.casts: dict[Place, dict[str, str]] = {}  # the dtype that state gets whose parameter is cast
        self.turns: dict[Place, tuple[list[str], Order]] = {}  # state that is turned with its parameter
        self.types: dict[Place, dict[str, NodeType]] = {}  # what containers in a state were
        self.knows_types = False  # whether the source says so at all
        self.whole = False  # whether options of groups are all that they shall have
        self.more = OwnState({}, {}, {})  # state that belongs to no parameter
        self.own: OwnState | None = None  # of an optimizer that writes its own state dict


class OwnState(NamedTuple):
    """State that nobody but the optimizer knows the meaning of: rows and plain values of the source by key, and what
    containers were."""

    rows: dict[str, int]
    values: dict[str, Any]
    types: dict[str, NodeType]


class _Target:
    """An optimizer of the target: the names and the arrays of its parameters, group by group."""

    def __init__(self, plan: Plan, node: int) -> None:
        columns = plan.target.columns
        optimizer = columns.node_objects[node]
        self.stepping = columns.home(optimizer).capability(Stepping)
        self.type = type(optimizer).__qualname__
        self.groups = _groups(plan.target, node)
        self.places = [(which, at) for which, names in enumerate(self.groups) for at in range(len(names))]
        self.names = dict(zip(self.places, [name for names in self.groups for name in names], strict=True))
        held = [value for _, value in self.stepping.held_by(optimizer)]
        self.specs = {place: columns.home(value).spec(value) for place, value in zip(self.places, held, strict=True)}
        self.by_identity = {id(value): place for place, value in zip(self.places, held, strict=True)}


def plan_optimizers(plan: Plan, found: Match) -> list[OptimizerPlan]:
    if not found.target_nodes:
        return []
    columns = plan.target.columns
    fronts = columns.node_keys(plan.target.root)
    source = _Source(plan.source, list(found.optimizer_fronts.values()))
    planned = []
    for node in found.target_nodes:
        optimizer = columns.node_objects[node]
        make = _planned_own if columns.home(optimizer).capability(Stepping).keeps_own_state(optimizer) else _planned
        planned.append(make(plan, node, fronts[node], source, found))
    return planned


def _planned_own(plan: Plan, node: int, path: str, source: "_Source", match: Match) -> OptimizerPlan:
    """The state dict of an optimizer that writes its own, all of it or nothing: what its parts mean it alone knows."""
    found = OptimizerPlan(node, path)
    columns = plan.target.columns
    who, kind = path or "the optimizer", type(columns.node_objects[node]).__qualname__
    front = match.optimizer_fronts.get(f"{path}." if path else "")
    if front is None:
        plan.found("missing", who, f"no optimizer in the source for {path or 'this one'}")
        return found
    saved = source.types.get(front.removesuffix("."))
    if saved is None and source.is_own_file:
        message = f"{who} was saved by an earlier leafwise, which did not save all that a {kind} keeps"
        plan.found("unsupported", who, message)
        return found
    if saved is not None and saved.type != kind:
        plan.found("unsupported", who, f"{who} is a {kind}, and in the source a {saved.type}, which keeps other things")
        return found
    listed: list[str] = next((value for name, value in columns.own_scalars.get(node, ()) if name == PARAMETERS), [])
    ours = [_seen_from(plan.target.path.names, name) for name in listed]
    given = source.whole_values.get(f"{front}{PARAMETERS}")
    if given is not None:
        theirs = [_seen_from(plan.source.path.names, str(name)) for name in given]
        renamed = [match.give(name) for name in theirs]
        if ours != renamed and not all(name.isdecimal() for name in (*ours, *theirs)):
            message = f"{who} has other parameters than in the source, or another order; a {kind} only numbers them"
            plan.found("unsupported", who, message)
            return found
    types = _below(source.types, front)
    unknown = {kind.type for kind in types.values() if not can_be_made(kind)}
    if unknown:
        plan.found(
            "unsupported", who, f"{who} of the source holds a {', '.join(sorted(unknown))}, which cannot be made again"
        )
        return found
    values = {key: value for key, value in _below(source.whole_values, front).items() if key != PARAMETERS}
    found.own = OwnState(_below(source.rows, front), values, types)
    return found


def _below(flat: dict[str, Any], front: str) -> dict[str, Any]:
    """What stands below a front, by what comes after it."""
    return {key[len(front) :]: value for key, value in flat.items() if key.startswith(front) and key != front}


class _Source:
    """Rows and plain values of the source, by name."""

    def __init__(self, s: Tree, fronts: list[str]) -> None:
        columns = s.columns
        self.rows = dict(zip(columns.keys(s.rows, s.root), s.rows, strict=True))
        self._here = s.path.names
        fine = {key: value for key, _, _, value in columns.scalar_items(s.root)}
        apart = {front.removesuffix(".") for front in fronts}
        for front in fronts:
            apart |= {f"{front}param_groups", f"{front}state"}
            for which, names in enumerate(self._groups(fine, front)):
                apart.add(f"{front}param_groups.{which}")
                apart.update(_lineage(f"{front}state", names))
        self._given_names = {
            key.removesuffix(".param_names"): value for key, value in fine.items() if key.endswith(".param_names")
        }
        self.given_names: list[list[str] | None] = []
        self._tree, self._fronts = s, {front.removesuffix(".") for front in fronts}
        found = PlainValues(s, apart=apart.__contains__)
        self.values = {value.key: value.value for value in found.items}
        self.types = found.node_types()
        root = columns.node_objects[0]
        self.is_own_file = isinstance(root, StoredFile) and root.record is not None

    @cached_property
    def whole_values(self) -> dict[str, Any]:
        """Plain values as they were saved, also where they belong to an optimizer."""
        return {value.key: value.value for value in PlainValues(self._tree, apart=self._fronts.__contains__).items}

    def groups(self, front: str) -> list[list[str]]:
        """The names of the parameters of each group of an optimizer, seen from the tree. `given_names` are then those
        that PyTorch wrote beside numbers."""
        groups = self._groups(self.values, front)
        self.given_names = [self._given_names.get(f"{front}param_groups.{which}") for which in range(len(groups))]
        return groups

    def _groups(self, values: dict[str, Any], front: str) -> list[list[str]]:
        groups: list[list[str]] = []
        while isinstance(params := values.get(f"{front}param_groups.{len(groups)}.params"), list | tuple):
            groups.append([_seen_from(self._here, str(name)) for name in params])
        return groups


def _lineage(front: str, names: list[str]) -> set[str]:
    """The keys of all that leads to the state of parameters, and of these states."""
    found = set()
    for name in names:
        key = front
        for part in name.split("."):
            key = f"{key}.{part}"
            found.add(key)
    return found


def _seen_from(here: tuple[str, ...], name: str) -> str:
    names = Path.parse(name).names
    return ".".join(names[len(here) :] if here and names[: len(here)] == here else names)


def _planned(plan: Plan, node: int, path: str, source: _Source, match: Match) -> OptimizerPlan:
    found = OptimizerPlan(node, path)
    front = f"{path}." if path else ""
    their_front = match.optimizer_fronts.get(front)
    target = _Target(plan, node)
    theirs = source.groups(their_front) if their_front is not None else []
    who = path or "the optimizer"
    if not theirs or their_front is None:
        plan.found("missing", who, f"no optimizer in the source for {path or 'this one'}")
        return found
    saved = source.types.get(their_front.removesuffix("."))
    found.whole = saved is not None and saved.type == target.type
    found.knows_types = saved is not None or not source.is_own_file
    places = _places(plan, who, target, theirs, source, match)
    found.reset = {place for place in places.values() if place is not None}
    for place in target.places:
        if place not in found.reset:
            name = target.names[place]
            message = f"{who} of the source does not step {name}: no state for it"
            plan.found("missing", f"{front}state.{name}", message)
    _plan_more(found, their_front, source, places)
    _plan_states(plan, found, their_front, source, places)
    _check_states(plan, found, target, source, match, places)
    _plan_options(plan, found, their_front, source, theirs, places, target)
    return found


def _places(
    plan: Plan, who: str, target: _Target, theirs: list[list[str]], source: _Source, match: Match
) -> dict[str, Place | None]:
    """For each parameter that the source names, where it stands in the target: by the leaf that it fills there,
    whatever either calls it; or by order where one of the two only numbers them, as PyTorch does."""
    given = [name for names in theirs for name in names]
    by_name = {name: place for place, name in target.names.items()}
    numbered = [all(name.isdecimal() for name in names) for names in (given, by_name)]
    if all(name.isdecimal() for name in given) and (named := _places_by_names(target, source, theirs)) is not None:
        return named
    if any(numbered):
        if not all(numbered):
            plan.notes.append(f"{who}: parameters are numbered on one side; taken in their order")
        return dict(zip(given, [*target.places, *[None] * len(given)], strict=False))
    columns = plan.target.columns
    places: dict[str, Place | None] = {}
    for name in given:
        fed = _fed_by(plan, match, source, name)
        if fed:
            places[name] = next((p for leaf in fed if (p := target.by_identity.get(id(columns.current(leaf))))), None)
        else:
            places[name] = by_name.get(name)
    return places


def _places_by_names(target: _Target, source: "_Source", theirs: list[list[str]]) -> dict[str, Place | None] | None:
    """Where numbered parameters stand in the target, by the names that PyTorch writes beside the numbers if an
    optimizer was made with them; None where it wrote none, or they do not single out parameters of the target."""
    found: dict[str, Place | None] = {}
    for numbers, names in zip(theirs, source.given_names, strict=False):
        if names is None or len(names) != len(numbers):
            return None
        for number, name in zip(numbers, names, strict=True):
            ends = [place for place, ours in target.names.items() if f".{ours}".endswith(f".{name}")]
            if len(ends) != 1 or ends[0] in found.values():
                return None
            found[number] = ends[0]
    return found if len(found) == sum(map(len, theirs)) else None


def _fed_by(plan: Plan, match: Match, source: _Source, name: str) -> list[int]:
    """The leaves of the target that a leaf of the source fills, under whichever of its names."""
    row = source.rows.get(name)
    if row is None:
        return []
    columns, theirs = plan.target.columns, plan.source.columns
    targets = [match.target_of.get(one) for one in theirs.rows_of(theirs.ties.get(row, row))]
    return [columns.ties.get(one, one) for one in targets if one is not None]


def _group_nodes(columns: Columns, node: int) -> list[int]:
    groups = next(child for child in columns.children(node) if columns.node_names[child] == "param_groups")
    return list(columns.children(groups))


def _groups(t: Tree, node: int) -> list[list[str]]:
    """The names of the parameters of each group, as the walk lists them, seen from the tree."""
    columns = t.columns
    found = []
    for group in _group_nodes(columns, node):
        listed = next(value for name, value in columns.own_scalars[group] if name == "params")
        found.append([_seen_from(t.path.names, name) for name in listed])
    return found


def _plan_more(found: OptimizerPlan, front: str, source: _Source, places: dict[str, Place | None]) -> None:
    """State that belongs to no parameter. leafwise keeps it by itself; a state dict of PyTorch, which numbers
    parameters, among the states of these."""
    begin = f"{front}{GLOBAL_STATE}."
    found.more = OwnState(*(_below(flat, begin) for flat in (source.rows, source.whole_values, source.types)))
    whole = source.whole_values.get(begin.removesuffix("."))
    if isinstance(whole, dict):
        found.more.values.update(whole)
    if all(name.isdecimal() for name in places):
        for flat, taken in ((source.rows, found.more.rows), (source.values, found.more.values)):
            below = _below(flat, f"{front}state.")
            taken.update({key: value for key, value in below.items() if not key.partition(".")[0].isdecimal()})


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
                if kind is source.rows and name[len(begin) :] not in found.more.rows:
                    unknown.setdefault(parameter or name[len(begin) :], name)
            elif kind is source.rows:
                found.states.setdefault(place, {})[key] = source.rows[name]
            else:
                found.values.setdefault(place, {})[key] = source.values[name]
    for name, node_type in source.types.items():
        rest = name[len(begin) :] if name.startswith(begin) else ""
        parameter, key = (rest, "") if rest in places else _split(rest, places)
        place = places.get(parameter)
        if place is not None and not can_be_made(node_type):
            message = f"{name} of the source is a {node_type.type}, which cannot be made again"
            plan.found("unsupported", name, message)
        elif place is not None:
            found.types.setdefault(place, {})[key] = node_type
    for parameter, name in unknown.items():
        plan.found(
            "unexpected",
            name,
            f"the source has state for {parameter}, which {found.path or 'the optimizer'} does not step",
        )


def _check_states(
    plan: Plan, found: OptimizerPlan, target: _Target, source: _Source, match: Match, places: dict[str, Place | None]
) -> None:
    """State must fit its parameter. A parameter that keeps its values, because its shape differs, keeps its state;
    where it is cast or turned, so is the state that is like it."""
    columns, theirs = plan.target.columns, plan.source.columns
    kept = {problem.name for problem in (*plan.allowed, *plan.problems) if problem.kind in ("shape", "dtype")}
    feeds = {feed.row: feed for feed in plan.feeds}
    for name, place in places.items():
        if place is None:
            continue
        ours, spec = target.names[place], target.specs[place]
        if ours in kept:
            found.reset.discard(place)
            found.states.pop(place, None)
            found.values.pop(place, None)
            plan.notes.append(f"{ours} keeps its values, and its state")
            continue
        fed = [feeds[leaf] for leaf in _fed_by(plan, match, source, name) if leaf in feeds]
        feed = next((one for one in fed if target.by_identity.get(id(columns.current(one.row))) == place), None)
        order = None if feed is None else _composed(theirs.row_op(feed.source).order, feed.order)
        rows = found.states.get(place, {})
        alike = []
        for key, fact in zip(rows, theirs.facts(list(rows.values())), strict=True):
            shape = fact.spec.shape or ()
            if not target.stepping.like_parameter(key) or not shape:
                continue
            turned = shape if order is None or len(order) != len(shape) else tuple(shape[axis] for axis in order)
            if turned == spec.shape:
                alike.append((key, fact.spec.dtype))
            elif not found.whole:  # an optimizer that knows itself may keep what it likes
                message = f"{key} of {ours} is {shape_text(turned)}, and {ours} is {shape_text(spec.shape)}"
                plan.found("shape", f"{found.path}.state.{ours}.{key}", message)
        if order is not None:
            found.turns[place] = [key for key, _ in alike], order
        if feed is not None and "cast" in feed.how:
            (was,) = theirs.facts([feed.source])
            found.casts[place] = {key: spec.dtype for key, dtype in alike if dtype == was.spec.dtype}


def _composed(first: Order | None, second: Order | None) -> Order | None:
    """The order of axes that comes of one after the other.

    >>> _composed((1, 0), (1, 0)), _composed(None, (1, 0)), _composed((2, 0, 1), (2, 0, 1))
    (None, (1, 0), (1, 2, 0))
    """
    if first is None or second is None:
        return second if first is None else first
    both = tuple(first[axis] for axis in second)
    return None if both == tuple(range(len(both))) else both


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
    target: _Target,
) -> None:
    by_members = {frozenset(places[name] for name in names): which for which, names in enumerate(theirs)}
    takes_all = found.whole or _has_all_options(plan, found, front, source)
    for which, names in enumerate(target.groups):
        same = by_members.get(frozenset((which, at) for at in range(len(names))))
        if same is None:
            plan.notes.append(
                f"{front}param_groups.{which} has other parameters than any group of the source, and keeps its options"
            )
            continue
        begin = f"{front}param_groups.{same}."
        known = _options(plan.target, found.node, which)
        found.option_types[which] = _below(source.types, begin)
        for key, kind in found.option_types[which].items():
            if not can_be_made(kind):
                message = f"{begin}{key} of the source is a {kind.type}, which cannot be made again"
                plan.found("unsupported", f"{begin}{key}", message)
        for flat, taken in ((source.values, found.options), (source.rows, found.option_rows)):
            for name, value in flat.items():
                key = name[len(begin) :] if name.startswith(begin) else ""
                if not key or key in ("params", "param_names") or (key in _NOT_TAKEN and not found.whole):
                    continue
                if (
                    key.partition(".")[0] not in known
                    and key not in known
                    and key not in _OF_SCHEDULERS
                    and not takes_all
                ):
                    what = f"the source has the option {key}, which {found.path or 'the optimizer'} does not have"
                    plan.found("unexpected", name, f"{what}; is it another kind of optimizer?")
                    continue
                taken.setdefault(which, {})[key] = value


def _has_all_options(plan: Plan, found: OptimizerPlan, front: str, source: _Source) -> bool:
    """Whether the first group of the source has every option that the target's has; then it is of the same kind, and
    what it has more are values that change as it steps. For sources that do not say what kind it was."""
    begin = f"{front}param_groups.0."
    given = {name[len(begin) :].partition(".")[0] for name in (*source.values, *source.rows) if name.startswith(begin)}
    return bool(given) and _options(plan.target, found.node, 0) <= given


def _options(t: Tree, node: int, which: int) -> set[str]:
    """The options that a group of an optimizer of the target has."""
    columns = t.columns
    group = _group_nodes(columns, node)[which]
    names = {name for name, _ in columns.own_scalars.get(group, ())}
    names |= {columns.node_names[child] for child in columns.children(group)}
    return (names | {columns.row_names[row] for row in columns.own_rows(group)}) - {"params", "param_names"}


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
