"""What the rules of `lw.check` look at: the leaves of one walk, and, once somebody asks, one pass of statistics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, Literal

from leafwise.core import registry as homes
from leafwise.core.columns import Columns, Facts
from leafwise.core.home import Axes, Home, Spec
from leafwise.core.leaf import Leaf
from leafwise.core.query import where
from leafwise.core.tree import Tree, tree
from leafwise.errors import QueryError, WalkError
from leafwise.inspect.changes import Change
from leafwise.inspect.diff import diff
from leafwise.inspect.pairing import Held
from leafwise.inspect.reading import Read, bands, reader
from leafwise.inspect.rows import Row
from leafwise.inspect.stats import Stats, stats
from leafwise.iterate.initialisers import Drawn
from leafwise.iterate.initializing import declared

_CORNER = 64  # numbers of a row and a column that are compared before all
Of = Literal["value", "grad", "state"]  # state: what an optimizer keeps of it


class Seen:
    """A leaf as the rules see it: its facts, what it is for, and, by way of what looked at it, its statistics."""

    __slots__ = ("_looked", "axes", "kind", "leaf", "path", "persistent", "role", "roles", "spec")

    def __init__(self, looked: "Looked", leaf: int, path: str, facts: Facts, roles: list[tuple[str | None, Axes]]):
        self._looked, self.leaf, self.path = looked, leaf, path
        self.spec, self.kind, self.persistent = facts
        self.role, self.axes = roles[0]
        self.roles = {role for role, _ in roles}  # of all its names

    @property
    def handle(self) -> Leaf:
        return self._looked.columns.leaf(self.leaf)

    @property
    def held(self) -> Held:
        value = self._looked.columns.current(self.leaf)
        return Held(self.leaf, self._looked.columns.home(value), value, self.spec, self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def row(self) -> Row | None:
        """The statistics of its values; None where there are none."""
        return self._looked.rows.get(self.leaf)

    @property
    def grad(self) -> Row | None:
        """The statistics of its gradient."""
        return self._looked.grad_rows.get(self.leaf)

    @property
    def has_grad(self) -> bool:
        return self.leaf in self._looked.gradients

    @property
    def is_float(self) -> bool:
        # What is quantised goes by the name of its blocks, and stands for numbers.
        return not self.spec.dtype.startswith(("int", "uint", "bool", "complex"))

    @property
    def is_fixed(self) -> bool:
        """Whether it is frozen, so that it is as somebody made it."""
        return self.spec.trainable is False

    @property
    def pulls(self) -> bool:
        """Whether it has a gradient that would move it: one that is not all zero, as far as anybody knows."""
        return self.has_grad and (self.grad is None or self.grad.zeros < self.grad.count)

    @property
    def padding(self) -> int | None:
        """The row of an embedding that stands for nothing, and is never trained."""
        columns = self._looked.columns
        found = getattr(columns.node_objects[columns.row_nodes[self.leaf]], "padding_idx", None)
        return found % self.shape[0] if isinstance(found, int) and self.shape else None

    @property
    def is_weight(self) -> bool:
        """Whether it leads from inputs to outputs, under all of its names; None of that is known in most files."""
        axes = self.axes or ()
        return "out" in axes and any(axis.startswith("in") for axis in axes) and "embedding.table" not in self.roles

    @property
    def is_matrix(self) -> bool:
        """Whether it is a parameter with rows and columns, for whatever it is."""
        shape = self.shape
        return self.kind == "parameter" and self.is_float and len(shape) > 1 and shape[0] > 1 and prod(shape[1:]) > 1

    @property
    def out_axis(self) -> int:
        """The axis along which its units are; the first, where nobody says."""
        return self.axes.index("out") if self.axes and "out" in self.axes else 0

    @property
    def drawn_anew(self) -> str:
        """What to do for new initial values, of this leaf alone."""
        if self._looked.tree.is_file:
            return "initialise it in the model that this was saved from"
        if self.is_fixed:
            return "it is frozen, and may be meant so"
        init = 'init="kaiming_normal"' if self.is_weight else 'init="normal", std=0.02'
        return f"lw.initialize(lw.tree(model).select({self.spelled}), [lw.Rule({self.spelled}, {init})])"

    @property
    def spelled(self) -> str:
        """Its path as Python has it."""
        return spelled(self.path)

    def reader(self) -> Read:
        """What gives parts of its values as NumPy arrays."""
        held = self.held
        return reader(held.home, held.value)

    def bands(self, of: Of = "value") -> "Iterator[tuple[int, Any]]":
        """Its values as NumPy arrays, some rows at a time, each with the number of the first."""
        looked = self._looked
        if of == "value":
            value = looked.columns.current(self.leaf)
        else:
            value = looked.gradients[self.leaf] if of == "grad" else looked.reached(self)
        return bands(looked.columns.home(value), value, self.shape)


def spelled(path: str) -> str:
    """A path as a string of Python's.

    >>> print(spelled("0.weight"), spelled('"a b".weight'))
    "0.weight" '"a b".weight'
    """
    return f'"{path}"' if not set(path) & set('"\\\n') else repr(path)


class Looked:
    """One walk, and what can be seen on it."""

    def __init__(
        self, t: Tree, optimizer: Any = None, init: Any = None, before: Tree | None = None, progress: bool = False
    ) -> None:
        self.tree, self.init, self.before = t, init, before
        self.columns: Columns = t._columns
        self.given = _several(optimizer)
        self.optimizers = self.given or self._optimizers()
        if self.given and t.is_file:
            raise WalkError("optimizer= steps the parameters of a live model, and this is a file; give the model")
        self._progress = progress

    def _optimizers(self) -> list[Any]:
        columns = self.columns
        nodes = columns.nodes_where(lambda home, obj: home.steps(obj), self.tree._node) if self.tree._whole else []
        return [columns.node_objects[node] for node in nodes]

    @cached_property
    def leaves(self) -> list[Seen]:
        columns, rows = self.columns, list(self.tree._first_rows)
        leaves = [columns.ties.get(row, row) for row in rows]
        facts, roles = columns.facts(leaves), columns.row_roles(rows)
        found = []
        for row, leaf, its, role in zip(rows, leaves, facts, roles, strict=True):
            further = [one for one in columns.rows_of(leaf) if one != row] if columns.further_rows else []
            found.append(Seen(self, leaf, columns.row_text(row), its, [role, *columns.row_roles(further)]))
        return found

    @cached_property
    def by_leaf(self) -> dict[int, Seen]:
        return {seen.leaf: seen for seen in self.leaves}

    @cached_property
    def by_path(self) -> dict[str, Seen]:
        """The leaves by any of their paths."""
        columns = self.columns
        return {columns.row_text(row): seen for seen in self.leaves for row in columns.rows_of(seen.leaf)}

    def where(self, *, kind: str | None = None) -> Iterator[tuple[Seen, Row]]:
        """The leaves of floating point that have statistics, with these."""
        for seen in self.leaves:
            if seen.is_float and (kind is None or seen.kind == kind) and seen.row is not None and seen.row.count:
                yield seen, seen.row

    # -- statistics --------------------------------------------------------------------------------------

    @cached_property
    def stats(self) -> Stats | None:
        """None where no leaf has a shape yet."""
        if self.leaves and all(seen.spec.shape is None for seen in self.leaves):
            return None
        try:
            return stats(self.tree, progress=self._progress)
        except WalkError as error:
            raise WalkError(f"{error}; rules that need no values can be selected: select=['LW3', …]") from error

    @property
    def skipped(self) -> dict[str, str]:
        """What was not looked at, each with the reason; as far as rules asked for it."""
        asked = self.__dict__
        found: dict[str, str] = {} if asked.get("stats") is None else dict(asked["stats"].skipped)
        found |= {f"gradient of {path}": reason for path, reason in asked.get("grad_skipped", {}).items()}
        found |= asked.get("not_compared", {})
        return found

    @cached_property
    def state_rows(self) -> list[tuple[str, Row]]:
        """The statistics of the state of optimizers that were given beside the tree, as if they were in it."""
        root, found = self.columns.node_objects[self.tree._node], []
        for number, optimizer in enumerate(self.given):
            called = f"optimizer{number or ''}"
            both = tree({"model": root, called: optimizer}).select(where(kind="state"))
            for path, row in stats(both).items() if len(both) else ():
                found.append((path.replace(f"{called}.state.model.", f"{called}.state.", 1), row))
        return found

    @cached_property
    def rows(self) -> dict[int, Row]:
        return {} if self.stats is None else self.stats.by_leaf()

    @cached_property
    def gradients(self) -> dict[int, Any]:
        """The gradients that there are."""
        columns = self.columns
        leaves = [seen.leaf for seen in self.leaves]
        values = [columns.current(leaf) for leaf in leaves]
        found: dict[int, Any] = {}
        for home, numbers in columns.by_home(values).items() if values else ():
            its = home.grads([values[number] for number in numbers])
            found |= {leaves[number]: one for number, one in zip(numbers, its, strict=True) if one is not None}
        return found

    @cached_property
    def grad_rows(self) -> dict[int, Row]:
        self.grad_skipped: dict[str, str] = {}
        if not self.gradients:
            return {}
        try:
            found = stats(self.tree, of="grad")
        except WalkError:  # of none of them there are statistics
            self.grad_skipped = dict.fromkeys((self.by_leaf[leaf].path for leaf in self.gradients), "it is sparse")
            return {}
        has = {self.by_leaf[leaf].path for leaf in self.gradients}
        self.grad_skipped = {path: reason for path, reason in found.skipped.items() if path in has}
        return found.by_leaf()

    @cached_property
    def alike(self) -> "list[tuple[Seen, int, list[list[int]], list[tuple[int, int, float]]]]":
        """Of each matrix and axis with lines that are alike: which are the same, and which nearly."""
        from leafwise.inspect.lines import alike

        found = []
        for seen, row in self.where(kind="parameter"):
            if seen.is_matrix and row.finite == row.count and row.min < row.max:
                for axis in (0, 1):
                    same, near = alike(seen, axis)
                    if same or near:
                        found.append((seen, axis, same, near))
        return found

    @cached_property
    def equal(self) -> list[tuple[Seen, list[Seen]]]:
        """Leaves that hold the same bits as another, perhaps transposed, and are not one; constants left out. What is
        counted, extremes and histograms agree whatever the order; those that do are compared bit by bit."""
        agreeing: dict[object, list[Seen]] = {}
        for seen, row in self.where():
            if row.min < row.max and row.count > 2:
                key = seen.spec.dtype, seen.spec.device, *sorted(seen.shape), row.zeros, row.min, row.max, row.histogram
                agreeing.setdefault(key, []).append(seen)
        shared = {frozenset(leaf._index for leaf in one.leaves) for one in self.tree.shared_memory}
        found = []
        for its in _by_corner(agreeing.values()):
            while len(its) > 1:
                first, *rest = its
                same = [one for one in rest if self.compared(first, one) & {"same", "transposed"}]
                if same and {first.leaf, *(one.leaf for one in same)} not in shared:
                    found.append((first, same))
                its = [one for one in rest if one not in same]
        return found

    def how_equal(self, one: Seen, other: Seen) -> str:
        """What a tie of two leaves that are equal needs besides their names."""
        return ", transpose=True" if "transposed" in self.compared(one, other) else ""

    def compared(self, one: Seen, other: Seen) -> frozenset[str]:
        """What the values of two leaves are to each other, in the words of `lw.diff`."""
        from leafwise.inspect.values import compare_values

        [found] = compare_values([(one.held, other.held)], lambda count: None)
        return found.kinds

    @cached_property
    def tables_and_heads(self) -> list[tuple[Seen, Seen]]:
        """Embeddings, each with a layer whose weight has its shape, so that the two may be meant to be one."""
        tables = [seen for seen in self.leaves if "embedding.table" in seen.roles]
        heads = [seen for seen in self.leaves if seen.role == "linear.weight" and "embedding.table" not in seen.roles]
        return [(table, head) for table in tables for head in heads if table.shape == head.shape]

    @cached_property
    def declared(self) -> "list[tuple[int, str, Drawn]]":
        """What `init=` says of leaves: each with the rule that says so."""
        if self.init is None:
            return []
        return [one for one in declared(self.tree, self.init) if one[0] in self.by_leaf]

    # -- before ------------------------------------------------------------------------------------------

    @cached_property
    def changes(self) -> dict[str, Change]:
        """What became of each leaf since before, by its path; empty where nobody says what was before."""
        self.not_compared: dict[str, str] = {}
        if self.before is None:
            return {}
        try:
            found = diff(self.before, self.tree, progress=self._progress)
        except QueryError as error:
            raise QueryError(
                f"against=: {str(error).partition('; give')[0]}; give the same model, as it was"
            ) from error
        changes = {}
        for change in found:
            path, kinds = change.other or change.path, set(change.kinds)
            if change.is_plain or "removed" in kinds:
                continue
            if kinds & {"added", "reshaped", "unknown"}:
                why = "has it not" if "added" in kinds else "has it in another shape" if "reshaped" in kinds else ""
                self.not_compared[path] = f"against= {why}" if why else change.notes[-1]
            else:
                changes[path] = change
        if not changes:
            raise QueryError("against= has no leaf that could be compared; give the same model, as it was")
        return changes

    def bands_before(self, seen: Seen) -> Iterator[tuple[int, Any]]:
        """The values of a leaf as they were before, in the same bands."""
        assert self.before is not None
        leaf = self.before[self.changes[seen.path].path]
        value = leaf._columns.current(leaf._row)
        return bands(leaf._columns.home(value), value, seen.shape)

    # -- optimizers --------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> Counter[int]:
        """The identities of what the optimizers step, each with how many of them do."""
        each = [{id(value) for _, value in self._home_of(one).held_by(one)} for one in self.optimizers]
        return Counter(chain.from_iterable(each))

    def is_held(self, seen: Seen) -> bool:
        return self.times_held(seen) > 0

    def times_held(self, seen: Seen) -> int:
        """How many optimizers step a leaf."""
        columns = self.columns
        return max(self.held[id(columns.row_values[row])] for row in columns.rows_of(seen.leaf)) if self.held else 0

    @cached_property
    def held_elsewhere(self) -> list[Spec]:
        """The specs of what optimizers step and the tree does not have."""
        here = set(map(id, self.columns.row_values))
        values = (value for one in self.optimizers for _, value in self._home_of(one).held_by(one))
        return [self.columns.home(value).spec(value) for value in values if id(value) not in here]

    def part_apart(self, seen: Seen) -> str | None:
        """Of a plain container of several models, the name of that which a leaf is in, if no optimizer steps any of its
        leaves."""
        return self._parts_apart.get(self._part(seen.leaf))

    def _part(self, row: int) -> int:
        """The node below the root that a row is in."""
        parents, node = self.columns.node_parents, self.columns.row_nodes[row]
        while node > 0 and parents[node] > 0:
            node = parents[node]
        return node

    @cached_property
    def _parts_apart(self) -> dict[int, str]:
        columns = self.columns
        if not isinstance(columns.node_objects[0], Mapping | list | tuple):
            return {}
        stepped = {self._part(seen.leaf) for seen in self.leaves if self.is_held(seen)}
        return {node: columns.node_text(node) for node in columns.children(0) if node not in stepped}

    def reached(self, seen: Seen) -> Any:
        """What an optimizer keeps of a leaf that is zero where no step has reached it; None where there is nothing."""
        value = self.columns.row_values[seen.leaf]
        found = (self._home_of(one).reached(one, value) for one in self.optimizers)
        return next((one for one in found if one is not None), None)

    def _home_of(self, optimizer: Any) -> Home:
        found = homes.find(type(optimizer))
        if found is None or not found[0].steps(optimizer):
            raise WalkError(f"optimizer= takes an optimizer, not {type(optimizer).__name__}")
        return found[0]


def _several(optimizer: Any) -> list[Any]:
    """The optimizers that were given: one, or some."""
    if optimizer is None:
        return []
    if isinstance(optimizer, Mapping):
        return list(optimizer.values())
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def _by_corner(groups: Iterable[list[Seen]]) -> Iterator[list[Seen]]:
    """Leaves that may be equal, or each other's transpose: of several, those with the same first row and column."""
    for its in groups:
        if len(its) < 3:
            yield its
            continue
        parted: dict[object, list[Seen]] = {}
        for seen in its:
            read, rest = seen.reader(), (slice(0, 1),) * (len(seen.shape) - 1)
            column, row = read((slice(0, _CORNER), *rest)), read((slice(0, 1), *(slice(0, _CORNER) for _ in rest)))
            parted.setdefault(frozenset((column.tobytes(), row.tobytes())), []).append(seen)
        yield from parted.values()
