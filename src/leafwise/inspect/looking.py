"""What the rules of `lw.check` look at: the leaves of one walk, and, once somebody asks, one pass of statistics."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from leafwise.core.columns import Columns
from leafwise.core.tree import Tree
from leafwise.errors import QueryError, WalkError
from leafwise.inspect.changes import Change
from leafwise.inspect.diff import diff
from leafwise.inspect.reading import bands
from leafwise.inspect.rows import Row
from leafwise.inspect.seen import Seen
from leafwise.inspect.stats import Stats, stats
from leafwise.inspect.stepped import Stepped
from leafwise.iterate.init_jobs import declared_distributions
from leafwise.iterate.initializers import Distribution

_THREADS, _LARGE = 2, 1 << 20  # for leaves that have more bytes
_CORNER = 64  # numbers of a row and a column that are compared before all


class Looked:
    """One walk, and what can be seen on it."""

    def __init__(
        self, t: Tree, optimizer: Any = None, init: Any = None, before: Tree | None = None, progress: bool = False
    ) -> None:
        self.tree, self.init, self.before = t, init, before
        self.columns: Columns = t.columns
        self.stepped = Stepped(self, optimizer)
        self._progress = progress

    @cached_property
    def leaves(self) -> list[Seen]:
        columns, rows = self.columns, list(self.tree.first_rows)
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

        fit = (seen for seen, row in self.where(kind="parameter") if row.finite == row.count and row.min < row.max)
        places = [(seen, axis) for seen in fit if seen.is_matrix for axis in (0, 1)]
        # Of large ones in a file, most of it is waiting for memory that is mapped; of small ones, Python.
        large = sum(seen.spec.nbytes for seen, _ in places) > _LARGE * len(places)
        with ThreadPoolExecutor(_THREADS if large else 1) as threads:
            lines = (threads.map if large else map)(lambda place: alike(*place), places)
            return [(*place, *found) for place, found in zip(places, lines, strict=True) if any(found)]

    @cached_property
    def equal(self) -> list[tuple[Seen, dict[Seen, bool]]]:
        """Leaves that hold the same bits as another, each with whether transposed, and are not one; constants left out.
        What is counted, extremes and histograms agree whatever the order; those that do are compared bit by bit."""
        agreeing: dict[object, list[Seen]] = {}
        for seen, row in self.where():
            if row.min < row.max and row.count > 2:
                key = seen.spec.dtype, seen.spec.device, *sorted(seen.shape), row.zeros, row.min, row.max, row.histogram
                agreeing.setdefault(key, []).append(seen)
        shared = {frozenset(leaf.number for leaf in one.leaves) for one in self.tree.shared_memory}
        found = []
        for its in _by_corner(agreeing.values()):
            while len(its) > 1:
                first, *rest = its
                kinds = {one: self.compared(first, one) for one in rest}
                same = {one: "transposed" in its for one, its in kinds.items() if its & {"same", "transposed"}}
                if same and {first.leaf, *(one.leaf for one in same)} not in shared:
                    found.append((first, same))
                its = [one for one in rest if one not in same]
        return found

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
    def declared(self) -> "list[tuple[int, str, Distribution]]":
        """What `init=` says of leaves: each with the rule that says so."""
        if self.init is None:
            return []
        return [one for one in declared_distributions(self.tree, self.init) if one[0] in self.by_leaf]

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
        value = leaf.columns.current(leaf.row)
        return bands(leaf.columns.home(value), value, seen.shape)


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
