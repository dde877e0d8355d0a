"""`lw.plan`: what a load would do, leaf by leaf, from headers alone."""

import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

from leafwise.checkpoint.leaves import plan_leaves
from leafwise.checkpoint.names import Match
from leafwise.checkpoint.optimizers import plan_optimizers
from leafwise.checkpoint.plans import ALLOWABLE, Plan, Problem
from leafwise.checkpoint.restoring import plan_ties
from leafwise.checkpoint.values import PlainValue, PlainValues
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.columns import Columns
from leafwise.core.match import match
from leafwise.core.path import listed
from leafwise.core.rebuild import recomputed
from leafwise.core.tree import Tree, tree
from leafwise.errors import QueryError
from leafwise.files import open_file
from leafwise.files.casts import Cast, checked_cast
from leafwise.files.plain_values import identical


def plan(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
) -> Plan:
    """What `lw.load` would do with the same arguments, from headers alone. Nothing is changed, no value is read.

    `source` is a file, a folder, a URL, another live model, or a Tree. `rename` gives names of the source new ones: a
    mapping of names or of their fronts, a list of `(pattern, replacement)`, or a function; `"auto"` takes what the plan
    proposes where that is certain, and says so. `allow` lists what may happen: `"missing"`, `"unexpected"`, `"shape"`.
    `cast=True` allows other precisions, where every value fits; `"saturate"` takes the nearest for those that do not.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> state = {"module.0.weight": torch.zeros(8, 4), "module.0.bias": torch.zeros(8)}
    >>> plan = lw.plan(net, state)
    >>> plan.holds, plan.coverage, plan.prefixes[0].source
    (True, 1.0, 'module.')
    """
    if is_several(source):
        raise QueryError("lw.plan takes one source at a time; give it a part of the target, and the source for that")
    return make_plan(tree(model), opened(source), rename, allow, cast, ties)


def is_several(source: Any) -> bool:
    """Whether a source is a dict of files, each for a part of the target."""
    if not isinstance(source, Mapping) or not source:
        return False
    kinds = {isinstance(one, str | os.PathLike) or (isinstance(one, Tree) and one.is_file) for one in source.values()}
    return kinds == {True}


def opened(source: Any, verify: bool = True) -> Tree:
    """The tree of whatever may be loaded from."""
    if isinstance(source, str | os.PathLike):
        return tree(open_file(source, verify=verify))
    return tree(source)


def make_plan(t: Tree, s: Tree, rename: Any, allow: Iterable[str], cast: Cast, ties: str) -> Plan:
    try:
        allowed = frozenset([allow] if isinstance(allow, str) else allow)
    except TypeError as error:
        raise QueryError(f"allow= takes a set of {', '.join(map(repr, ALLOWABLE))}, not {allow!r}") from error
    if not allowed <= set(ALLOWABLE):
        raise QueryError(
            f"allow= takes {', '.join(map(repr, ALLOWABLE))}, not {sorted(map(str, allowed - {*ALLOWABLE}))}"
        )
    if ties not in ("restore", "ignore"):
        raise QueryError(f'ties= takes "restore" or "ignore", not {ties!r}')
    plan = Plan(t, s, allowed)
    plan.saturate = checked_cast(cast) == "saturate"
    found = Match(plan, rename)
    plan_leaves(plan, found, bool(cast))
    _plan_scalars(plan, found)
    plan.optimizers = plan_optimizers(plan, found)
    if ties == "restore":
        plan_ties(plan, found)
    _plan_unsaved(plan)
    _refuse_foreign(plan)
    _conclude(plan, found)
    return plan


# -- plain values ------------------------------------------------------------------------------------------


def _plan_scalars(plan: Plan, found: Match) -> None:
    ours = PlainValues(plan.target)
    wanted = _values_of(plan.target, ours, found.target_nodes)
    nodes = ours.node_keys()
    theirs = PlainValues(plan.source, apart=lambda key: found.give(key) in nodes)
    values = {key: one.value for key, one in _values_of(plan.source, theirs).items() if not found.is_optimizers(key)}
    given: dict[str, Any] = {}
    for key, value in values.items():
        new = found.give(key)
        if new in given:
            raise QueryError(f"rename= would call two values {new!r}")
        if new is not None:
            given[new] = value if plan.source.is_file else deepcopy(value)  # not the very list that the source has
    keys, their_keys = list(wanted), list(given)
    sources = match(keys, their_keys).sources if keys else {}
    is_known = _known_in_pieces(plan, found, theirs)
    taken: set[str] = set()
    for number, (key, (_, node, name, now)) in enumerate(wanted.items()):
        if number in sources:
            taken.add(their_keys[sources[number]])
            plan.scalars[node, name] = given[their_keys[sources[number]]]
            continue
        inside = {one[len(key) + 1 :]: value for one, value in given.items() if one.startswith(f"{key}.")}
        if inside and not is_known(key) and set(inside) == (parts := _parts(now)).keys():
            # A container that is in pieces in the source, as earlier versions of leafwise saved it, and whole here.
            taken.update(f"{key}.{one}" for one in inside)
            plan.scalars[node, name] = _with_parts(now, {parts[one]: value for one, value in inside.items()})
        elif inside:
            taken.update(f"{key}.{one}" for one in inside)
            plan.found("missing", key, _in_pieces_message(key, now, list(inside), is_known(key)))
        else:
            plan.found("missing", key, f"no value in the source for {key}")
    _refuse_contradictions(plan, wanted)
    _tell_unused(plan, [key for key in given if key not in taken])


def _refuse_contradictions(plan: Plan, wanted: dict[str, PlainValue]) -> None:
    """One container that stands in two places of the target cannot hold two values."""
    columns = plan.target.columns
    first: dict[tuple[int, str], tuple[str, Any]] = {}
    for key, (_, node, name, _) in wanted.items():
        if (node, name) not in plan.scalars:
            continue
        value = plan.scalars[node, name]
        other, earlier = first.setdefault((id(columns.node_objects[node]), name), (key, value))
        if other != key and not identical(value, earlier):
            message = f"{other} and {key} are one place in the target, and the source has two values for it"
            plan.found("unsupported", key, message)


def _known_in_pieces(plan: Plan, found: Match, theirs: PlainValues) -> Callable[[str], bool]:
    """Whether the source says of a container that it holds arrays, or is of a type that no file can make."""
    known = [*theirs.node_types(), *found_names(plan.source)]
    renamed = [new for key in known if (new := found.give(key)) is not None]
    return lambda key: any(one == key or one.startswith(f"{key}.") for one in renamed)


def _in_pieces_message(key: str, now: Any, parts: list[str], known: bool) -> str:
    some = ", ".join(f"{key}.{part}" for part in parts[:3]) + (", …" if len(parts) > 3 else "")
    why = (
        "because it held arrays, or was of a type that a file cannot make; the target needs one like it"
        if known
        else "and nothing says what it was; the target needs a value with just these pieces"
    )
    return f"{key} is in pieces in the source ({some}), {why}, and has {now!r:.60}"


Steps = tuple[Any, ...]
_NEVER_IN_PIECES = frozenset({str, int, float, complex, bool, bytes, type(None)})  # of which a list is one value


def _parts(value: Any, steps: Steps = (), names: tuple[str, ...] = ()) -> dict[str, Steps]:
    """The steps to each value inside a container, by their names joined with dots, as a walk would name them."""
    items: Iterable[tuple[str, Any, Any]] = ()
    if type(value) is dict:
        items = [(str(key), key, one) for key, one in value.items()]
    elif type(value) in (list, tuple) and not _NEVER_IN_PIECES.issuperset(map(type, value)):
        items = [(str(number), number, one) for number, one in enumerate(value)]
    found: dict[str, Steps] = {}
    for name, step, one in items:
        found |= _parts(one, (*steps, step), (*names, name))
    return found or {".".join(names): steps}


def _with_parts(value: Any, new: dict[Steps, Any], steps: Steps = ()) -> Any:
    """A container with other values at the end of these steps."""
    if steps in new:
        return new[steps]
    if type(value) is dict:
        return {key: _with_parts(one, new, (*steps, key)) for key, one in value.items()}
    return type(value)(_with_parts(one, new, (*steps, number)) for number, one in enumerate(value))


def _tell_unused(plan: Plan, unused: list[str]) -> None:
    """What nobody takes. A value of its own is noted; one that belongs into a container which the target has would be
    lost from it, and is a problem."""
    columns = plan.target.columns
    keys = columns.node_keys(plan.target.root) if unused else {}
    holding = {key for node, key in keys.items() if key and _must_be_whole(columns, node)}
    root = columns.node_objects[plan.target.root]
    lost = [
        key for key in unused if isinstance(root, list | tuple) or any(key.startswith(f"{front}.") for front in holding)
    ]
    for key in lost:
        plan.found("unexpected", key, f"the source has a value {key}, which the target has no place for")
    unused = [key for key in unused if key not in set(lost)] if lost else unused
    if unused:
        some = ", ".join(unused[:4]) + (", …" if len(unused) > 4 else "")
        plan.notes.append(f"{len(unused):,} plain value{'s' if len(unused) > 1 else ''} of the source not used: {some}")


def _must_be_whole(columns: Columns, node: int) -> bool:
    """Whether a node of the target is something that comes back as it was saved: a container below the outermost one,
    or something that takes back its state."""
    obj = columns.node_objects[node]
    rebuilding = columns.home(obj).capability(Rebuilding)
    return rebuilding.shows_copies(obj) or rebuilding.is_container(obj)


def _values_of(t: Tree, values: PlainValues, besides: Iterable[int] = ()) -> dict[str, PlainValue]:
    """The plain values of a tree by their names; but not what a file says of itself, nor those below some nodes."""
    if not t.is_whole:
        return {}
    skipped = [range(node, t.columns.node_ends[node]) for node in besides]
    return {
        value.key: value
        for value in values.items
        if not any(value.node in nodes for nodes in skipped)
        and not (t.is_file and (value.key + ".").startswith("__metadata__."))
    }


def _plan_unsaved(plan: Plan) -> None:
    """Buffers that no checkpoint holds, in a model on meta."""
    columns = plan.target.columns
    rows = [row for row in plan.target.rows if columns.row_kinds[row] == "transient" and row not in columns.ties]
    plan.recomputed, left = recomputed(columns, rows)
    for row in left:
        name = columns.row_text(row)
        message = (
            f"{name} is a buffer on meta that no checkpoint holds, and leafwise does not know how to compute it; give "
            "it values before you load, or allow it to be missing and give it values afterwards"
        )
        plan.found("missing", name, message)


def _refuse_foreign(plan: Plan) -> None:
    """What leafwise does not understand, a problem for each reason: leaves that would get values, or give them, and
    nodes that keep what is theirs where no walk finds it."""
    for t, whose, foreign in ((plan.target, "", plan.foreign), (plan.source, " of the source", plan.foreign_sources)):
        # What is foreign is refused already, and its state dict may need all processes.
        for node, reason in t.unlisted(saved=not foreign).items():
            plan.refused.setdefault((reason, whose), []).append(t.columns.node_text(node) or "the model")
    for (reason, whose), names in plan.refused.items():
        plan.found("unsupported", names[0], f"{listed(names, 4)}{whose}: {reason}")


def _conclude(plan: Plan, found: Match) -> None:
    wanted = bool(found.rows) or bool(plan.scalars) or bool(plan.optimizers)
    restored = any(one.states or one.options for one in plan.optimizers)
    unsupported = any(problem.kind == "unsupported" for problem in plan.problems)  # which says it all
    if not (plan.feeds or plan.scalars or restored or unsupported) and wanted:
        why = "".join(f"; {reason}" for reason in {*plan.foreign.values(), *plan.foreign_sources.values()})
        plan.problems.append(Problem("nothing", "", f"nothing in the source fits anything in the target{why}"))
        plan.notes += _hints(plan)
    elif plan.problems:
        plan.notes += _hints(plan)


def _hints(plan: Plan) -> list[str]:
    """Where the source is a checkpoint of several things, how to name the one that is meant."""
    if not plan.unexpected:
        return []
    tops = dict.fromkeys(name.partition(".")[0] for name in found_names(plan.source))
    theirs = {prefix.source.partition(".")[0] for prefix in plan.prefixes if prefix.source}
    for top in theirs & tops.keys():
        if len(tops) > 1:
            return [
                f'the source holds {", ".join(list(tops)[:5])}; load one of them: lw.load(model, lw.open(…)["{top}"])'
            ]
    return []


def found_names(t: Tree) -> list[str]:
    return t.columns.keys(t.rows, t.root)
