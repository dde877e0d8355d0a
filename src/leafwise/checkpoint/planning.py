"""`lw.plan`: what a load would do, leaf by leaf, from headers alone."""

import os
from collections.abc import Iterable
from typing import Any, Literal

from leafwise.checkpoint.leaves import plan_leaves
from leafwise.checkpoint.names import Match
from leafwise.checkpoint.optimizers import nested, plan_optimizers
from leafwise.checkpoint.plans import ALLOWABLE, Plan, Problem
from leafwise.checkpoint.restoring import plan_ties
from leafwise.core.match import match
from leafwise.core.rebuild import recomputed
from leafwise.core.tree import Tree, tree
from leafwise.errors import QueryError
from leafwise.files import open_file


def plan(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: bool = False,
    ties: Literal["restore", "ignore"] = "restore",
) -> Plan:
    """What `lw.load` would do with the same arguments, from headers alone. Nothing is changed, no value is read.

    `source` is a file, a folder, a URL, another live model, or a Tree. `rename` gives names of the source new ones: a
    mapping of names or of their fronts, a list of `(pattern, replacement)`, or a function; `"auto"` takes what the plan
    proposes where that is certain, and says so. `allow` lists what may happen: `"missing"`, `"unexpected"`, `"shape"`.
    `cast=True` allows other precisions.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> state = {"module.0.weight": torch.zeros(8, 4), "module.0.bias": torch.zeros(8)}
    >>> plan = lw.plan(net, state)
    >>> plan.holds, plan.coverage, plan.prefixes[0].source
    (True, 1.0, 'module.')
    """
    return make_plan(tree(model), opened(source), rename, allow, cast, ties)


def opened(source: Any, verify: bool = True) -> Tree:
    """The tree of whatever may be loaded from."""
    if isinstance(source, str | os.PathLike):
        return tree(open_file(source, verify=verify))
    return tree(source)


def make_plan(t: Tree, s: Tree, rename: Any, allow: Iterable[str], cast: bool, ties: str) -> Plan:
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
    found = Match(plan, rename)
    plan_leaves(plan, found, cast)
    _plan_scalars(plan, found)
    plan.optimizers = plan_optimizers(plan, found)
    if ties == "restore":
        plan_ties(plan, found)
    _plan_unsaved(plan)
    _conclude(plan, found)
    return plan


# -- plain values ------------------------------------------------------------------------------------------


def _plan_scalars(plan: Plan, found: Match) -> None:
    wanted = _values_of(plan.target, found.target_nodes)
    values = {key: value for key, (_, _, value) in _values_of(plan.source, []).items() if not found.is_optimizers(key)}
    given = {new: value for key, value in values.items() if (new := found.give(key)) is not None}
    keys, their_keys = list(wanted), list(given)
    sources = match(keys, their_keys).sources if keys else {}
    taken: set[str] = set()
    for number, (key, (node, name, now)) in enumerate(wanted.items()):
        inside = {one[len(key) + 1 :]: value for one, value in given.items() if one.startswith(f"{key}.")}
        if number in sources:
            taken.add(their_keys[sources[number]])
            plan.scalars[node, name] = given[their_keys[sources[number]]]
        elif inside and (now is None or (isinstance(now, list | tuple | dict) and not now)):
            # An empty container is a template for whatever was in it.
            taken.update(f"{key}.{one}" for one in inside)
            plan.scalars[node, name] = nested(inside)
        else:
            plan.found("missing", key, f"no value in the source for {key}")
    _tell_unused(plan, [key for key in given if key not in taken])


def _tell_unused(plan: Plan, unused: list[str]) -> None:
    """What nobody takes is noted; below something that takes back its state, it would be lost, and is a problem."""
    columns = plan.target._columns
    keys = columns.node_keys(plan.target._node) if unused else {}
    nodes = columns.nodes_where(lambda home, obj: home.takes_back(obj), plan.target._node) if unused else []
    taking = [keys[node] for node in nodes]
    lost = [key for key in unused if any(key.startswith(f"{front}.") for front in taking if front)]
    for key in lost:
        plan.found("unexpected", key, f"the source has a value {key}, which the target has no place for")
    unused = [key for key in unused if key not in lost]
    if unused:
        some = ", ".join(unused[:4]) + (", …" if len(unused) > 4 else "")
        plan.notes.append(f"{len(unused):,} plain value{'s' if len(unused) > 1 else ''} of the source not used: {some}")


def _values_of(t: Tree, besides: list[int]) -> dict[str, tuple[int, str, Any]]:
    """The plain values of a tree by their names; but not what a file says of itself, nor those below some nodes."""
    columns = t._columns
    if not t._whole:
        return {}
    skipped = [range(node, columns.node_ends[node]) for node in besides]
    return {
        key: (node, name, value)
        for key, node, name, value in columns.scalar_items(t._node)
        if not any(node in nodes for nodes in skipped) and not (t.is_file and key.startswith("__metadata__."))
    }


def _plan_unsaved(plan: Plan) -> None:
    """Buffers that no checkpoint holds, in a model on meta."""
    columns = plan.target._columns
    rows = [row for row in plan.target._rows if columns.row_kinds[row] == "transient" and row not in columns.ties]
    plan.recomputed, left = recomputed(columns, rows)
    for row in left:
        name = columns.row_text(row)
        message = (
            f"{name} is a buffer on meta that no checkpoint holds, and leafwise does not know how to compute it; give "
            "it values before you load, or allow it to be missing and give it values afterwards"
        )
        plan.found("missing", name, message)


def _conclude(plan: Plan, found: Match) -> None:
    wanted = bool(found.rows) or bool(plan.scalars) or bool(plan.optimizers)
    restored = any(one.states or one.options for one in plan.optimizers)
    if not (plan.feeds or plan.scalars or restored) and wanted:
        plan.problems.append(Problem("nothing", "", "nothing in the source fits anything in the target"))
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
    return t._columns.keys(t._rows, t._node)
