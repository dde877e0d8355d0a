"""Plans the state of optimizers: matched by the names of parameters, whatever their order and their groups."""

from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import assembled, can_be_made, names_below
from leafwise.checkpoint.planning.optimizer_places import (
    Place,
    TargetOptimizer,
    filled_by,
    group_nodes,
    names_from_root,
    places_by_names,
    places_of,
    target_groups,
)
from leafwise.checkpoint.planning.plan import Plan, the_source, turned_shape
from leafwise.checkpoint.planning.saved_optimizers import OptimizerPrefixes, SavedOptimizers, below, seen_from
from leafwise.core.capabilities.stepping import GLOBAL_STATE, PARAMETERS, Stepping
from leafwise.core.leaf import shape_text
from leafwise.core.opaque import Opaque
from leafwise.core.pairing.row_pairs import Pairing
from leafwise.core.tree import Tree
from leafwise.errors import Unsupported
from leafwise.files.record import NodeType

Order = tuple[int, ...]

# Options that schedulers add to groups; a new optimizer may not have them yet.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"})
# Options that identify the kind of optimizer; they are not loaded into another kind.
_NOT_TAKEN = frozenset({"decoupled_weight_decay"})


class SavedState(NamedTuple):
    """Rows and plain values of the source by key, and the types of containers."""

    rows: dict[str, int]
    values: dict[str, Any]
    types: dict[str, NodeType]


class OptimizerPlan:
    """What an optimizer gets: state for each of its parameters that the source has, which replaces its own even if the
    source has none; and options for the groups that have the same parameters as a group of the source."""

    def __init__(self, node: int, path: str) -> None:
        self.node, self.path = node, path
        self.who = path or "the optimizer"  # in messages
        self.places: dict[str, Place | None] = {}  # by name in the source, where its parameters are in the target
        self.saved: dict[Place, SavedState] = {}
        self.options: dict[int, SavedState] = {}  # by group
        self.casts: dict[Place, dict[str, str]] = {}  # the new dtype of state whose parameter is cast
        self.turns: dict[Place, tuple[list[str], Order]] = {}  # state that is transposed along with its parameter
        self.has_types = False  # whether the source records the types of containers
        self.whole = False  # whether groups get exactly the options of the source
        self.more = SavedState({}, {}, {})  # state that belongs to no parameter
        self.own: SavedState | None = None  # for an optimizer that writes its own state dict

    @property
    def states(self) -> dict[Place, dict[str, int]]:
        """The rows of the state of each parameter, if it has any."""
        return {place: state.rows for place, state in self.saved.items() if state.rows}


def plan_optimizers(plan: Plan, pairing: Pairing, optimizers: OptimizerPrefixes) -> list[OptimizerPlan]:
    if not optimizers.nodes:
        return []
    columns = plan.target.columns
    paths = columns.node_keys(plan.target.root)
    source = SavedOptimizers(plan.source, optimizers.source_of.values())
    planned = []
    for node in optimizers.nodes:
        optimizer = columns.node_objects[node]
        stepping = columns.home(optimizer).capability(Stepping)
        make = _planned_own if stepping.keeps_own_state(optimizer) else _planned
        path = paths[node]
        source_prefix = optimizers.source_of.get(f"{path}." if path else "")
        planned.append(make(plan, OptimizerPlan(node, path), source_prefix, source, pairing))
    return planned


def _planned_own(
    plan: Plan, planned: OptimizerPlan, prefix: str | None, source: SavedOptimizers, pairing: Pairing
) -> OptimizerPlan:
    """Plans the state dict of an optimizer that writes its own: all of it or nothing, because only the optimizer knows
    what its parts mean."""
    columns, node, who = plan.target.columns, planned.node, planned.who
    optimizer = columns.node_objects[node]
    stepped = [value for _, value in columns.home(optimizer).capability(Stepping).held_by(optimizer)]
    if any(columns.home(value).spec(value).sharding is not None for value in stepped):
        message = (
            f"{who} writes its own state dict and steps parameters that are sharded over processes: leafwise does not "
            "know how its state is sharded; load it with its own load_state_dict"
        )
        plan.add("unsupported", who, message)
        return planned
    kind, where = type(optimizer).__qualname__, the_source(plan.source)
    if prefix is None:
        plan.add("missing", who, _missing_message(planned, where))
        return planned
    saved = source.types.get(prefix.removesuffix("."))
    if saved is None and source.is_own_file:
        message = f"the type of {who} is not recorded in {where}, which may lack some of the state of {kind}"
        plan.add("unsupported", who, message)
        return planned
    if saved is not None and saved.type != kind:
        plan.add("unsupported", who, f"{who} is {kind} in the model but {saved.type} in {where}")
        return planned
    listed: list[str] = next((value for name, value in columns.own_scalars.get(node, ()) if name == PARAMETERS), [])
    ours = [seen_from(plan.target.path.names, name) for name in listed]
    saved_names = source.whole_values.get(f"{prefix}{PARAMETERS}")
    if saved_names is not None:
        theirs = [seen_from(plan.source.path.names, str(name)) for name in saved_names]
        renamed = [pairing.new_name(name) for name in theirs]
        if ours != renamed and not all(name.isdecimal() for name in (*ours, *theirs)):
            message = (
                f"the parameters of {who} differ from those in {where}, or are in another order; {kind} knows its "
                "parameters by their position only"
            )
            plan.add("unsupported", who, message)
            return planned
    types = below(source.types, prefix)
    unknown = {kind.type for kind in types.values() if not can_be_made(kind)}
    if unknown:
        names = ", ".join(sorted(unknown))
        plan.add("unsupported", who, f"{who} contains a {names} in {where}, which leafwise cannot rebuild")
        return planned
    values = {key: value for key, value in below(source.whole_values, prefix).items() if key != PARAMETERS}
    planned.own = SavedState(below(source.rows, prefix), values, types)
    return planned


def _planned(
    plan: Plan, planned: OptimizerPlan, source_prefix: str | None, source: SavedOptimizers, pairing: Pairing
) -> OptimizerPlan:
    who, where = planned.who, the_source(plan.source)
    prefix = f"{planned.path}." if planned.path else ""
    target = TargetOptimizer(plan, planned.node)
    groups = source.groups(source_prefix) if source_prefix is not None else []
    flattened = source.flattened(source_prefix) if source_prefix is not None and not groups else []
    if source_prefix is None or not (groups or flattened):
        plan.add("missing", who, _missing_message(planned, where))
        return planned
    saved = source.types.get(source_prefix.removesuffix("."))
    planned.whole = saved is not None and saved.type == target.type
    planned.has_types = saved is not None or not source.is_own_file
    names = flattened or [name for group in groups for name in group]
    from_root = names_from_root(names, target, source, pairing)
    places = places_by_names(target, groups, source.names_beside_numbers(source_prefix)) if groups else None
    if places is None:
        places = places_of(plan, who, target, names, from_root, source, pairing)
    if flattened:
        groups = target_groups(target, places)
        for option in source.group_options(source_prefix, groups):
            message = f"{option} in {where} differs from that of other parameters in the same group of {who}"
            plan.add("unsupported", option, message)
    planned.saved = {place: SavedState({}, {}, {}) for place in places.values() if place is not None}
    for place in target.places:
        if place not in planned.saved:
            name = target.names[place]
            lacking = f"parameter of {who} in the model but not in {where}"
            several = "{} ({count} parameters): each is a " + lacking
            plan.add("missing", f"{prefix}state.{name}", f"{name} is a {lacking}", several)
    planned.places = places
    _plan_global_state(planned, source_prefix, source)
    _plan_states(plan, planned, source_prefix, source)
    _check_states(plan, planned, target, source, pairing, from_root)
    _plan_options(plan, planned, source_prefix, source, groups, target)
    return planned


def _missing_message(planned: OptimizerPlan, where: str) -> str:
    path = planned.path
    return f"{path} is in the model but not in {where}" if path else f"there is no optimizer in {where}"


def _plan_global_state(planned: OptimizerPlan, prefix: str, source: SavedOptimizers) -> None:
    """Plans state that belongs to no parameter. leafwise stores it separately; a state dict of PyTorch, which numbers
    parameters, has it among their states."""
    begin = f"{prefix}{GLOBAL_STATE}."
    planned.more = SavedState(*(below(flat, begin) for flat in (source.rows, source.whole_values, source.types)))
    whole = source.whole_values.get(begin.removesuffix("."))
    if isinstance(whole, dict):
        planned.more.values.update(whole)
    if all(name.isdecimal() for name in planned.places):
        for flat, taken in ((source.rows, planned.more.rows), (source.values, planned.more.values)):
            states = below(flat, f"{prefix}state.")
            taken.update({key: value for key, value in states.items() if not key.partition(".")[0].isdecimal()})


def _plan_states(plan: Plan, planned: OptimizerPlan, prefix: str, source: SavedOptimizers) -> None:
    begin, places = f"{prefix}state.", planned.places
    unknown: dict[str, str] = {}
    for rest, row in below(source.rows, begin).items():
        parameter, key = _split(rest, places)
        if (place := places.get(parameter)) is not None:
            planned.saved[place].rows[key] = row
        elif rest not in planned.more.rows:
            unknown.setdefault(parameter or rest, begin + rest)
    for rest, value in below(source.values, begin).items():
        parameter, key = _split(rest, places)
        if (place := places.get(parameter)) is not None and not _is_refused(plan, begin + rest, value):
            planned.saved[place].values[key] = value
    for rest, node_type in below(source.types, begin).items():
        parameter, key = (rest, "") if rest in places else _split(rest, places)
        if (place := places.get(parameter)) is not None and not _cannot_be_made(plan, begin + rest, node_type):
            planned.saved[place].types[key] = node_type
    for parameter, name in unknown.items():
        not_there = f"not a parameter of {planned.who} in the model"
        has = f"{the_source(plan.source)} has state for"
        several = f"{has} {{}} ({{count}} parameters), which is {not_there}"
        plan.add("unexpected", name, f"{has} {parameter}, which is {not_there}", several)


def _check_states(
    plan: Plan,
    planned: OptimizerPlan,
    target: TargetOptimizer,
    source: SavedOptimizers,
    pairing: Pairing,
    from_root: dict[str, str],
) -> None:
    """Checks that state fits its parameter. A parameter that keeps its values, because its shape differs, also keeps
    its state. If a parameter is cast or transposed, so is state of the same shape."""
    columns, theirs = plan.target.columns, plan.source.columns
    kept = {problem.name for problem in (*plan.allowed, *plan.problems) if problem.kind in ("shape", "dtype")}
    feeds = {feed.row: feed for feed in plan.feeds}
    for name, place in planned.places.items():
        if place is None:
            continue
        ours, spec = target.names[place], target.specs[place]
        if ours in kept:
            planned.saved.pop(place, None)
            plan.notes.append(f"{ours} keeps its values and its optimizer state")
            continue
        fed = [feeds[leaf] for leaf in filled_by(source, from_root.get(name, name), pairing) if leaf in feeds]
        feed = next((feed for feed in fed if target.by_identity.get(id(columns.current(feed.row))) == place), None)
        order = None if feed is None else _composed(theirs.row_op(feed.source).order, feed.order)
        rows = planned.saved[place].rows
        same_shape = []
        for key, fact in zip(rows, theirs.facts(list(rows.values())), strict=True):
            shape, is_like = fact.spec.shape or (), target.stepping.like_parameter(key)
            if is_like and order is not None and len(order) == len(shape):
                shape = turned_shape(shape, order)
            _check_sharding(plan, planned, target, place, key, shape)
            if not is_like or not shape:
                continue
            if shape == spec.shape:
                same_shape.append((key, fact.spec.dtype))
            elif not planned.whole:  # the same kind of optimizer may have state of any shape
                message = (
                    f"{key} of {ours} is {shape_text(shape)} in {the_source(plan.source)}, but {ours} is "
                    f"{shape_text(spec.shape)} in the model"
                )
                plan.add("shape", f"{planned.path}.state.{ours}.{key}", message)
        if order is not None:
            planned.turns[place] = [key for key, _ in same_shape], order
        if feed is not None and "cast" in feed.how and target.stepping.casts_state(columns.node_objects[planned.node]):
            (was,) = theirs.facts([feed.source])
            planned.casts[place] = {key: spec.dtype for key, dtype in same_shape if dtype == was.spec.dtype}


def _check_sharding(
    plan: Plan, planned: OptimizerPlan, target: TargetOptimizer, place: Place, key: str, shape: tuple[int, ...]
) -> None:
    if target.specs[place].sharding is None:
        return
    try:
        target.stepping.sharded_like(plan.target.columns.node_objects[planned.node], place, key, shape)
    except Unsupported as error:
        name = f"{planned.path}.state.{target.names[place]}.{key}"
        plan.add("unsupported", name, f"{name}: {error}")


def _composed(first: Order | None, second: Order | None) -> Order | None:
    """The order of axes that results from applying one after the other.

    >>> _composed((1, 0), (1, 0)), _composed(None, (1, 0)), _composed((2, 0, 1), (2, 0, 1))
    (None, (1, 0), (1, 2, 0))
    """
    if first is None or second is None:
        return second if first is None else first
    both = tuple(first[axis] for axis in second)
    return None if both == tuple(range(len(both))) else both


def _split(rest: str, places: dict[str, Place | None]) -> tuple[str, str]:
    """Splits a name into a parameter and a key of its state."""
    parameter = rest.rpartition(".")[0]
    while parameter and parameter not in places:
        parameter = parameter.rpartition(".")[0]
    return (parameter, rest[len(parameter) + 1 :]) if parameter else ("", rest)


def _plan_options(
    plan: Plan,
    planned: OptimizerPlan,
    prefix: str,
    source: SavedOptimizers,
    groups: list[list[str]],
    target: TargetOptimizer,
) -> None:
    by_members = {frozenset(planned.places[name] for name in names): number for number, names in enumerate(groups)}
    takes_all = planned.whole or _has_all_options(plan, planned, prefix, source)
    for number, names in enumerate(target.groups):
        same = by_members.get(frozenset((number, at) for at in range(len(names))))
        if same is None:
            plan.notes.append(
                f"{prefix}param_groups.{number} keeps its options: no group in {the_source(plan.source)} has the same "
                "parameters"
            )
            continue
        begin = f"{prefix}param_groups.{same}."
        known = _options(plan.target, planned.node, number)
        options = planned.options[number] = SavedState({}, {}, below(source.types, begin))
        for key, kind in options.types.items():
            _cannot_be_made(plan, begin + key, kind)
        for flat, taken in ((source.values, options.values), (source.rows, options.rows)):
            for key, value in below(flat, begin).items():
                if key in ("params", "param_names") or (key in _NOT_TAKEN and not planned.whole):
                    continue
                if not takes_all and known.isdisjoint((key, key.partition(".")[0])) and key not in _OF_SCHEDULERS:
                    message = (
                        f"the option {key} of {planned.who} is in {the_source(plan.source)} but not in the model; was "
                        "it saved from another kind of optimizer?"
                    )
                    plan.add("unexpected", begin + key, message)
                elif flat is source.rows or not _is_refused(plan, begin + key, value):
                    taken[key] = value


def _cannot_be_made(plan: Plan, name: str, kind: NodeType) -> bool:
    """Whether leafwise cannot rebuild a container of the source; adds a problem for it."""
    if can_be_made(kind):
        return False
    plan.add(
        "unsupported", name, f"{name} is a {kind.type} in {the_source(plan.source)}, which leafwise cannot rebuild"
    )
    return True


def _is_refused(plan: Plan, name: str, value: Any) -> bool:
    """Whether an object in a plain value was not loaded from its file; adds a problem for it."""
    unread = _not_loaded(value)
    if unread is None:
        return False
    plan.add("unsupported", name, f"{name} is {unread!r} in {the_source(plan.source)}")
    return True


def _not_loaded(value: Any) -> Opaque | None:
    """An object in a plain value that was not loaded from its file; it must not end up in an optimizer."""
    if isinstance(value, Opaque):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((unread for item in items if (unread := _not_loaded(item)) is not None), None)


def _has_all_options(plan: Plan, planned: OptimizerPlan, prefix: str, source: SavedOptimizers) -> bool:
    """Whether the first group of the source has every option of the target's first group. Then the optimizer must be of
    the same kind, and further options are values that change as it steps. For sources that do not record the kind."""
    begin = f"{prefix}param_groups.0."
    given = {key.partition(".")[0] for flat in (source.values, source.rows) for key in below(flat, begin)}
    return bool(given) and _options(plan.target, planned.node, 0) <= given


def _options(t: Tree, node: int, number: int) -> set[str]:
    """The options that a group of an optimizer of the target has."""
    columns = t.columns
    group = group_nodes(columns, node)[number]
    names = {name for name, _ in columns.own_scalars.get(group, ())}
    names |= {columns.node_names[child] for child in columns.children(group)}
    return (names | {columns.row_names[row] for row in columns.own_rows(group)}) - {"params", "param_names"}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Nested state from dotted keys: dicts in dicts, and lists where the keys count up from 0.

    >>> nested({"step": 1, "old_dirs.0": 2, "old_dirs.1": 3})
    {'step': 1, 'old_dirs': [2, 3]}
    """
    if not any("." in key for key in flat):
        return flat
    lists = {key for key, names in names_below(flat).items() if list(names) == list(map(str, range(len(names))))}
    return assembled(flat, dict.fromkeys(lists - {""}, NodeType("list")))  # type: ignore[no-any-return]
