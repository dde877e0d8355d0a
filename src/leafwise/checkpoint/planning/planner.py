"""`lw.plan`: what a load would do, leaf by leaf. Reads only headers."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from leafwise.checkpoint.plain_values import PlainValues
from leafwise.checkpoint.planning.carrying import warn_of_layouts
from leafwise.checkpoint.planning.conversions import converted_source
from leafwise.checkpoint.planning.flattening import asked_channels
from leafwise.checkpoint.planning.leaf_plan import plan_leaves
from leafwise.checkpoint.planning.optimizer_plan import plan_optimizers
from leafwise.checkpoint.planning.plan import ALLOWABLE, Plan, Problem, the_source
from leafwise.checkpoint.planning.restored_ties import plan_ties
from leafwise.checkpoint.planning.saved_optimizers import OptimizerPrefixes
from leafwise.checkpoint.planning.value_plan import plan_values, stored_numbers, values_of
from leafwise.core.capabilities.naming import Naming
from leafwise.core.home import capability_or_none
from leafwise.core.pairing.row_matching import Renaming, is_auto
from leafwise.core.pairing.row_pairs import Pairing, Side, saved_rows
from leafwise.core.parts import unlisted
from leafwise.core.path import listed, plural
from leafwise.core.rebuild import recomputed
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import QueryError
from leafwise.files.casts import Cast, checked_cast


def plan(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
    flatten: Any = None,
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
    - `flatten`, between frameworks, names leaves of the model whose inputs are the flattened output of a convolution,
      so that they are reordered; as a dict, it has the number of channels of each.

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
        return make_plan(t, s, rename, allow, cast, ties, flatten)


def is_several(source: Any) -> bool:
    """Whether a source is a dict of files, each for a part of the target."""
    if not isinstance(source, Mapping) or not source:
        return False
    return all(
        isinstance(part, str | os.PathLike) or (isinstance(part, Tree) and part.is_file) for part in source.values()
    )


def make_plan(t: Tree, s: Tree, rename: Any, allow: Iterable[str], cast: Cast, ties: str, flatten: Any = None) -> Plan:
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
    is_renamed = rename is not None and not is_auto(rename)
    rename = _own_renames(t, s) if rename is None else rename
    plan = Plan(t, s, allowed)
    plan.saturate, plan.is_cast = checked_cast(cast) == "saturate", bool(cast)
    plan.flatten = asked_channels(flatten)
    optimizers = OptimizerPrefixes(t, s, Renaming(rename))
    pairing = _pair(plan, optimizers, rename)
    if plan.flatten and not plan.is_carried:
        raise QueryError(f"flatten= is for weights of another framework, which {the_source(plan.source)} does not have")
    target_values = PlainValues(t)
    wanted = values_of(t, target_values, optimizers.nodes)
    numbers = stored_numbers(plan, pairing, wanted)
    plan_leaves(plan, pairing, bool(cast))
    if is_renamed:
        warn_of_layouts(plan)
    plan_values(plan, pairing.new_name, optimizers, (target_values, wanted, numbers))
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
        leaves = plural(len(pairing.left_out), "leaf", "leaves")
        plan.notes.append(f"rename leaves out {leaves} of {the_source(plan.source)}")
    return pairing


def _not_applied_note(plan: Plan) -> str:
    count = sum(len(proposal.pairs) for proposal in plan.proposals)
    names = plural(count, "rename is", "renames are")
    return f'{names} not certain, so rename="auto" did not apply {"it" if count == 1 else "them"}'


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
        for path, reason in unlisted(t, saved=not foreign).items():
            plan.refused.setdefault((reason, side), []).append(path or "the model")
    for (reason, side), names in plan.refused.items():
        plan.add("unsupported", names[0], f"{listed(names, 4)}{side}: {reason}")


def _conclude(plan: Plan, wanted: bool) -> None:
    """Adds a problem if nothing can be loaded, and hints if there are problems. `wanted`: whether there is anything to
    fill."""
    options = [options.values for each in plan.optimizers for options in each.options.values()]
    restored = any(each.states or each.own for each in plan.optimizers) or any(options)
    # An unsupported leaf, or a cast that is not asked for, already explains why nothing can be loaded.
    explained = plan.castable or any(problem.kind == "unsupported" for problem in plan.problems)
    if not (plan.feeds or plan.scalars or restored or explained) and wanted:
        reasons = "".join(f"; {reason}" for reason in {*plan.foreign.values(), *plan.foreign_sources.values()})
        message = f"nothing in {the_source(plan.source)} can be loaded into the model{reasons}"
        plan.problems.append(Problem("nothing", "", message))
    if plan.problems and plan.unexpected:
        _note_parts(plan)


def _note_parts(plan: Plan) -> None:
    """If the source contains several things, adds how to load one of them."""
    keys = plan.source.columns.keys(plan.source.rows, plan.source.root)
    tops = dict.fromkeys(key.partition(".")[0] for key in keys)
    theirs = {prefix.source.partition(".")[0] for prefix in plan.prefixes if prefix.source}
    top = next(iter(theirs & tops.keys()), None)
    if top is not None and len(tops) > 1:
        opening = "lw.open(path)" if plan.source.is_file else "lw.tree(source)"
        names = ", ".join(list(tops)[:5])
        plan.notes.append(
            f'{the_source(plan.source)} contains {names}; to load one of them: lw.load(model, {opening}["{top}"])'
        )
