"""The facts that the rules of `lw.check` use: the leaves of one walk and, on demand, statistics from one pass."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from leafwise.core.capabilities.measuring import bands
from leafwise.core.capabilities.sharding import Team
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.parts import first_rows
from leafwise.core.tree import Tree
from leafwise.core.work.executor_tasks import Workers
from leafwise.errors import QueryError, WalkError
from leafwise.inspect.check.check_ranks import CheckRanks
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf
from leafwise.inspect.check.optimizer_coverage import OptimizerCoverage
from leafwise.inspect.diff.changes import Change
from leafwise.inspect.diff.difference import RENAME_HINT, Diff, diff_of
from leafwise.inspect.stats.rows import Row
from leafwise.inspect.stats.statistics import Stats, gradients_of, stats_of
from leafwise.iterate.init_jobs import declared_distributions
from leafwise.iterate.initializers import Distribution
from leafwise.share.equal import equal_leaves

if TYPE_CHECKING:
    from leafwise.inspect.check.duplicate_rows import Duplicates

_EQUAL_KINDS = {frozenset({"same"}), frozenset({"transposed"})}


def place_in_layer(path: str) -> str:
    """A path without the numbers of blocks. The number of a leaf's own layer stays: those of a `Sequential` differ.

    >>> place_in_layer("layers.3.mlp.up.weight"), place_in_layer("net.2.weight")
    ('layers.*.mlp.up.weight', 'net.2.weight')
    """
    *entries, owner, name = ("", *path.split("."))
    return ".".join(["*" if entry.isdecimal() else entry for entry in entries[1:]] + [owner, name])


class Evidence:
    """One walk of a tree, and what is known about its leaves. Anything that needs a pass over the values is computed
    when the first rule asks for it, and cached for the others."""

    def __init__(
        self,
        t: Tree,
        optimizer: Any = None,
        init: Any = None,
        baseline: Tree | None = None,
        progress: bool = False,
        workers: Workers | None = None,
        team: Team | None = None,
    ) -> None:
        self.tree, self.init, self.baseline, self.workers = t, init, baseline, workers
        self.columns: Columns = t.columns
        self.coverage = OptimizerCoverage(self, optimizer)
        self._progress = progress
        # The ranks over which leaves are sharded; None if all leaves are whole.
        self.ranks: CheckRanks | None = None if team is None else CheckRanks(team, self)

    @cached_property
    def leaves(self) -> list[LeafEvidence]:
        columns, rows = self.columns, list(first_rows(self.tree))
        numbers = [columns.ties.get(row, row) for row in rows]
        leaves = []
        for row, number, facts, role in zip(
            rows, numbers, columns.facts(numbers), columns.row_roles(rows), strict=True
        ):
            further = [name for name in columns.rows_of(number) if name != row] if columns.further_rows else []
            roles = [role, *columns.row_roles(further)]
            leaves.append(LeafEvidence(self, number, columns.row_text(row), facts, roles))
        return leaves

    @cached_property
    def by_number(self) -> dict[int, LeafEvidence]:
        return {leaf.number: leaf for leaf in self.leaves}

    @cached_property
    def by_path(self) -> dict[str, LeafEvidence]:
        """The leaves by any of their paths."""
        columns = self.columns
        return {columns.row_text(row): leaf for leaf in self.leaves for row in columns.rows_of(leaf.number)}

    @cached_property
    def float_leaves(self) -> list[tuple[LeafEvidence, Row]]:
        """The floating-point leaves that have statistics, each with its statistics."""
        with_stats = ((leaf, leaf.stats) for leaf in self.leaves if leaf.is_float)
        return [(leaf, row) for leaf, row in with_stats if row is not None and row.count]

    @cached_property
    def float_parameters(self) -> list[tuple[LeafEvidence, Row]]:
        """Those of them that are parameters."""
        return [(leaf, row) for leaf, row in self.float_leaves if leaf.kind == "parameter"]

    @cached_property
    def _by_place(self) -> dict[str, list[tuple[int, Row]]]:
        """The numbers of the floating-point parameters with their statistics, by their place in a layer."""
        by_place: dict[str, list[tuple[int, Row]]] = {}
        for leaf, row in self.float_parameters:
            by_place.setdefault(place_in_layer(leaf.path), []).append((leaf.number, row))
        return by_place

    def siblings(self, leaf: LeafEvidence) -> list[Row]:
        """The statistics of the leaves at the same place in other layers."""
        return [row for number, row in self._by_place[place_in_layer(leaf.path)] if number != leaf.number]

    # -- arrays ------------------------------------------------------------------------------------------

    def array(self, number: int, of: ValuesOf) -> tuple[Home, Any]:
        """The array of a leaf, with its home. If it is sharded over ranks, it is one that reads from all of them."""
        home, value = self.own_array(number, of)
        return (home, value) if self.ranks is None else self.ranks.array(home, value, ("tree", number, of))

    def own_array(self, number: int, of: ValuesOf) -> tuple[Home, Any]:
        """The array of a leaf in this process, with its home."""
        if of == "value":
            value = self.columns.current(number)
        else:
            value = self.gradients[number] if of == "grad" else self.coverage.state_of(self.by_number[number])
        return self.columns.home(value), value

    def own_baseline_array(self, row: int) -> tuple[Home, Any]:
        """An array of the baseline in this process, with its home."""
        assert self.baseline is not None
        value = self.baseline.columns.current(row)
        return self.baseline.columns.home(value), value

    # -- statistics --------------------------------------------------------------------------------------

    @cached_property
    def stats(self) -> Stats | None:
        """The statistics of all values; None if no leaf has a shape yet."""
        if self.leaves and all(leaf.spec.shape is None for leaf in self.leaves):
            return None
        try:
            return self.measured("value")
        except WalkError as error:
            root = self.columns.node_objects[0]
            if self.columns.home(root).capability(Vetting).called_elsewhere(root):
                return None  # there is something to report about the file, whatever its values are
            raise WalkError(f"{error}; to run only rules that need no values: select=['LW4']") from error

    def measured(self, of: Literal["value", "grad"]) -> Stats:
        """The statistics of all values or gradients."""
        if self.ranks is not None:
            self.ranks.on_all_ranks("measured", of)
        is_value = of == "value"  # files, which workers read, have no gradients
        return stats_of(self.tree, of, progress=self._progress and is_value, workers=self.workers if is_value else None)

    @property
    def skipped(self) -> dict[str, str]:
        """The leaves and gradients that were not measured or compared, each with the reason, as far as rules needed
        them."""
        computed = self.__dict__
        reasons: dict[str, str] = {} if computed.get("stats") is None else dict(computed["stats"].skipped)
        reasons |= {f"gradient of {path}": reason for path, reason in computed.get("grad_skipped", {}).items()}
        reasons |= computed.get("not_compared", {})
        return reasons

    @cached_property
    def value_stats(self) -> dict[int, Row]:
        """The statistics of the values, by the number of the leaf."""
        return {} if self.stats is None else self.stats.by_leaf()

    @cached_property
    def gradients(self) -> dict[int, Any]:
        """The existing gradients, by the number of the leaf."""
        leaves = [leaf.number for leaf in self.leaves]
        gradients = gradients_of(self.columns, leaves, self.columns.current_arrays(leaves))
        return {leaf: gradient for leaf, gradient in zip(leaves, gradients, strict=True) if gradient is not None}

    @cached_property
    def grad_stats(self) -> dict[int, Row]:
        """The statistics of the gradients, by the number of the leaf."""
        self.grad_skipped: dict[str, str] = {}
        self.grad_table: Stats | None = None
        if not self.gradients:
            return {}
        paths = {self.by_number[number].path: "it is sparse" for number in self.gradients}
        try:
            table = self.grad_table = self.measured("grad")
        except WalkError:  # no gradient has statistics
            self.grad_skipped = paths
            return {}
        self.grad_skipped = {path: reason for path, reason in table.skipped.items() if path in paths}
        return table.by_leaf()

    @cached_property
    def duplicate_rows(self) -> "list[tuple[LeafEvidence, str, int, Duplicates]]":
        """The matrices with duplicate lines: each with the layer, if several are stacked, with the axis and with the
        duplicates."""
        from leafwise.inspect.check.duplicate_rows import all_duplicate_rows, duplicate_rows

        fit = [leaf for leaf, row in self.float_parameters if row.finite == row.count and row.min < row.max]
        matrices = [leaf for leaf in fit if leaf.is_matrix]
        plain = [leaf for leaf in matrices if not leaf.stack_axes and {leaf.out_axis, leaf.in_axis} == {0, 1}]
        places = [(leaf, axis) for leaf in plain for axis in (0, 1)]
        searched = [
            (leaf, "", axis, duplicates)
            for (leaf, axis), duplicates in zip(places, all_duplicate_rows(places), strict=True)
        ]
        in_layers = [
            (leaf, layer, axis, duplicate_rows(matrix, number))
            for leaf in matrices
            if leaf.stack_axes or {leaf.out_axis, leaf.in_axis} != {0, 1}
            for layer, matrix in leaf.layers()
            if min(matrix.shape[:2]) > 1
            for number, axis in enumerate((leaf.out_axis, leaf.in_axis))
        ]
        return [place for place in searched + in_layers if any(place[3])]

    @cached_property
    def equal_leaves(self) -> list[tuple[LeafEvidence, dict[LeafEvidence, bool]]]:
        """Leaves with their untied bitwise copies; for each copy, whether it is transposed. Constants are left out.
        Leaves are compared bit by bit only if their counts, extremes and histograms agree, which do not depend on the
        order of the values."""
        by_stats: dict[object, list[LeafEvidence]] = {}
        counts = Counter((row.min, row.max) for _, row in self.float_leaves)
        for leaf, row in self.float_leaves:
            if counts[row.min, row.max] == 1:  # the usual case; a whole key takes longer
                continue
            if leaf.section == "weights" and row.min < row.max and row.count > 2:
                key = leaf.spec.dtype, leaf.spec.device, *sorted(leaf.shape), row.zeros, row.min, row.max, row.histogram
                by_stats.setdefault(key, []).append(leaf)
        shared = {frozenset(leaf.number for leaf in memory.leaves) for memory in self.tree.shared_memory}
        candidates = [[leaf.number for leaf in group] for group in by_stats.values()]
        pairs: Iterable[tuple[int, dict[int, bool]]]
        if self.ranks is None:
            equal = equal_leaves(self.columns, candidates)
            pairs = ((first, {number: op == "transpose" for number, op in ops.items()}) for first, ops in equal)
        else:
            pairs = self._equal_across_ranks(candidates)
        return [
            (self.by_number[first], {self.by_number[number]: turned for number, turned in copies.items()})
            for first, copies in pairs
            if {first, *copies} not in shared
        ]

    def _equal_across_ranks(self, candidates: list[list[int]]) -> Iterator[tuple[int, dict[int, bool]]]:
        """Like `equal_leaves`, for leaves that are read from several ranks."""
        for group in candidates:
            rest = group
            while len(rest) > 1:
                first, *others = rest
                kinds = {number: self.value_kinds(self.by_number[first], self.by_number[number]) for number in others}
                copies = {
                    number: "transposed" in of_pair for number, of_pair in kinds.items() if of_pair in _EQUAL_KINDS
                }
                if copies:
                    yield first, copies
                rest = [number for number in others if number not in copies]

    def value_kinds(self, first: LeafEvidence, second: LeafEvidence) -> frozenset[str]:
        """How the values of two leaves compare, as kinds of `lw.diff`."""
        from leafwise.inspect.value_comparison import compare_values

        [verdict] = compare_values([(first.held, second.held)], lambda count: None)
        return verdict.kinds

    @cached_property
    def tables_and_heads(self) -> list[tuple[LeafEvidence, LeafEvidence]]:
        """Pairs of an embedding and a linear weight of the same shape, which may be meant to be tied."""
        tables = [leaf for leaf in self.leaves if "embedding.table" in leaf.roles]
        heads = [leaf for leaf in self.leaves if leaf.role == "linear.weight" and "embedding.table" not in leaf.roles]
        return [(table, head) for table in tables for head in heads if table.shape == head.shape]

    @cached_property
    def declared(self) -> "list[tuple[int, str, Distribution]]":
        """The declarations of `init=`: the number of the leaf, the rule, and the distribution."""
        if self.init is None:
            return []
        declarations = declared_distributions(self.tree, self.init)
        return [declaration for declaration in declarations if declaration[0] in self.by_number]

    # -- against= ----------------------------------------------------------------------------------------

    @cached_property
    def changes(self) -> dict[str, Change]:
        """How each leaf changed since the baseline, by its path; empty where there is no baseline."""
        self.not_compared: dict[str, str] = {}
        if self.baseline is None:
            return {}
        try:
            differences = self.difference()
        except QueryError as error:
            raise QueryError(
                f"against=: {str(error).partition(f'; {RENAME_HINT}')[0]}; give the same model as it was before"
            ) from error
        changes = {}
        for change in differences:
            path, kinds = change.other or change.path, set(change.kinds)
            if change.is_plain or "removed" in kinds:
                continue
            if kinds & {"added", "reshaped", "unknown"}:
                missing, reshaped = "added" in kinds, "reshaped" in kinds
                reason = "not in against=" if missing else "another shape in against=" if reshaped else change.notes[-1]
                self.not_compared[path] = reason
            else:
                changes[path] = change
        if not changes:
            raise QueryError("no leaf can be compared with against=; give the same model as it was before")
        return changes

    def difference(self) -> Diff:
        """How the tree differs from the baseline."""
        if self.ranks is not None:
            self.ranks.on_all_ranks("difference")
        return diff_of(self.baseline, self.tree, progress=self._progress, workers=self.workers)

    def rows_same_as_before(self, leaf: LeafEvidence) -> list[int]:
        """The rows of a leaf that are the same in the baseline, bit by bit."""
        from leafwise.inspect.check.duplicate_rows import same_rows

        assert self.baseline is not None
        before = self.baseline[self.changes[leaf.path].path]
        home, value = self.own_baseline_array(before.row)
        if home.spec(value).dtype != leaf.spec.dtype:
            return []  # no bits are the same
        if self.ranks is not None:
            home, value = self.ranks.array(home, value, ("baseline", before.row, "value"))
        searching = leaf.searching()
        same = None if searching is None else searching.same_rows(leaf.held.value, value)
        if same is None:
            return same_rows(leaf.bands(), bands(home, value, leaf.shape))
        rows: list[int] = same.tolist()
        return rows
