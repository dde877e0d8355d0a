"""One load from several files, each for a part of the target."""

from collections.abc import Callable
from typing import Any

from leafwise.checkpoint.plain_values import PlainValues
from leafwise.checkpoint.planning.plan import Feed, Plan, turned
from leafwise.core.rebuild import rebuilt
from leafwise.core.tree import Tree
from leafwise.errors import QueryError
from leafwise.files.arrays.stored import same_values


def plans_for_parts(
    t: Tree, sources: Any, planned: Callable[[Tree, Tree], Plan], open_source: Callable[[Any], Tree]
) -> list[Plan]:
    """Plans for the parts of the target that have a file. If a file does not fit as a whole because it contains several
    things, its part with the same name is used."""
    plans = []
    for name, path in sources.items():
        part = t[name] if isinstance(name, str) and name in t else None
        if not isinstance(part, Tree):
            raise QueryError(f"cannot load {path!r}: there is no {name!r} in the model")
        s = open_source(path)
        plan = planned(part, s)
        inner = s[name] if not plan.holds and name in s else None
        if isinstance(inner, Tree):
            inner_plan = planned(part, inner)
            plan = inner_plan if len(inner_plan.problems) < len(plan.problems) else plan
        plans.append(plan)
    return plans


def check_parts(t: Tree, plans: list[Plan]) -> None:
    """Adds problems for leaves that no file was given for, and for leaves that would get different values from two
    files."""
    columns = t.columns
    parts = [range(plan.target.root, columns.node_ends[plan.target.root]) for plan in plans]
    inside = {node for part in parts for node in part}
    left = [columns.row_text(row) for row in t.rows if columns.row_nodes[row] not in inside]
    roots = {id(columns.node_objects[plan.target.root]) for plan in plans}  # of which one may be a plain value itself
    left += [value.key for value in PlainValues(t).items if value.node not in inside and id(value.value) not in roots]
    for name in left:
        plans[0].add("missing", name, f"{name} is in the model, but no file was given for it")
    filled: dict[int, tuple[Plan, Feed]] = {}
    for plan in plans:
        for feed in plan.feeds:
            leaf = columns.ties.get(feed.row, feed.row)
            both = filled.setdefault(leaf, (plan, feed)), (plan, feed)
            if both[0][0] is not plan and not _same_feeds(*both):
                names = [".".join((*of.target.path.names, fed.name)) for of, fed in both]
                plan.add(
                    "unsupported",
                    feed.name,
                    f"{' and '.join(names)} are the same leaf, but two files have different values for it",
                )


def _same_feeds(*feeds: tuple[Plan, Feed]) -> bool:
    arrays = []
    for plan, feed in feeds:
        value = plan.source.columns.current(feed.source)
        arrays.append(turned(plan.source.columns.home(value).read(value, ()), feed.order))
    return same_values(*arrays)


def put_together(t: Tree, parts: list[tuple[int, Any]]) -> Any:
    """The whole target, with the loaded parts, given by node, put back into it. Parts of arrays that cannot change, as
    those of JAX, are put into new containers, so that the target stays as it was."""
    columns = t.columns
    changes: dict[int, dict[str, Any]] = {}
    replaced: list[Any] = []  # arrays of parts that are new objects
    for node, new in parts:
        changes.setdefault(columns.node_parents[node], {})[columns.node_names[node]] = new
        if new is not columns.node_objects[node]:
            replaced += [columns.row_values[row] for row in range(*columns.row_ranges[node])]
    copied = any(not home.in_place for home in columns.homes_of(replaced))
    return rebuilt(columns, t.root, changes, copied)
