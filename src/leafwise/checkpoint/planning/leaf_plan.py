"""Plans the leaves: which row of the source fills which leaf of the target, and whether it fits."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import record_of
from leafwise.checkpoint.planning.plan import Feed, MustAgree, Plan, the_source, turned_shape
from leafwise.core.columns import Columns, Facts
from leafwise.core.dtypes import is_castable, number_kind
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.opaque import Opaque
from leafwise.core.pairing.row_pairs import Pairing
from leafwise.core.path import listed, plural
from leafwise.core.roles.role_table import KEY_DTYPE, other_implementations
from leafwise.core.tree import Tree


class _FilledLeaf(NamedTuple):
    """A leaf of the target, the row of the source that fills it, and its other names that also have a source."""

    leaf: int
    row: int
    facts: Facts
    source: int
    order: tuple[int, ...] | None
    further: Sequence[tuple[int, int]]


def plan_leaves(plan: Plan, pairing: Pairing, cast: bool) -> None:
    columns, theirs = plan.target.columns, plan.source.columns
    name_of, source_of = pairing.target.name_of, pairing.source_of
    leaves = _rows_of_leaves(columns, pairing.target.rows)
    fillings: list[_FilledLeaf] = []
    unused: list[int] = []  # rows of the source that match a leaf but cannot fill it
    first_rows = pairing.target.rows if leaves is None else list(leaves)
    for leaf, facts in zip(first_rows, columns.facts(first_rows), strict=True):
        rows: Sequence[int] = (leaf,) if leaves is None else leaves[leaf]
        plan.leaves += 1
        if facts.kind == "parameter":
            plan.parameters += facts.spec.size
        paired = [(row, source_of[row]) for row in rows if row in source_of]
        choice = _choose(columns, paired)
        if choice is None:
            name = name_of[leaf if leaf in name_of else rows[0]]
            parts = [name_of[row] for row, _ in paired]
            if facts.spec.device != "meta" and plan.keeps.issuperset(name_of[row] for row in rows):
                plan.kept.append(name)
            else:
                plan.add("missing", name, *_missing_messages(name, facts, plan.source, parts))
            unused += [source for _, source in paired]
        else:
            row, source, order = choice
            further = [pair for pair in paired if pair[0] != row] if len(paired) > 1 else ()
            fillings.append(_FilledLeaf(leaf, row, facts, source, order, further))
    axes = _Axes(plan)
    sources = theirs.facts([filling.source for filling in fillings])
    for filling, source_facts in zip(fillings, sources, strict=True):
        feed = _fed(plan, pairing, filling, source_facts, axes, cast)
        if feed is None:
            continue
        plan.feeds.append(feed)
        if filling.facts.kind == "parameter":
            size = filling.facts.spec.size or source_facts.spec.size
            plan.covered += size
            plan.parameters += size - filling.facts.spec.size  # a lazy leaf gets the shape of its source
        for row, source in filling.further:
            op = columns.row_op(row)
            if filling.order is not None or not is_same_leaf(theirs, filling.source, source, op):
                rows_of_target = filling.leaf, row
                plan.must_agree.append(
                    MustAgree(name_of[row], filling.source, filling.order, source, op, rows_of_target)
                )
    _note_other_roles(plan, {name_of[row]: roles for row, roles in axes.other_roles.items()})
    if plan.must_agree:
        names = listed([must.name for must in plan.must_agree], 3)
        plan.notes.append(
            f"{names} is tied in the model, but {the_source(plan.source)} stores it separately: the load compares the "
            "values, and fails if they differ"
        )
    if plan.kept:
        keep = plural(len(plan.kept), "leaf keeps its value", "leaves keep their values")
        plan.notes.append(f"{keep}: {plan.keeps_what}")
    _plan_unused(plan, pairing, unused)


def _note_other_roles(plan: Plan, roles: dict[str, str]) -> None:
    if roles:
        names, both = listed(list(roles), 3), next(iter(roles.values()))
        plan.notes.append(f"{the_source(plan.source)} has another kind of layer for {names}: {both}")


def _fed(
    plan: Plan, pairing: Pairing, filling: _FilledLeaf, source_facts: Facts, axes: "_Axes", cast: bool
) -> Feed | None:
    """How a leaf gets its values. If it cannot, adds the reason to the plan and returns None."""
    theirs = plan.source.columns
    leaf, row, facts, source, order, _ = filling
    name_of, source_name = pairing.target.name_of, pairing.source.name_of[source]
    name = name_of[leaf if leaf in name_of else row]
    if reason := plan.foreign.get(leaf):
        plan.refused.setdefault((reason, ""), []).append(name)
        return None
    if reason := plan.foreign_sources.get(theirs.ties.get(source, source)):
        plan.refused.setdefault((reason, f" in {the_source(plan.source)}"), []).append(source_name)
        return None
    shape, source_shape = facts.spec.shape, source_facts.spec.shape
    if not plan.is_carried:  # if it is, the axes are already those of the model
        if reversal := axes.reversal(row, source, shape):
            plan.add("unsupported", name, f"{name} {reversal}")
            return None
        order = order or axes.turn(row, source, source_shape)
    if source_shape is not None and order is not None:
        source_shape = turned_shape(source_shape, order)
    both_are_keys = facts.spec.dtype == source_facts.spec.dtype == KEY_DTYPE
    if both_are_keys and (reason := _other_key(plan, row, source, name)):
        plan.add("dtype", name, reason)
        return None
    if shape is not None and source_shape != shape:
        messages = _shape_messages(name, shape, source_name, source_shape, order, the_source(plan.source))
        plan.add("shape", name, *messages)
        return None
    how = _how(plan, leaf, source, name, source_name, order)
    if source_facts.spec.dtype != facts.spec.dtype:
        same_kind = number_kind(source_facts.spec.dtype) == number_kind(facts.spec.dtype)
        if not (cast and same_kind and is_castable(facts.spec.dtype)):
            plan.castable += same_kind and is_castable(facts.spec.dtype)
            plan.add("dtype", name, *_dtype_messages(name, facts, source_facts, the_source(plan.source)))
            return None
        how = _kept((*how, "cast"))
    return Feed(leaf, name, source, order, how)


def _rows_of_leaves(columns: Columns, rows: Sequence[int]) -> dict[int, list[int]] | None:
    """The rows of each leaf; None if every leaf has one row."""
    if not columns.ties:
        return None
    leaves: dict[int, list[int]] = {}
    for row in rows:
        leaves.setdefault(columns.ties.get(row, row), []).append(row)
    return leaves


def _choose(columns: Columns, paired: list[tuple[int, int]]) -> tuple[int, int, tuple[int, ...] | None] | None:
    """Chooses a name of a leaf whose source fills the whole leaf, and the order in which to take its axes."""
    ops = columns.row_ops
    for row, source in paired:
        if row not in ops or ops[row] == "same":
            return row, source, None
    for row, source in paired:  # a transposed name also covers the whole leaf
        op = columns.row_op(row)
        if op.slices is None and op.order is not None:
            return row, source, tuple(op.order.index(axis) for axis in range(len(op.order)))
    return None


def is_same_leaf(theirs: Columns, first: int, second: int, op: Op) -> bool:
    """Whether two rows are the same leaf in the source, and related by `op` as in the target."""
    if theirs.ties.get(first, first) != theirs.ties.get(second, second) or not op.is_described:
        return False
    first_op, second_op = theirs.row_op(first), theirs.row_op(second)
    if op == "same":
        return first == second or (first_op.is_described and _op_key(first_op) == _op_key(second_op))
    return first_op == "same" and _op_key(second_op) == _op_key(op)


def _op_key(op: Op) -> tuple[str, str, object]:
    return str(op), repr(op.slices), op.order


class _Axes:
    """Matches axes by name, if both sides name them but list them in a different order."""

    def __init__(self, plan: Plan) -> None:
        self._columns, self._theirs = plan.target.columns, plan.source.columns
        self.other_roles: dict[int, str] = {}  # by row of the target, both roles where they differ
        # A file that leafwise did not write has no names of axes.
        self._silent = plan.source.is_file and record_of(self._theirs) is None

    def turn(self, row: int, source: int, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if self._silent or shape is None or len(shape) < 2:
            return None
        their_role, axes = self._theirs.row_role(source)
        if axes is None:
            return None
        role, wanted = self._columns.row_role(row)
        if role is not None and their_role is not None and role != their_role:
            self.other_roles[row] = f"{their_role} there and {role} in the model"
        if wanted is None or wanted == axes or sorted(wanted) != sorted(axes) or len(set(axes)) != len(axes):
            return None
        return tuple(axes.index(axis) for axis in wanted)

    def reversal(self, row: int, source: int, shape: tuple[int, ...] | None) -> str:
        """Why two leaves of one role do not fit, if an axis runs in reverse on one side only; else empty."""
        if self._silent or shape is None or len(shape) < 3:  # only kernels with spatial axes have such axes
            return ""
        (their_role, theirs), (role, ours) = self._theirs.row_role(source), self._columns.row_role(row)
        if role != their_role or ours is None or theirs is None or len(ours) != len(theirs):
            return ""
        if {axis for axis in ours if axis[0] == "-"} == {axis for axis in theirs if axis[0] == "-"}:
            return ""
        return (
            f"has the axes ({', '.join(ours)}) in the model but ({', '.join(theirs)}) in the source, where a minus "
            "is an axis in reverse; create both layers with the same settings, such as transpose_kernel="
        )


def _how(
    plan: Plan, leaf: int, source: int, name: str, source_name: str, order: tuple[int, ...] | None
) -> tuple[str, ...]:
    words = ["renamed" if name != source_name else "matched"]
    if source in plan.recipes:
        words = list(plan.recipes[source].words())
    op = plan.source.columns.row_ops.get(source, SAME)
    if (order is not None or op.order is not None) and not any(word.startswith("transposed") for word in words):
        words.append("transposed")
    if op.slices is not None:
        words.append("sliced")
    if leaf in plan.target.columns.further_rows:
        words.append("tied")
    return _kept(tuple(words))


@lru_cache
def _kept(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same words, as one object: a plan may have a million feeds."""
    return words


def _with_facts(name: str, facts: Facts) -> str:
    return f"{name} ({shape_text(facts.spec.shape)} {facts.spec.dtype})"


def _missing_messages(name: str, facts: Facts, source: Tree, parts: list[str]) -> tuple[str, str]:
    """The message for a leaf, and the one for several leaves."""
    described, where = _with_facts(name, facts), the_source(source)
    if parts:
        return f"{described} is in the model, but {where} has only parts of it: {', '.join(parts[:4])}", ""
    value = source[name] if name in source else None  # noqa: SIM401  a Tree has no get
    if value is not None and not isinstance(value, Leaf | Tree):
        return f"{described} is an array in the model but {_kind_of(value)} in {where}", ""
    return f"{described} is in the model but not in {where}", f"{{}} are in the model but not in {where}"


def _kind_of(value: Any) -> str:
    """
    >>> _kind_of(3), _kind_of(Opaque("datetime.date"))
    ('an int', 'an object of class datetime.date')
    """
    if isinstance(value, Opaque):
        return f"an object of class {value.class_name}"
    kind = next(cls.__name__ for cls in type(value).__mro__ if cls.__module__ == "builtins")
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _shape_messages(
    name: str,
    wanted: tuple[int, ...],
    source_name: str,
    shape: tuple[int, ...] | None,
    order: tuple[int, ...] | None,
    where: str,
) -> tuple[str, str]:
    details = []
    if order is not None:
        details.append("with its axes reordered by name")
    if shape is not None and wanted == shape[::-1] and len(wanted) == 2:
        details.append("transposed")

    def described(details: list[str]) -> str:
        both = f"{shape_text(wanted)} in the model but {shape_text(shape)} in {where}"
        return f"{both} ({', '.join(details)})" if details else both

    own = details if source_name == name else [source_name, *details]
    return f"{name} is {described(own)}", f"{{}} are {described(details)}"


def _other_key(plan: Plan, row: int, source: int, name: str) -> str:
    """Why the values of a PRNG key cannot be used as those of another implementation, whose keys may have the same
    shape; empty if they are of the same, or if it is not known."""
    kinds = other_implementations(plan.target.columns, row, plan.source.columns, source)
    if kinds is None:
        return ""
    both = f"{kinds[0]} in the model but of {kinds[1]} in {the_source(plan.source)}"
    return f"{name} is a key of {both}; such a key gives other random numbers"


def _dtype_messages(name: str, ours: Facts, theirs: Facts, where: str) -> tuple[str, str]:
    if number_kind(ours.spec.dtype) != number_kind(theirs.spec.dtype):
        repair = several = "leafwise does not cast one kind of number to another"
    elif not is_castable(ours.spec.dtype):
        repair = several = f"leafwise does not cast to {ours.spec.dtype}"
    else:
        repair, several = "pass cast=True to cast it", "pass cast=True to cast them"
    both = f"{ours.spec.dtype} in the model but {theirs.spec.dtype} in {where}"
    return f"{name} is {both}; {repair}", f"{{}} are {both}; {several}"


def _plan_unused(plan: Plan, pairing: Pairing, unused: list[int]) -> None:
    theirs = plan.source.columns
    left = pairing.sources_left + unused
    if not left:
        return
    leaf = pairing.source.leaf
    # Another name of a leaf that is loaded completely is not unexpected.
    taken = {leaf(row) for row in pairing.target_of if theirs.row_op(row).slices is None}
    taken -= {leaf(row) for row in unused}
    left = [row for row in left if leaf(row) not in taken]
    only_there = f"in {the_source(plan.source)} but not in the model"
    for row, facts in zip(left, theirs.facts(left), strict=True):
        name = pairing.source.name_of[row]
        plan.add("unexpected", name, f"{_with_facts(name, facts)} is {only_there}", f"{{}} are {only_there}")
