"""Which row of one tree is which row of another: by name, by `rename=`, and by proposed renames.

All verbs with two trees use this. `lw.plan` and `lw.load` pair a checkpoint, the source, with a model, the target;
`lw.diff` pairs its first tree, the source, with its second, the target. Values are not read here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, overload

from leafwise.core.columns import Columns
from leafwise.core.dtypes import number_kind
from leafwise.core.home import Home, Spec
from leafwise.core.pairing.families import Unmatched
from leafwise.core.pairing.proposals import Proposal, certain_pairs, propose
from leafwise.core.pairing.row_matching import Matching, Prefix, Rename, Renaming, is_auto, match_names
from leafwise.core.path import quote
from leafwise.core.tree import Tree

_quoted = lru_cache(4096)(quote)  # models repeat a few names


class NamedArray(NamedTuple):
    """The array at a row, with its home, its spec, and its name relative to the tree."""

    row: int
    home: Home
    value: Any
    spec: Spec
    name: str
    leaf_names: int = 1  # how many names its leaf has


class NamedArrays(Sequence[NamedArray]):
    """Arrays as columns, because a tree may have tens of thousands: a `NamedArray` is made when it is asked for."""

    def __init__(
        self,
        rows: Sequence[int],
        homes: Sequence[Home],
        values: list[Any],
        specs: list[Spec],
        names: Sequence[str],
        leaf_names: Sequence[int],
    ) -> None:
        self.rows, self.homes, self.values, self.specs = rows, homes, values, specs
        self.names, self.leaf_names = names, leaf_names

    @classmethod
    def of(cls, arrays: Sequence[NamedArray]) -> "NamedArrays":
        rows, homes, values, specs, names, leaf_names = zip(*arrays, strict=True) if arrays else ((),) * 6
        return cls(rows, homes, list(values), list(specs), names, leaf_names)

    @overload
    def __getitem__(self, number: int) -> NamedArray: ...
    @overload
    def __getitem__(self, number: slice) -> "NamedArrays": ...
    def __getitem__(self, number: int | slice) -> "NamedArray | NamedArrays":
        columns = self.rows, self.homes, self.values, self.specs, self.names, self.leaf_names
        if isinstance(number, slice):
            return NamedArrays(*(column[number] for column in columns))  # type: ignore[arg-type]
        return NamedArray(*(column[number] for column in columns))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.rows)


def saved_rows(t: Tree) -> Sequence[int]:
    """The rows of a tree that belong in a checkpoint."""
    columns = t.columns
    if "transient" not in columns.row_kinds:
        return t.rows
    return [row for row in t.rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]


class Side:
    """The rows of a tree to pair, and their names relative to the tree. `names`, if given, are the names by which they
    are paired instead of their own."""

    def __init__(self, t: Tree, rows: Sequence[int] | None = None, names: list[str] | None = None) -> None:
        self.tree, self.columns = t, t.columns
        self.rows: Sequence[int] = t.rows if rows is None else rows
        # The names of a model are kept with its tree, which may be compared many times; a file may have millions.
        self.is_all = not t.root and self.rows == range(len(self.columns.row_names)) and not t.is_file
        self._own_names = self.columns.all_keys if self.is_all else self.columns.keys(self.rows, t.root)
        self.names = self._own_names if names is None else names

    @cached_property
    def name_of(self) -> dict[int, str]:
        return dict(zip(self.rows, self._own_names, strict=True))

    @property
    def has_unique_names(self) -> bool:
        """Whether no two rows are paired by the same name."""
        is_kept = self.is_all and self.names is self._own_names
        return self.columns.has_unique_keys if is_kept else len(set(self.names)) == len(self.names)

    def leaf(self, row: int) -> int:
        """The leaf of a row."""
        return self.columns.ties.get(row, row)

    def is_transient(self, row: int) -> bool:
        """Whether a row is not part of any checkpoint."""
        return self.columns.row_kinds[self.leaf(row)] == "transient"

    def spec(self, row: int) -> Spec:
        return self._specs[row]

    def specs(self, rows: Sequence[int]) -> list[Spec]:
        """The spec of each row. Equal specs are the same object."""
        return list(map(self._specs.__getitem__, rows))

    @cached_property
    def _specs(self) -> dict[int, Spec]:
        return {row: facts.spec for row, facts in zip(self.rows, self.columns.facts(self.rows), strict=True)}

    def leaf_shape(self, row: int) -> tuple[int, ...] | None:
        """The shape of the leaf of a row, even if the first row of the leaf is not among the rows."""
        leaf = self.leaf(row)
        spec = self._specs.get(leaf) or self.columns.facts([leaf])[0].spec
        return spec.shape

    def array(self, row: int) -> NamedArray:
        """The array that is at a row now."""
        value = self.columns.current(row)
        leaf_names = self._names_of_leaves[self.leaf(row)]
        return NamedArray(row, self.columns.home(value), value, self.spec(row), self.name_of[row], leaf_names)

    def arrays(self, rows: Sequence[int]) -> NamedArrays:
        """The arrays that are at rows now."""
        columns = self.columns
        values = columns.current_arrays(rows)
        leaf_names = [self._names_of_leaves[self.leaf(row)] for row in rows] if columns.ties else [1] * len(rows)
        names = list(map(self.name_of.__getitem__, rows))
        return NamedArrays(rows, columns.home_of_each(values), values, self.specs(rows), names, leaf_names)

    @cached_property
    def _names_of_leaves(self) -> Counter[int]:
        return Counter(map(self.leaf, self.rows))

    def text(self, row: int) -> str:
        """The path of a row as it prints."""
        return self.texts.text(row)

    @cached_property
    def texts(self) -> "RowTexts":
        return RowTexts(self.columns)


class RowTexts:
    """The paths of rows as they print. It has only the names of a tree, and does not keep its arrays in memory."""

    def __init__(self, columns: Columns) -> None:
        self._row_nodes, self._row_names = columns.row_nodes, columns.row_names
        self._parents, self._node_names = columns.node_parents, columns.node_names
        nodes = range(len(self._parents)) if columns.wrapped else ()
        self._hidden = {node for node in nodes if columns.hidden(node)}

    def text(self, row: int) -> str:
        return self._prefixes[self._row_nodes[row]] + _quoted(self._row_names[row])

    @cached_property
    def _prefixes(self) -> list[str]:
        """For each node, its printed path with a final dot, built from that of its parent."""
        prefixes = [""]
        for node in range(1, len(self._node_names)):
            above = prefixes[self._parents[node]]
            prefixes.append(above if node in self._hidden else f"{above}{_quoted(self._node_names[node])}.")
        return prefixes


class Pairing:
    """The rows of a source and of a target that have the same name, after `rename=` and apart from well-known prefixes.

    `source_of` is keyed by the row of the target, `target_of` by the row of the source. `sources_left` are rows of the
    source without a partner, `left_out` the rows that the rename left out. `proposals` are renames that would pair
    more rows; with `rename="auto"`, the certain ones are `applied`. `idle` are the renames that matched no name.

    With `once_per_leaf`, a leaf that is paired by one of its names needs no partner for its other names, and no renames
    are proposed for them.
    """

    def __init__(self, source: Side, target: Side, rename: Rename, once_per_leaf: bool = False) -> None:
        self.source, self.target = source, target
        self.new_name = Renaming(rename)
        self.proposals: list[Proposal] = []
        self.applied: list[Proposal] = []
        # Whether all rows of the source are paired with all rows of the target in order, as for two models of one
        # class; thousands of rows need no further work then.
        keeps_names = rename is None or is_auto(rename)
        self.is_in_order = keeps_names and target.names == source.names and target.has_unique_names
        nothing_left = Matching({}, [], [], [], [], [])
        matching = nothing_left if self.is_in_order else match_names(target.names, source.names, rename)
        if matching.targets_left and matching.sources_left:
            self.proposals = propose(*self._unmatched(matching, once_per_leaf))
            if is_auto(rename):
                self.applied = [proposal for proposal in self.proposals if proposal.certain]
                self.proposals = [proposal for proposal in self.proposals if not proposal.certain]
                matching = matching.joined(certain_pairs(self.applied, target.names, source.names))
        self.prefixes: list[Prefix] = matching.prefixes
        self.idle: list[str] = matching.idle
        self._matching = matching
        self.sources_left = [source.rows[place] for place in matching.sources_left]
        self.left_out = [source.rows[place] for place in matching.left_out]

    @cached_property
    def source_of(self) -> dict[int, int]:
        source, target = self.source.rows, self.target.rows
        if self.is_in_order:
            return dict(zip(target, source, strict=True))
        return {target[place]: source[partner] for place, partner in self._matching.sources.items()}

    @cached_property
    def target_of(self) -> dict[int, int]:
        return {source: target for target, source in self.source_of.items()}

    def _unmatched(self, matching: Matching, once_per_leaf: bool) -> tuple[list[Unmatched], list[Unmatched]]:
        """The names of the target and of the source for which renames are proposed."""
        source, target = self.source, self.target
        targets, sources = matching.targets_left, matching.sources_left
        if once_per_leaf:
            filled, spent = self._paired_leaves(matching)
            targets = [place for place in targets if target.leaf(target.rows[place]) not in filled]
            sources = [place for place in sources if source.leaf(source.rows[place]) not in spent]
        return (
            _unmatched(target, targets, once_per_leaf),
            _unmatched(source, sources, once_per_leaf, matching.common_prefixes),
        )

    def _paired_leaves(self, matching: Matching) -> tuple[set[int], set[int]]:
        """The leaves of the target that have a partner for all of their values, and the leaves of the source that are
        partners of tied leaves."""
        filled: set[int] = set()
        spent: set[int] = set()
        columns = self.target.columns
        for place, partner in matching.sources.items():
            row = self.target.rows[place]
            if columns.row_op(row).slices is None:
                leaf = self.target.leaf(row)
                filled.add(leaf)
                if leaf in columns.further_rows:
                    spent.add(self.source.leaf(self.source.rows[partner]))
        return filled, spent


def _unmatched(
    side: Side, places: Iterable[int], with_leaves: bool, prefixes: tuple[str, str] = ("", "")
) -> list[Unmatched]:
    """Names, by their places in a side, with the shape and kind of number that a partner must have."""
    places = list(places)
    rows = [side.rows[place] for place in places]
    unmatched = []
    for place, row, facts in zip(places, rows, side.columns.facts(rows), strict=True):
        leaf = side.leaf(row) if with_leaves and side.columns.row_op(row) == "same" else None
        form = facts.spec.shape, number_kind(facts.spec.dtype)
        unmatched.append(Unmatched(side.names[place], form, leaf, prefixes))
    return unmatched
