"""`lw.plan`: what a load would do, leaf by leaf. Reads only headers."""

import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, Literal

from leafwise.checkpoint.plain_values import PlainValue, PlainValues
from leafwise.checkpoint.planning.conversions import converted_source
from leafwise.checkpoint.planning.leaf_plan import plan_leaves
from leafwise.checkpoint.planning.optimizer_plan import plan_optimizers
from leafwise.checkpoint.planning.plan import ALLOWABLE, Plan, Problem, the_source
from leafwise.checkpoint.planning.restored_ties import plan_ties
from leafwise.checkpoint.planning.saved_optimizers import OptimizerPrefixes
from leafwise.checkpoint.planning.stored_numbers import StoredNumbers, stored_numbers
from leafwise.core.capabilities.naming import Naming
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.columns import Columns
from leafwise.core.home import capability_or_none
from leafwise.core.opaque import Opaque
from leafwise.core.pairing.pairing import Pairing, Side, saved_rows
from leafwise.core.pairing.row_matching import Renaming, is_auto, match_keys
from leafwise.core.parts import unlisted
from leafwise.core.path import listed
from leafwise.core.rebuild import recomputed
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import QueryError
from leafwise.files.casts import Cast, checked_cast
from leafwise.files.plain_values import as_loaded, identical


def plan(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
) -> Plan:
    """Reports what `lw.load` would do with the same arguments. Reads only headers, and changes nothing.

    - `source` is a file, a folder, a URL, another model, also one of another framework, or a Tree.
    - `rename` renames the leaves of the source: a mapping of names or prefixes, a list of `(pattern, replacement)`, a
      function from name to name, or `"auto"`, which applies the proposed renames that are certain.
    - `allow` lists the differences to permit: `"missing"` (in the model but not in the source), `"unexpected"` (in the
      source but not in the model) and `"shape"`.
    - `cast=True` casts values to the dtypes of the model, and the load fails if a value does not fit;
      `cast="saturate"` uses the nearest number that fits.
    - `ties="ignore"` does not restore the ties of the source.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> state = {"module.0.weight": torch.zeros(8, 4), "module.0.bias": torch.zeros(8)}
    >>> plan = lw.plan(net, state)
    >>> plan.holds, plan.coverage, plan.prefixes[0].source
    (True, 1.0, 'module.')
    """
    if is_several(source):
        raise QueryError('lw.plan takes one source, not a dict of files; call lw.plan(model["NAME"], files["NAME"])')
    with opened(model, "plan") as t, opened(source, "plan") as s:
        return make_plan(t, s, rename, allow, cast, ties)


def is_several(source: Any) -> bool:
    """Whether a source is a dict of files, each for a part of the target."""
    if not isinstance(source, Mapping) or not source:
        return False
    return all(
        isinstance(part, str | os.PathLike) or (isinstance(part, Tree) and part.is_file) for part in source.values()
    )


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
    rename = _own_renames(t, s) if rename is None else rename
    plan = Plan(t, s, allowed)
    plan.saturate, plan.is_cast = checked_cast(cast) == "saturate", bool(cast)
    optimizers = OptimizerPrefixes(t, s, Renaming(rename))
    pairing = _pair(plan, optimizers, rename)
    target_values = PlainValues(t)
    wanted = _values_of(t, target_values, optimizers.nodes)
    numbers = stored_numbers(plan, pairing, wanted)
    plan_leaves(plan, pairing, bool(cast))
    _plan_scalars(plan, pairing.new_name, optimizers, (target_values, wanted, numbers))
    plan.optimizers = plan_optimizers(plan, pairing, optimizers)
    if ties == "restore":
        plan_ties(plan, pairing, optimizers.nodes)
    _plan_unsaved(plan)
    _refuse_foreign(plan)
    _conclude(plan, wanted=bool(pairing.target.rows) or bool(plan.scalars) or bool(plan.optimizers))
    return plan


def _own_renames(t: Tree, s: Tree) -> dict[str, str] | None:
    """The renames by which a model's framework stores its leaves in its own files; None if there are none."""
    root = t.columns.node_objects[0] if t.is_whole and s.is_file else None
    naming = None if root is None else capability_or_none(t.columns.home(root), Naming)
    if naming is None:
        return None
    side = Side(s, saved_rows(s))
    facts = s.columns.facts(list(side.rows))
    shapes = {name: tuple(fact.spec.shape or ()) for name, fact in zip(side.names, facts, strict=True)}
    return naming.stored_names(root, shapes) or None


def _pair(plan: Plan, optimizers: OptimizerPrefixes, rename: Any) -> Pairing:
    """Pairs the leaves of both sides, except the state of optimizers, which is matched by the names of parameters."""
    target, source = Side(plan.target, saved_rows(plan.target)), Side(plan.source, saved_rows(plan.source))
    if optimizers.nodes:
        target = Side(plan.target, [row for row in target.rows if not optimizers.has_target_row(row)])
    if optimizers.source_of:
        rows_and_names = zip(source.rows, source.names, strict=True)
        source = Side(plan.source, [row for row, name in rows_and_names if not optimizers.has_source_name(name)])
    converted = converted_source(plan, target, source, rename)
    if converted is None:
        pairing = Pairing(source, target, rename, once_per_leaf=True)
    else:
        # The names have been renamed already, before they were converted.
        # Names and shapes do not tell the layout of another framework, so no rename is found by them there.
        is_found = is_auto(rename) and not plan.is_carried
        pairing = Pairing(converted.side, target, rename if is_found else None, once_per_leaf=True)
        pairing.new_name, pairing.left_out, pairing.idle = Renaming(rename), converted.left_out, converted.idle
        if not is_found:
            pairing.proposals = []  # rename= takes stored names
        if is_auto(rename) and plan.is_carried:
            plan.notes.append('rename="auto" finds no renames for weights of another framework; pass the right ones')
    plan.prefixes, plan.proposals, plan.applied = pairing.prefixes, pairing.proposals, pairing.applied
    if is_auto(rename) and plan.proposals:
        plan.notes.append(_not_applied_note(plan))
    plan.notes += [f"rename: {rule!r} matches no name in {the_source(plan.source)}" for rule in pairing.idle]
    if pairing.left_out:
        count = len(pairing.left_out)
        leaves = "1 leaf" if count == 1 else f"{count:,} leaves"
        plan.notes.append(f"rename leaves out {leaves} of {the_source(plan.source)}")
    return pairing


def _not_applied_note(plan: Plan) -> str:
    count = sum(len(proposal.pairs) for proposal in plan.proposals)
    names = "1 rename is" if count == 1 else f"{count:,} renames are"
    return f'{names} not certain, so rename="auto" did not apply {"it" if count == 1 else "them"}'


# -- plain values ------------------------------------------------------------------------------------------


def _plan_scalars(
    plan: Plan,
    new_name: Renaming,
    optimizers: OptimizerPrefixes,
    target: tuple[PlainValues, dict[str, PlainValue], StoredNumbers],
) -> None:
    target_values, wanted, numbers = target

    def has_node(key: str) -> bool:
        return not _is_metadata(plan.source, key) and new_name(key) in target_values.node_keys

    source_values = PlainValues(plan.source, apart=has_node)
    given: dict[str, Any] = {}  # values of the source by their new names
    for key, plain in _values_of(plan.source, source_values).items():
        if optimizers.has_source_name(key):
            continue
        new = new_name(key)
        if new in given:
            raise QueryError(f"rename= gives two values the same name, {new!r}")
        if new is not None:
            # A copy, so that a live source and the target do not share a list.
            given[new] = as_loaded(plain.value) if plan.source.is_file else deepcopy(plain.value)
    source_of = match_keys(wanted, given)
    is_in_pieces = _in_pieces(plan.source, new_name, source_values)
    taken: set[str] = set()
    missing: dict[str, int] = {}  # values that the source does not have, and the nodes that they belong to
    for key, (_, node, name, now) in wanted.items():
        if key in source_of:
            taken.add(source_of[key])
            value = given[source_of[key]]
            if isinstance(value, Opaque):
                plan.add("unsupported", key, _opaque_message(plan, key, value))
            else:
                plan.scalars[node, name] = value
            continue
        if key in numbers.values:
            plan.scalars[node, name] = numbers.values[key]
            continue
        prefix = f"{key}."
        inside = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}
        if inside and not is_in_pieces(key) and set(inside) == (parts := _parts(now)).keys():
            # A container that is one value here but in parts in the source, as in distributed checkpoints of PyTorch.
            taken.update(prefix + part for part in inside)
            plan.scalars[node, name] = _with_parts(now, {parts[part]: value for part, value in inside.items()})
        elif inside:
            taken.update(prefix + part for part in inside)
            plan.add("missing", key, _in_pieces_message(plan, key, now, list(inside), is_in_pieces(key)))
        else:
            missing[key] = node
    _report_missing(plan, missing, numbers.misfits)
    _refuse_irreplaceable(plan, wanted)
    _refuse_contradictions(plan, wanted)
    _report_unused(plan, [key for key in given if key not in taken])


def _report_missing(plan: Plan, missing: dict[str, int], misfits: Mapping[str, str]) -> None:
    """Reports values that the source does not have, or not as plain values, for the reasons in `misfits`. Layers of
    another framework have other settings, so those of the model keep their values."""
    kept = [
        key
        for key, node in missing.items()
        if plan.may_be_carried and key not in misfits and _is_in_layer(plan.target.columns, node)
    ]
    for key in (key for key in missing if key not in set(kept)):
        reason = misfits.get(key) or f"{key} is in the model but not in {the_source(plan.source)}"
        plan.add("missing", key, reason)
    if kept:
        values = "1 plain value keeps its value" if len(kept) == 1 else f"{len(kept):,} plain values keep their values"
        plan.notes.append(f"{values}, because settings are not carried between frameworks: {listed(kept, 3)}")


def _is_in_layer(columns: Columns, node: int) -> bool:
    """Whether a node is a layer or is inside one."""
    while not columns.home(columns.node_objects[node]).roles_by_class:
        if not node:
            return False
        node = columns.node_parents[node]
    return True


def _opaque_message(plan: Plan, key: str, value: Opaque) -> str:
    return (
        f"{key} is an object of class {value.class_name} in {the_source(plan.source)}, which leafwise does not load; "
        f"leave {key} out of what you load into, or load it with PyTorch"
    )


def _refuse_irreplaceable(plan: Plan, wanted: dict[str, PlainValue]) -> None:
    """Refuses plain values that would change but belong to nodes whose values cannot be replaced."""
    columns = plan.target.columns
    for key, (_, node, name, now) in wanted.items():
        if (node, name) in plan.scalars:
            owner = columns.node_objects[node]
            reason = columns.home(owner).capability(Rebuilding).cannot_replace(owner)
            if reason and identical(plan.scalars[node, name], now):
                del plan.scalars[node, name]
            elif reason:
                new = plan.scalars[node, name]
                message = f"{key} is {now!r} in the model but {new!r} in {the_source(plan.source)}; {reason}"
                plan.add("unsupported", key, message)


def _refuse_contradictions(plan: Plan, wanted: dict[str, PlainValue]) -> None:
    """Refuses two different values for a container that has two names in the target."""
    columns = plan.target.columns
    first: dict[tuple[int, str], tuple[str, Any]] = {}
    for key, (_, node, name, _) in wanted.items():
        if (node, name) not in plan.scalars:
            continue
        value = plan.scalars[node, name]
        first_key, first_value = first.setdefault((id(columns.node_objects[node]), name), (key, value))
        if first_key != key and not identical(value, first_value):
            message = (
                f"{first_key} and {key} are the same value in the model, but {the_source(plan.source)} has different "
                "values for them"
            )
            plan.add("unsupported", key, message)


def _in_pieces(source: Tree, new_name: Renaming, values: PlainValues) -> Callable[[str], bool]:
    """Whether the source records that a container contains arrays, or is of a type that leafwise cannot rebuild."""

    @cache
    def new_keys() -> list[str]:  # made when they are needed: there may be a million names, and no container
        keys = [*values.node_types(), *_names_of(source)]
        return [new for key in keys if (new := new_name(key)) is not None]

    return lambda container: any(key == container or key.startswith(f"{container}.") for key in new_keys())


def _in_pieces_message(plan: Plan, key: str, now: Any, parts: list[str], is_known: bool) -> str:
    names = ", ".join(f"{key}.{part}" for part in parts[:3]) + (", …" if len(parts) > 3 else "")
    reason = (
        "because it contained arrays or is of a type that leafwise cannot rebuild; the model needs a container of the "
        "same kind"
        if is_known
        else "and its type is not known; the model needs a container with exactly these parts"
    )
    return f"{key} is stored in parts in {the_source(plan.source)} ({names}), {reason}, but has {now!r:.60}"


Steps = tuple[Any, ...]
_NEVER_IN_PIECES = frozenset({str, int, float, complex, bool, bytes, type(None)})  # a list of these is one value


def _parts(value: Any, steps: Steps = (), names: tuple[str, ...] = ()) -> dict[str, Steps]:
    """The keys and indices that lead to each value inside a container, by its path below the container."""
    items: Iterable[tuple[Any, Any]] = ()
    if type(value) is dict:
        items = value.items()
    elif type(value) in (list, tuple) and not _NEVER_IN_PIECES.issuperset(map(type, value)):
        items = enumerate(value)
    parts: dict[str, Steps] = {}
    for step, item in items:
        parts |= _parts(item, (*steps, step), (*names, str(step)))
    return parts or {".".join(names): steps}


def _with_parts(value: Any, new: dict[Steps, Any], steps: Steps = ()) -> Any:
    """A copy of a container with new values, given by the keys and indices that lead to them."""
    if steps in new:
        return new[steps]
    if type(value) is dict:
        return {key: _with_parts(item, new, (*steps, key)) for key, item in value.items()}
    return type(value)(_with_parts(item, new, (*steps, number)) for number, item in enumerate(value))


def _report_unused(plan: Plan, unused: list[str]) -> None:
    """Reports values of the source that are not used. A value inside a container that the target has would be lost, so
    it is unexpected; other values are only noted. Settings of another framework are not even noted."""
    if plan.is_carried:
        return
    columns = plan.target.columns
    keys = columns.node_keys(plan.target.root) if unused else {}
    holding = {key for node, key in keys.items() if key and _must_be_whole(columns, node)}
    root = columns.node_objects[plan.target.root]
    lost = [
        key
        for key in unused
        if isinstance(root, list | tuple) or any(key.startswith(f"{prefix}.") for prefix in holding)
    ]
    for key in lost:
        plan.add("unexpected", key, f"the value {key} is in {the_source(plan.source)} but not in the model")
    unused = [key for key in unused if key not in set(lost)] if lost else unused
    if unused:
        names = ", ".join(unused[:4]) + (", …" if len(unused) > 4 else "")
        count = "1 plain value" if len(unused) == 1 else f"{len(unused):,} plain values"
        plan.notes.append(f"{count} of {the_source(plan.source)} not used: {names}")


def _must_be_whole(columns: Columns, node: int) -> bool:
    """Whether a node of the target must be restored exactly as it was saved: a container below the outermost one, or an
    object with a state dict."""
    obj = columns.node_objects[node]
    rebuilding = columns.home(obj).capability(Rebuilding)
    return rebuilding.shows_copies(obj) or rebuilding.is_container(obj)


def _values_of(t: Tree, values: PlainValues, excluded: Iterable[int] = ()) -> dict[str, PlainValue]:
    """The plain values of a tree by name, without the metadata of a file and without values below excluded nodes."""
    if not t.is_whole:
        return {}
    skipped = [range(node, t.columns.node_ends[node]) for node in excluded]
    return {
        value.key: value
        for value in values.items
        if not any(value.node in nodes for nodes in skipped) and not _is_metadata(t, value.key)
    }


def _is_metadata(t: Tree, key: str) -> bool:
    """Whether a plain value belongs to the metadata of a file."""
    return t.is_file and f"{key}.".startswith("__metadata__.")


def _plan_unsaved(plan: Plan) -> None:
    """Computes non-persistent buffers of a model on meta; those that leafwise cannot compute are missing."""
    columns = plan.target.columns
    rows = [row for row in plan.target.rows if columns.row_kinds[row] == "transient" and row not in columns.ties]
    plan.recomputed, left = recomputed(columns, rows)
    for row in left:
        name = columns.row_text(row)
        message = (
            f"{name} is a non-persistent buffer on meta: checkpoints do not store it, and leafwise does not know how "
            'to compute it; give it values before you load, or pass allow={"missing"} and give it values afterwards'
        )
        plan.add("missing", name, message)


def _refuse_foreign(plan: Plan) -> None:
    """Adds a problem for each reason why leafwise does not understand something on either side: leaves, and nodes with
    parameters that the walk does not find."""
    in_source = f" in {the_source(plan.source)}"
    for t, side, foreign in ((plan.target, "", plan.foreign), (plan.source, in_source, plan.foreign_sources)):
        # Leaves that are not understood are refused anyway, and their state dict may need all processes.
        for node, reason in unlisted(t, saved=not foreign).items():
            plan.refused.setdefault((reason, side), []).append(t.columns.node_text(node) or "the model")
    for (reason, side), names in plan.refused.items():
        plan.add("unsupported", names[0], f"{listed(names, 4)}{side}: {reason}")


def _conclude(plan: Plan, wanted: bool) -> None:
    """Adds a problem if nothing can be loaded, and hints if there are problems. `wanted`: whether there is anything to
    fill."""
    restored = any(optimizer.states or optimizer.options for optimizer in plan.optimizers)
    # An unsupported leaf, or a cast that is not asked for, already explains why nothing can be loaded.
    unsupported = any(problem.kind == "unsupported" for problem in plan.problems)
    explained = unsupported or plan.castable
    if not (plan.feeds or plan.scalars or restored or explained) and wanted:
        reasons = "".join(f"; {reason}" for reason in {*plan.foreign.values(), *plan.foreign_sources.values()})
        message = f"nothing in {the_source(plan.source)} can be loaded into the model{reasons}"
        plan.problems.append(Problem("nothing", "", message))
        plan.notes += _hints(plan)
    elif plan.problems:
        plan.notes += _hints(plan)


def _hints(plan: Plan) -> list[str]:
    """If the source contains several things, how to load one of them."""
    if not plan.unexpected:
        return []
    tops = dict.fromkeys(name.partition(".")[0] for name in _names_of(plan.source))
    theirs = {prefix.source.partition(".")[0] for prefix in plan.prefixes if prefix.source}
    for top in theirs & tops.keys():
        if len(tops) > 1:
            opening = "lw.open(path)" if plan.source.is_file else "lw.tree(source)"
            names = ", ".join(list(tops)[:5])
            return [
                f'{the_source(plan.source)} contains {names}; to load one of them: lw.load(model, {opening}["{top}"])'
            ]
    return []


def _names_of(t: Tree) -> list[str]:
    return t.columns.keys(t.rows, t.root)
