"""Plans the state of optimizers: matched by the names of parameters, whatever their order and their groups."""

import re
from math import prod
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import assembled, can_be_made, names_below
from leafwise.checkpoint.planning.optimizer_places import (
    Place,
    TargetOptimizer,
    filled_by,
    group_nodes,
    is_numbered,
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
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.errors import Unsupported
from leafwise.files.record import NodeType

Order = tuple[int, ...]

# Options that schedulers add to groups; a new optimizer may not have them yet.
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"})
# Options that identify the kind of optimizer; they are not loaded into another kind.
_NOT_TAKEN = frozenset({"decoupled_weight_decay"})
_NOT_COMPARED = _OF_SCHEDULERS | _NOT_TAKEN | {"params", "param_names"}


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
    stepping = columns.home(optimizer).capability(Stepping)
    stepped = [value for _, value in stepping.held_by(optimizer)]
    if any(columns.home(value).spec(value).sharding is not None for value in stepped):
        message = (
            f"{who} writes its own state dict and steps parameters that are sharded over processes: leafwise does not "
            "know how its state is sharded; load it with its own load_state_dict"
        )
        plan.add("unsupported", who, message)
        return planned
    kind, where = stepping.kind(optimizer), the_source(plan.source)
    if prefix is None:
        plan.add("missing", who, _missing_message(planned, where))
        return planned
    saved = source.types.get(prefix.removesuffix("."))
    if saved is None and source.is_own_file:
        message = f"the type of {who} is not recorded in {where}, which may lack some of the state of {kind}"
        plan.add("unsupported", who, message)
        return planned
    if saved is not None and not _is_same_kind(saved.type, kind):
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
    states = [(match, row) for key, row in below(source.rows, prefix).items() if (match := _STATE.fullmatch(key))]
    numbered = {(match[2], int(match[1])): row for match, row in states}
    shapes = [columns.home(value).spec(value).shape for value in stepped]
    if reason := _groups_differ(plan, planned, prefix, ours) or _shapes_differ(plan, shapes, numbered):
        plan.add("unsupported", who, f"{who} is {kind}, which knows its parameters by their position only: {reason}")
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


def _groups_differ(plan: Plan, planned: OptimizerPlan, prefix: str, names: list[str]) -> str:
    """How the groups in the state dict of an optimizer that writes its own differ from those in the source; empty if
    they are the same. `names` are those of its parameters."""
    sides, where = [], the_source(plan.source)
    for t, begin in ((plan.source, prefix), (plan.target, f"{planned.path}." if planned.path else "")):
        items = below({key: value for key, _, _, value in t.columns.scalar_items(t.root)}, begin)
        lists = {
            key: value for key, value in items.items() if key.endswith(".params") and isinstance(value, list | tuple)
        }
        sides.append((lists, {match[2] for key in items if (match := _OPTION.fullmatch(key))} - _NOT_COMPARED, items))
    (theirs, their_options, their_items), (ours, our_options, _) = sides
    if any(isinstance(name, str) for group in theirs.values() for name in group):
        return f"{where} names its parameters, as get_optimizer_state_dict does; save its own state_dict() instead"
    if {key: len(group) for key, group in theirs.items()} != {key: len(group) for key, group in ours.items()}:
        counts = [" + ".join(str(len(group)) for group in side.values()) or "no" for side in (theirs, ours)]
        return f"its groups have {counts[0]} parameters in {where}, and {counts[1]} in the model"
    lists_of_names = (their_items.get(f"{key.removesuffix('params')}param_names") or () for key in theirs)
    saved_names = [str(name) for group in lists_of_names for name in group]
    pairs = () if is_numbered(names) else zip(names, saved_names, strict=False)
    if any(not f".{own}".endswith(f".{saved}") for own, saved in pairs):
        return f"their order differs from that in {where}"
    if their_options - our_options and our_options - their_options:
        return f"{_options_of_each(where, their_options, our_options)}, so {where} has another kind of optimizer"
    return ""


def _shapes_differ(plan: Plan, own: list[tuple[int, ...] | None], rows: dict[tuple[str, int], int]) -> str:
    """Why state cannot be that of the parameters at its positions, which have the shapes `own`; empty if it can. `rows`
    has the rows of the source by the name of the state and the position. State that has the shapes of parameters, but
    in another order, is that of other parameters."""
    facts = plan.source.columns.facts(list(rows.values()))
    shapes_by_name: dict[str, dict[int, tuple[int, ...]]] = {}
    for (name, position), fact in zip(rows, facts, strict=True):
        if position < len(own) and own[position] is not None:
            shapes_by_name.setdefault(name, {})[position] = fact.spec.shape or ()
    for name, shapes in shapes_by_name.items():
        if max(map(len, shapes.values())) < 2 or not set(own).issuperset(shapes.values()):
            continue  # state may have shapes of its own
        for position, shape in shapes.items():
            if shape != own[position]:
                return (
                    f"{name} of parameter {position} is {shape_text(shape)} in {the_source(plan.source)}, but the "
                    f"parameter is {shape_text(own[position])} in the model, so their order differs"
                )
    return ""


_STATE = re.compile(r"(?:.*\.)?state\.(\d+)\.([^.]+)")  # in the state dict of an optimizer that writes its own
_OPTION = re.compile(r"(.*\.)?param_groups\.\d+\.([^.]+).*")


def _options_of_each(where: str, theirs: set[str], ours: set[str]) -> str:
    """The options that only one side has."""
    sides = ((where, sorted(theirs - ours)), ("the model", sorted(ours - theirs)))
    return "; ".join(f"only {side} has the options {listed(options, 3)}" for side, options in sides if options)


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
    planned.whole = saved is not None and _is_same_kind(saved.type, target.kind)
    planned.has_types = saved is not None or not (source.is_own_file or source.has_only_names)
    names = flattened or [name for group in groups for name in group]
    from_root = names_from_root(names, target, source, pairing)
    places = places_by_names(target, groups, source.names_beside_numbers(source_prefix)) if groups else None
    if places is None:
        places = places_of(plan, who, target, groups or [names], from_root, source, pairing)
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
    _check_order(plan, planned, target)
    _check_kind(plan, planned, source_prefix, source, target)
    _check_states(plan, planned, target, source, pairing, from_root)
    _plan_options(plan, planned, source_prefix, source, groups, target)
    return planned


def _check_order(plan: Plan, planned: OptimizerPlan, target: TargetOptimizer) -> None:
    """Adds a problem if an optimizer whose state joins all its parameters steps others than the source, or in another
    order."""
    if not (joined := target.stepping.joined_state(target.optimizer)):
        return
    shapes_fed = _shapes_fed(plan, target)
    total = sum(prod(shapes_fed.get(place, spec.shape or ())) for place, spec in target.specs.items())
    rows = [saved.rows[joined] for saved in planned.saved.values() if joined in saved.rows]
    sizes = [fact.spec.size for fact in plan.source.columns.facts(rows)]
    if list(planned.places.values()) != target.places or any(size != total for size in sizes):
        message = (
            f"the parameters of {planned.who} differ from those in {the_source(plan.source)}, or are in another order; "
            f"{target.kind} joins them in one vector"
        )
        plan.add("unsupported", planned.who, message)


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


def _check_kind(
    plan: Plan, planned: OptimizerPlan, prefix: str, source: SavedOptimizers, target: TargetOptimizer
) -> None:
    """Adds a problem if the source has the state of another kind of optimizer: one with options that this one does not
    have, or whose state has other names. An optimizer gains and loses options from one version of a library to the
    next, and running values as it steps; but not both, unless it is of another kind."""
    who, where, reasons = planned.who, the_source(plan.source), []
    groups = range(len(target.groups))
    options = {
        key.partition(".")[0]
        for number in range(len(source.groups(prefix)) or len(target.groups))
        for flat in (source.values, source.rows)
        for key in below(flat, f"{prefix}param_groups.{number}.")
    }
    own = set().union(*(_options(plan.target, planned.node, number) for number in groups))
    options, own = options - _NOT_COMPARED, own - _NOT_COMPARED
    is_of_another_kind = not planned.whole and prefix.removesuffix(".") in source.types
    if (options - own and own - options) or (is_of_another_kind and options != own):
        reasons.append(_options_of_each(where, options, own))
    states = () if planned.whole else planned.saved.values()
    names = {frozenset(key.partition(".")[0] for key in (*state.rows, *state.values)) for state in states}
    misfits = [
        target.stepping.state_misfit(target.optimizer, kept) for kept in sorted(names - {frozenset()}, key=sorted)
    ]
    if None in misfits and own - options and not reasons:  # neither its options nor its state show that it is this kind
        reasons.append(_options_of_each(where, options, own))
    reasons += filter(None, misfits)
    if reasons:
        message = (
            f"{who} is {target.kind} in the model, but {where} has another kind of optimizer: "
            f"{'; '.join(dict.fromkeys(reasons))}; create one of that kind, or load the model without its optimizer"
        )
        plan.add("unsupported", who, message)


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
    shapes_fed = _shapes_fed(plan, target)
    if by_position := target.is_numbered or is_numbered(planned.places):
        _check_positions(plan, planned, target, shapes_fed)
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
            if shape == spec.shape or (spec.shape is None and shape == shapes_fed.get(place)):
                same_shape.append((key, fact.spec.dtype))
            elif by_position or not planned.whole:  # for its own parameter, the same kind may have state of any shape
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


def _check_positions(
    plan: Plan, planned: OptimizerPlan, target: TargetOptimizer, shapes_fed: dict[Place | None, tuple[int, ...]]
) -> None:
    """Adds a problem if state that is matched by position is that of other parameters."""
    position_of = {place: position for position, place in enumerate(target.places)}
    states = planned.saved.items()
    rows = {(key, position_of[place]): row for place, saved in states for key, row in saved.rows.items()}
    own = [shapes_fed.get(place, target.specs[place].shape) for place in target.places]
    if reason := _shapes_differ(plan, own, rows):
        plan.add("unsupported", planned.who, f"{planned.who}: {reason}")


def _shapes_fed(plan: Plan, target: TargetOptimizer) -> dict[Place | None, tuple[int, ...]]:
    """The shapes that lazy parameters get from the source."""
    leaves = [(feed, target.by_identity.get(id(plan.target.columns.current(feed.row)))) for feed in plan.feeds]
    lazy = [(feed, place) for feed, place in leaves if place is not None and target.specs[place].shape is None]
    facts = plan.source.columns.facts([feed.source for feed, _ in lazy])
    pairs = zip(lazy, facts, strict=True)
    return {place: turned_shape(fact.spec.shape or (), feed.order) for (feed, place), fact in pairs}


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
    not_taken = {"params", "param_names", *(() if planned.whole else _NOT_TAKEN)}
    for number, names in enumerate(target.groups):
        same = by_members.get(frozenset((number, at) for at in range(len(names))))
        if same is None:
            plan.notes.append(
                f"{prefix}param_groups.{number} keeps its options: no group in {the_source(plan.source)} has the same "
                "parameters"
            )
            continue
        begin = f"{prefix}param_groups.{same}."
        options = planned.options[number] = SavedState({}, {}, below(source.types, begin))
        for key, kind in options.types.items():
            _cannot_be_made(plan, begin + key, kind)
        for flat, taken in ((source.values, options.values), (source.rows, options.rows)):
            for key, value in below(flat, begin).items():
                if key not in not_taken and (flat is source.rows or not _is_refused(plan, begin + key, value)):
                    taken[key] = value
    _check_needs(plan, planned, target)


def _check_needs(plan: Plan, planned: OptimizerPlan, target: TargetOptimizer) -> None:
    """Adds a problem if the options of a group need state that the source does not have."""
    for place, state in planned.saved.items():
        given = planned.options[place[0]].values if place[0] in planned.options else {}
        if state.rows and (needed := target.stepping.needed(target.optimizer, place[0], given) - state.rows.keys()):
            message = (
                f"group {place[0]} of {planned.who} needs state called {listed(sorted(needed))} for its options, which "
                f"is not in {the_source(plan.source)}"
            )
            plan.add("unsupported", planned.who, message)
            return


def _is_same_kind(recorded: str, kind: str) -> bool:
    """Whether two kinds of optimizers are the same; the package is not recorded for the classes of scripts.

    >>> _is_same_kind("train.Lion", "Lion"), _is_same_kind("timm.Lion", "bitsandbytes.Lion")
    (True, False)
    """
    both = recorded.split("."), kind.split(".")
    return recorded == kind or (both[0][-1] == both[1][-1] and 1 in map(len, both))


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
