"""Which row of the source fills which leaf of the target, and whether it fits."""

from typing import NamedTuple

from leafwise.checkpoint.names import Match
from leafwise.checkpoint.plans import Feed, MustAgree, Plan
from leafwise.core.columns import Columns, Facts
from leafwise.core.dtypes import number_kind
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.memory import Op
from leafwise.core.tree import Tree
from leafwise.files.home import StoredFile


class _Chosen(NamedTuple):
    """A leaf of the target with the row of the source that fills it, and other names of it that have one, too."""

    leaf: int
    row: int
    facts: Facts
    source: int
    order: tuple[int, ...] | None
    others: list[tuple[int, int]]


def plan_leaves(plan: Plan, found: Match, cast: bool) -> None:
    columns, theirs = plan.target.columns, plan.source.columns
    leaves = _rows_of_leaves(columns, found.rows)
    chosen: list[_Chosen] = []
    for (leaf, rows), facts in zip(leaves.items(), columns.facts(list(leaves)), strict=True):
        plan.leaves += 1
        if facts.kind == "parameter":
            plan.parameters += facts.spec.size
        given = [(row, found.source_of[row]) for row in rows if row in found.source_of]
        choice = _choose(columns, given)
        if choice is None:
            name = found.name_of[leaf if leaf in found.name_of else rows[0]]
            plan.found(
                "missing", name, _missing_message(name, facts, plan.source, [found.name_of[row] for row, _ in given])
            )
            found.unused += [source for _, source in given]
        else:
            row, source, order = choice
            others = [one for one in given if one[0] != row]
            chosen.append(_Chosen(leaf, row, facts, source, order, others))
    axes = _Axes(columns, theirs)
    for one, fact in zip(chosen, theirs.facts([one.source for one in chosen]), strict=True):
        feed = _fed(plan, found, one, fact, axes, cast)
        if feed is None:
            continue
        plan.feeds.append(feed)
        if one.facts.kind == "parameter":
            plan.covered += one.facts.spec.size or fact.spec.size
        for row, other in one.others:
            op = columns.row_op(row)
            if one.order is not None or not is_same_leaf(theirs, one.source, other, op):
                both = one.leaf, row
                plan.must_agree.append(MustAgree(found.name_of[row], one.source, one.order, other, op, both))
    _plan_unused(plan, found)


def _fed(plan: Plan, found: Match, one: _Chosen, given: Facts, axes: "_Axes", cast: bool) -> Feed | None:
    """How a leaf gets its values; None, and why not in the plan, where it cannot."""
    columns, theirs = plan.target.columns, plan.source.columns
    leaf, row, facts, source, order, _ = one
    name = found.name_of[leaf if leaf in found.name_of else row]
    if reason := plan.foreign.get(leaf):
        plan.refused.setdefault((reason, ""), []).append(name)
        return None
    if reason := plan.foreign_sources.get(theirs.ties.get(source, source)):
        plan.refused.setdefault((reason, " of the source"), []).append(found.source_name_of[source])
        return None
    shape, has = facts.spec.shape, given.spec.shape
    order = order or axes.turn(row, source, has)
    if has is not None and order is not None:
        has = tuple(has[axis] for axis in order)
    if shape is not None and has != shape:
        plan.found("shape", name, _shape_message(name, shape, found.source_name_of[source], has, order))
        return None
    how = _how(columns, theirs, leaf, source, name, found.source_name_of[source], order)
    if given.spec.dtype != facts.spec.dtype:
        if not (cast and number_kind(given.spec.dtype) == number_kind(facts.spec.dtype)):
            plan.found("dtype", name, _dtype_message(name, facts, given, cast))
            return None
        how = (*how, "cast")
    return Feed(leaf, name, source, order, how)


def _rows_of_leaves(columns: Columns, rows: list[int]) -> dict[int, list[int]]:
    if not columns.ties:
        return {row: [row] for row in rows}
    leaves: dict[int, list[int]] = {}
    for row in rows:
        leaves.setdefault(columns.ties.get(row, row), []).append(row)
    return leaves


def _choose(columns: Columns, given: list[tuple[int, int]]) -> tuple[int, int, tuple[int, ...] | None] | None:
    """Of the names of a leaf and their sources, one that fills all of it, and how its axes are turned for that."""
    for row, source in given:
        if columns.row_op(row) == "same":
            return row, source, None
    for row, source in given:  # a transposed name shows all of it, too
        op = columns.row_op(row)
        if op.slices is None and op.order is not None:
            return row, source, tuple(op.order.index(axis) for axis in range(len(op.order)))
    return None


def is_same_leaf(theirs: Columns, first: int, second: int, op: Op) -> bool:
    """Whether two rows of the source are one leaf there, seen as the target sees it."""
    if theirs.ties.get(first, first) != theirs.ties.get(second, second) or not op.is_told:
        return False
    one, other = theirs.row_op(first), theirs.row_op(second)
    if op == "same":
        return first == second or (one.is_told and _op_key(one) == _op_key(other))
    return one == "same" and _op_key(other) == _op_key(op)


def _op_key(op: Op) -> tuple[str, str, object]:
    return str(op), repr(op.slices), op.order


class _Axes:
    """Lines axes up by their names, where both sides name them and give them in another order."""

    def __init__(self, columns: Columns, theirs: Columns) -> None:
        self._columns, self._theirs = columns, theirs
        root = theirs.node_objects[0]
        # A file that leafwise did not write says nothing of axes, and is not asked.
        self._silent = isinstance(root, StoredFile) and root.record is None

    def turn(self, row: int, source: int, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if self._silent or shape is None or len(shape) < 2:
            return None
        given = self._theirs.row_role(source)[1]
        if given is None:
            return None
        wanted = self._columns.row_role(row)[1]
        if wanted is None or wanted == given or sorted(wanted) != sorted(given) or len(set(given)) != len(given):
            return None
        return tuple(given.index(axis) for axis in wanted)


def _how(
    columns: Columns, theirs: Columns, leaf: int, source: int, name: str, given: str, order: tuple[int, ...] | None
) -> tuple[str, ...]:
    words = ["renamed" if name != given else "matched"]
    seen = theirs.row_op(source)
    if order is not None or seen.order is not None:
        words.append("transposed")
    if seen.slices is not None:
        words.append("sliced")
    if leaf in columns.further_rows:
        words.append("tied")
    return tuple(words)


def _told(name: str, facts: Facts) -> str:
    return f"{name} ({shape_text(facts.spec.shape)} {facts.spec.dtype})"


def _missing_message(name: str, facts: Facts, source: Tree, parts: list[str]) -> str:
    if parts:
        return f"nothing in the source for all of {_told(name, facts)}, only for parts of it: {', '.join(parts[:4])}"
    at = source[name] if name in source else None  # noqa: SIM401  a Tree has no get
    if at is not None and not isinstance(at, Leaf | Tree):
        return f"{_told(name, facts)} needs an array, and in the source it is a {type(at).__name__}"
    return f"nothing in the source for {_told(name, facts)}"


def _shape_message(
    name: str, wanted: tuple[int, ...], given: str, has: tuple[int, ...] | None, order: tuple[int, ...] | None
) -> str:
    hint = "; it is the transpose" if has is not None and wanted == has[::-1] and len(wanted) == 2 else ""
    source = "it" if given == name else given
    turned = ", with its axes lined up by name" if order is not None else ""
    return f"{name} is {shape_text(wanted)}, and in the source {source} is {shape_text(has)}{turned}{hint}"


def _dtype_message(name: str, ours: Facts, theirs: Facts, cast: bool) -> str:
    repair = "; that is another kind of number, and is not cast" if cast else "; cast=True allows it"
    if not cast and number_kind(ours.spec.dtype) != number_kind(theirs.spec.dtype):
        repair = "; that is another kind of number"
    return f"{name} is {ours.spec.dtype}, and in the source {theirs.spec.dtype}{repair}"


def _plan_unused(plan: Plan, found: Match) -> None:
    theirs = plan.source.columns
    left = [found.source_rows[number] for number in found.matching.sources_left] + found.unused
    if not left:
        return
    # A further name of a leaf that is taken, all of it, is not a loss.
    taken = {theirs.ties.get(row, row) for row in found.target_of if theirs.row_op(row).slices is None}
    taken -= {theirs.ties.get(row, row) for row in found.unused}
    left = [row for row in left if theirs.ties.get(row, row) not in taken]
    for row, facts in zip(left, theirs.facts(left), strict=True):
        name = found.source_name_of[row]
        plan.found("unexpected", name, f"the source has {_told(name, facts)}, which is not in the target")
