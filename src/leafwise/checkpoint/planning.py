"""`lw.plan`: what a load would do, leaf by leaf, from headers alone."""

import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

from leafwise.checkpoint.optimizers import OptimizerPlan, optimizer_nodes, plan_optimizers
from leafwise.core.columns import Columns, Facts
from leafwise.core.leaf import shape_text
from leafwise.core.match import Matching, Prefix, Proposal, match, propose
from leafwise.core.memory import Op
from leafwise.core.tree import Tree, tree
from leafwise.errors import QueryError
from leafwise.files import open_file
from leafwise.files.home import StoredFile
from leafwise.share.binding import Wish

Kind = Literal["missing", "unexpected", "shape", "dtype", "tie", "nothing"]
ALLOWABLE = ("missing", "unexpected", "shape")


class Problem(NamedTuple):
    """Something that keeps a plan from holding, unless it is allowed."""

    kind: Kind
    name: str
    message: str


class Feed(NamedTuple):
    """Where a target leaf gets its values: the row of the source, and in which order its axes are taken."""

    row: int
    name: str
    source: int
    order: tuple[int, ...] | None
    how: tuple[str, ...]


class MustAgree(NamedTuple):
    """Two rows of the source that feed one leaf of the target, whose second name sees it by `op`."""

    name: str
    first: int
    second: int
    op: Op


class Back(NamedTuple):
    """A tie of the source that the target lacks, and gets. `rows` are those of the source that must agree for it, where
    it holds both names."""

    wish: Wish
    rows: tuple[int, int] | None


class Plan:
    """What a load would do. Prints as a table; see `lw.plan`.

    `holds` is whether `lw.load` would go through with it. `problems` is everything that speaks against it, `allowed`
    what was found and is allowed. `coverage` is the share of the target's parameters that get values.
    """

    def __init__(self, target: Tree, source: Tree, allow: frozenset[str]) -> None:
        self.target, self.source = target, source
        self.feeds: list[Feed] = []
        self.problems: list[Problem] = []
        self.allowed: list[Problem] = []
        self.prefixes: list[Prefix] = []
        self.proposals: list[Proposal] = []
        self.applied: list[Proposal] = []
        self.notes: list[str] = []
        self.must_agree: list[MustAgree] = []
        self.back: list[Back] = []
        self.scalars: dict[tuple[int, str], Any] = {}
        self.optimizers: list[OptimizerPlan] = []
        self.recomputed: list[int] = []  # rows that no checkpoint holds and that have no values yet
        self.parameters = self.covered = self.leaves = 0
        self._allow = allow

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def coverage(self) -> float:
        """The share of the target's parameters that get values from the source."""
        return self.covered / self.parameters if self.parameters else 1.0

    @property
    def missing(self) -> list[str]:
        """Leaves of the target that the source does not fill, allowed or not."""
        return self._names("missing")

    @property
    def unexpected(self) -> list[str]:
        """Leaves of the source that the target does not take, allowed or not."""
        return self._names("unexpected")

    def _names(self, kind: str) -> list[str]:
        return [problem.name for problem in (*self.problems, *self.allowed) if problem.kind == kind]

    def found(self, kind: Kind, name: str, message: str) -> None:
        """Writes down something that speaks against the plan, or that is allowed."""
        (self.allowed if kind in self._allow else self.problems).append(Problem(kind, name, message))

    def text(self, *, full: bool = False) -> str:
        """The table as plain text; `full` leaves out nothing."""
        return str(import_module("leafwise.render").plan_text(self, full=full))

    def json(self) -> dict[str, Any]:
        """The same as plain data, for `json.dump`."""
        data: dict[str, Any] = import_module("leafwise.render").plan_json(self)
        return data

    def __str__(self) -> str:
        return str(import_module("leafwise.render").plan_for_stdout(self))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.text(), spec)

    def _repr_html_(self) -> str:
        return str(import_module("leafwise.render").plan_html(self))


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
    proposes, and says so. `allow` lists what may happen: `"missing"`, `"unexpected"`, `"shape"`. `cast=True` allows
    other precisions.

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
    allowed = frozenset([allow] if isinstance(allow, str) else allow)
    if not allowed <= set(ALLOWABLE):
        raise QueryError(
            f"allow= takes {', '.join(map(repr, ALLOWABLE))}, not {sorted(map(str, allowed - {*ALLOWABLE}))}"
        )
    if ties not in ("restore", "ignore"):
        raise QueryError(f'ties= takes "restore" or "ignore", not {ties!r}')
    plan = Plan(t, s, allowed)
    match_ = _Match(plan, rename)
    _plan_leaves(plan, match_, cast)
    _plan_scalars(plan, match_)
    plan.optimizers = plan_optimizers(plan, match_.target_nodes, match_.target_of_source)
    if ties == "restore":
        _plan_ties(plan, match_)
    _conclude(plan, match_)
    return plan


# -- names -------------------------------------------------------------------------------------------------


class _Match:
    """The rows of both sides, their names, and which belong together."""

    def __init__(self, plan: Plan, rename: Any) -> None:
        t, s = plan.target, plan.source
        columns, theirs = t._columns, s._columns
        self.target_nodes = optimizer_nodes(columns, t._node)
        inside = [columns.row_ranges[node] for node in self.target_nodes]
        self.rows = [row for row in t._rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]
        if inside:
            self.rows = [row for row in self.rows if not any(start <= row < stop for start, stop in inside)]
        self.names = columns.keys(self.rows, t._node)
        fronts = [columns.node_keys(t._node)[node] for node in self.target_nodes]
        self.source_rows: Sequence[int] = s._rows
        self.source_names = theirs.keys(self.source_rows, s._node)
        if fronts:
            kept = [
                (row, name)
                for row, name in zip(self.source_rows, self.source_names, strict=True)
                if not any(_below(name, front) for front in fronts)
            ]
            self.source_rows, self.source_names = [row for row, _ in kept], [name for _, name in kept]
        self.matching = self._matched(plan, rename)
        self.source_of = {self.rows[a]: self.source_rows[b] for a, b in self.matching.sources.items()}
        self.target_of = {b: a for a, b in self.source_of.items()}
        self.name_of = dict(zip(self.rows, self.names, strict=True))
        self.source_name_of = dict(zip(self.source_rows, self.source_names, strict=True))

    def _matched(self, plan: Plan, rename: Any) -> Matching:
        auto = isinstance(rename, str) and rename == "auto"
        found = match(self.names, self.source_names, None if auto else rename)
        if found.targets_left and found.sources_left:
            proposals = propose(
                self._shapes(plan.target._columns, self.rows, self.names, found.targets_left),
                self._shapes(plan.source._columns, self.source_rows, self.source_names, found.sources_left),
            )
            if auto:
                new = {old: new for proposal in proposals for old, new in proposal.pairs}
                plan.applied = proposals
                found = match(self.names, self.source_names, lambda name: new.get(name, name))
            else:
                plan.proposals = proposals
        plan.prefixes = found.prefixes
        plan.notes += [f"rename: {rule!r} fits no name of the source" for rule in found.idle]
        if found.left_out:
            plan.notes.append(f"rename left out {len(found.left_out):,} leaves of the source")
        return found

    @staticmethod
    def _shapes(
        columns: Columns, rows: Sequence[int], names: list[str], left: list[int]
    ) -> list[tuple[str, tuple[int, ...] | None]]:
        facts = columns.facts([rows[number] for number in left])
        return [(names[number], one.spec.shape) for number, one in zip(left, facts, strict=True)]

    def target_of_source(self, name: str) -> str | None:
        """What the target calls a leaf of the source."""
        by_name = self.__dict__.setdefault(
            "_target_names",
            {self.source_name_of[source]: self.name_of[target] for target, source in self.source_of.items()},
        )
        found: str | None = by_name.get(name)
        return found


def _below(name: str, front: str) -> bool:
    return not front or name.startswith(front + ".")


# -- leaves ------------------------------------------------------------------------------------------------


class _Chosen(NamedTuple):
    """A leaf of the target with the row of the source that fills it, and other names of it that have one, too."""

    leaf: int
    facts: Facts
    source: int
    order: tuple[int, ...] | None
    others: list[tuple[int, int]]


def _plan_leaves(plan: Plan, found: _Match, cast: bool) -> None:
    columns, theirs = plan.target._columns, plan.source._columns
    leaves = _rows_of_leaves(columns, found.rows)
    chosen: list[_Chosen] = []
    for (leaf, rows), facts in zip(leaves.items(), columns.facts(list(leaves)), strict=True):
        plan.leaves += 1
        if facts.kind == "parameter":
            plan.parameters += facts.spec.size
        source, order, others = _choose(columns, rows, found.source_of)
        if source is None:
            name = found.name_of[rows[0]]
            plan.found("missing", name, f"nothing in the source for {_told(name, facts)}")
        else:
            chosen.append(_Chosen(leaf, facts, source, order, others))
    axes = _Axes(columns, theirs)
    for one, given in zip(chosen, theirs.facts([one.source for one in chosen]), strict=True):
        feed = _fed(plan, found, one, given, axes, cast)
        if feed is None:
            continue
        plan.feeds.append(feed)
        if one.facts.kind == "parameter":
            plan.covered += one.facts.spec.size or given.spec.size
        for row, other in one.others:
            op = columns.row_op(row)
            if not _is_same_leaf(theirs, one.source, other, op):
                plan.must_agree.append(MustAgree(found.name_of[row], one.source, other, op))
    _plan_unused(plan, found)


def _fed(plan: Plan, found: _Match, one: _Chosen, given: Facts, axes: "_Axes", cast: bool) -> Feed | None:
    """How a leaf gets its values; None, and why not in the plan, where it cannot."""
    columns, theirs = plan.target._columns, plan.source._columns
    leaf, facts, source, order, _ = one
    name = found.name_of[leaf if leaf in found.name_of else found.target_of[source]]
    shape, has = facts.spec.shape, given.spec.shape
    order = order or axes.turn(leaf, source, has)
    if has is not None and order is not None:
        has = tuple(has[axis] for axis in order)
    if shape is not None and has != shape:
        plan.found("shape", name, _shape_message(name, facts, found.source_name_of[source], given))
        return None
    how = _how(columns, theirs, leaf, source, name, found.source_name_of[source], order)
    if given.spec.dtype != facts.spec.dtype:
        if not (cast and _sort(given.spec.dtype) == _sort(facts.spec.dtype)):
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


def _choose(
    columns: Columns, rows: list[int], source_of: dict[int, int]
) -> tuple[int | None, tuple[int, ...] | None, list[tuple[int, int]]]:
    """Of the names of a leaf, the one whose source fills it; how its axes are turned; and the others that have one."""
    given = [(row, source_of[row]) for row in rows if row in source_of]
    if not given:
        return None, None, []
    if len(rows) == 1 and rows[0] not in columns.row_ops:
        return given[0][1], None, []
    for row, source in given:
        if columns.row_op(row) == "same":
            return source, None, [one for one in given if one[0] != row]
    for row, source in given:  # a transposed name shows all of it, too
        op = columns.row_op(row)
        if op.slices is None and op.order is not None:
            back = tuple(op.order.index(axis) for axis in range(len(op.order)))
            return source, back, []
    return None, None, []


def _is_same_leaf(theirs: Columns, first: int, second: int, op: Op) -> bool:
    """Whether two rows of the source are one leaf there, seen as the target sees it."""
    if theirs.ties.get(first, first) != theirs.ties.get(second, second):
        return False
    one, other = theirs.row_op(first), theirs.row_op(second)
    if op == "same":
        return _op_key(one) == _op_key(other)
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


def _sort(dtype: str) -> str:
    """What kind of number a dtype holds; between kinds nothing is cast."""
    return "float" if "float" in dtype else "complex" if "complex" in dtype else "bool" if dtype == "bool" else "int"


def _told(name: str, facts: Facts) -> str:
    return f"{name} ({shape_text(facts.spec.shape)} {facts.spec.dtype})"


def _shape_message(name: str, ours: Facts, given: str, theirs: Facts) -> str:
    wanted, has = ours.spec.shape or (), theirs.spec.shape or ()
    hint = "; it is the transpose" if wanted == has[::-1] and len(wanted) == 2 else ""
    source = "it" if given == name else given
    return f"{name} is {shape_text(wanted)}, and in the source {source} is {shape_text(has)}{hint}"


def _dtype_message(name: str, ours: Facts, theirs: Facts, cast: bool) -> str:
    repair = "; that is another kind of number, and is not cast" if cast else "; cast=True allows it"
    if not cast and _sort(ours.spec.dtype) != _sort(theirs.spec.dtype):
        repair = "; that is another kind of number"
    return f"{name} is {ours.spec.dtype}, and in the source {theirs.spec.dtype}{repair}"


def _plan_unused(plan: Plan, found: _Match) -> None:
    theirs = plan.source._columns
    left = [found.source_rows[number] for number in found.matching.sources_left]
    if not left:
        return
    # A further name of a leaf that is taken is no loss.
    taken = {theirs.ties.get(row, row) for row in found.target_of} if theirs.ties else set()
    left = [row for row in left if theirs.ties.get(row, row) not in taken]
    for row, facts in zip(left, theirs.facts(left), strict=True):
        name = found.source_name_of[row]
        plan.found("unexpected", name, f"the source has {_told(name, facts)}, which the target has not")


# -- plain values ------------------------------------------------------------------------------------------


def _plan_scalars(plan: Plan, found: _Match) -> None:
    wanted = _values_of(plan.target, found.target_nodes)
    given = {key: value for key, (_, _, value) in _values_of(plan.source, []).items()}
    for key, (node, name, _) in wanted.items():
        if key in given:
            plan.scalars[node, name] = given.pop(key)
        else:
            plan.found("missing", key, f"no value in the source for {key}")
    optimizers = [plan.target._columns.node_keys(plan.target._node)[node] for node in found.target_nodes]
    unused = [key for key in given if not any(_below(key, front) for front in optimizers)]
    if unused:
        some = ", ".join(unused[:4]) + (", …" if len(unused) > 4 else "")
        plan.notes.append(f"{len(unused):,} plain value{'s' if len(unused) > 1 else ''} of the source not used: {some}")


def _values_of(t: Tree, besides: list[int]) -> dict[str, tuple[int, str, Any]]:
    """The plain values of a tree by their names; but not what a file says of itself, nor those below some nodes."""
    columns = t._columns
    if not columns.scalars or not t._whole:
        return {}
    fronts = columns.node_keys(t._node)
    skipped = [range(node, columns.node_ends[node]) for node in besides]
    found = {}
    for node, name, value in columns.scalars:
        if node in fronts and not any(node in nodes for nodes in skipped):
            key = f"{fronts[node]}.{name}" if fronts[node] else name
            if not (t.is_file and key.startswith("__metadata__.")):
                found[key] = (node, name, value)
    return found


# -- ties --------------------------------------------------------------------------------------------------


def _plan_ties(plan: Plan, found: _Match) -> None:
    """Ties of the source whose names the target holds as separate leaves."""
    columns, theirs = plan.target._columns, plan.source._columns
    fed = {feed.row for feed in plan.feeds}
    stepped = _stepped(plan, found)

    def wish(source_of_target: int, source: int, op: Op, rows: tuple[int, int] | None) -> None:
        target, base = found.target_of.get(source_of_target), found.target_of.get(source)
        if target is None or base is None or columns.row_op(base) != "same":
            return
        leaf, base_leaf = columns.ties.get(target, target), columns.ties.get(base, base)
        if leaf == base_leaf or base_leaf not in fed or leaf not in fed:
            return
        if not columns.home(columns.node_objects[columns.row_nodes[target]]).in_place:
            return
        name, to = found.name_of[target], found.name_of[base]
        if stepped(target):
            plan.found(
                "tie",
                name,
                f"{name} would come back tied to {to}{op.describe()}, and the optimizer steps it by itself; load the "
                'model first and make the optimizer after that, or give ties="ignore"',
            )
            return
        plan.back.append(Back(Wish(target, base_leaf, op), rows))

    for leaf, rows in theirs.further_rows.items():
        base = leaf if leaf in found.target_of else next((r for r in rows if theirs.row_op(r) == "same"), None)
        if base is None:
            continue
        for row in rows:
            if row != base:
                wish(row, base, theirs.row_op(row), None)
    for name, of, op in _claimed(plan.source):
        rows_by_name = {found.source_name_of[row]: row for row in found.source_rows}
        second, first = rows_by_name.get(name), rows_by_name.get(of)
        if second is not None and first is not None and not _is_same_leaf(theirs, first, second, op):
            wish(second, first, op, (first, second))


def _claimed(s: Tree) -> list[tuple[str, str, Op]]:
    """The ties that a file says there are, by the names seen from the tree."""
    root = s._columns.node_objects[0]
    if not isinstance(root, StoredFile) or root.record is None:
        return []
    front = ".".join(s.path.names)
    front = f"{front}." if front else ""
    return [
        (name.removeprefix(front), of.removeprefix(front), op)
        for name, of, op in root.record.ties
        if name.startswith(front) and of.startswith(front)
    ]


def _stepped(plan: Plan, found: _Match) -> Callable[[int], bool]:
    """Whether an optimizer in the target steps what stands at a row."""
    columns = plan.target._columns
    held: set[int] = set()
    for node in found.target_nodes:
        optimizer = columns.node_objects[node]
        held.update(id(value) for _, value in columns.home(optimizer).held_by(optimizer))
    return lambda row: id(columns.current(row)) in held


def _conclude(plan: Plan, found: _Match) -> None:
    columns = plan.target._columns
    wanted = bool(found.rows) or bool(plan.scalars) or bool(plan.optimizers)
    restored = any(one.states or one.options for one in plan.optimizers)
    if not (plan.feeds or plan.scalars or restored) and wanted:
        plan.problems.append(Problem("nothing", "", "nothing in the source fits anything in the target"))
        plan.notes += _hints(plan)
    elif plan.problems:
        plan.notes += _hints(plan)
    for row in plan.target._rows:
        if columns.row_kinds[row] == "transient" and row not in columns.ties:
            plan.recomputed.append(row)


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
