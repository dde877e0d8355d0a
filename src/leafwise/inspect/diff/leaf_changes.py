"""How the leaves of two trees changed: a `Change` for each, made when it is first needed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from leafwise.core.home import Spec
from leafwise.core.pairing.leaf_pairs import TieChange
from leafwise.core.pairing.row_pairs import Side
from leafwise.core.results.comparison import Comparison
from leafwise.inspect.diff.changes import KINDS, Change

# How the values of two leaves compare: kinds of change, figures, and the reason if they cannot be compared.
LeafVerdict = tuple[frozenset[str], Comparison | None, str]

_NO_TIE_CHANGE = TieChange(frozenset())


class _Leaves:
    """Leaves of one side, by their rows. Without arrays, so that a diff does not keep a model in memory."""

    def __init__(self, side: Side, rows: Sequence[int], specs: list[Spec]) -> None:
        self.rows, self._specs, self._texts = rows, specs, side.texts

    def __iter__(self) -> Iterator[tuple[int, str, Spec]]:
        """The row of each leaf, its path as it prints, and its spec."""
        return zip(self.rows, map(self._texts.text, self.rows), self._specs, strict=True)


class LeafChanges:
    """The changes of leaves: of pairs, given by their rows and specs in both trees, their verdicts, and by number how
    their ties changed; and of leaves that were removed or added.

    Many callers only need to know whether anything changed, so that `Change` objects, which take longer than the
    comparison if there are thousands, are made by `changes`.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        rows: tuple[Sequence[int], Sequence[int]],
        specs: tuple[list[Spec], list[Spec]],
        verdicts: Sequence[LeafVerdict],
        tie_changes: Mapping[int, TieChange],
        removed: Sequence[int],
        added: Sequence[int],
    ) -> None:
        self._sources, self._targets = map(_Leaves, sides, rows, specs)
        self._removed, self._added = (
            _Leaves(side, left, side.specs(left) if left else [])
            for side, left in zip(sides, (removed, added), strict=True)
        )
        self._verdicts, self._tie_changes = verdicts, tie_changes

    def __len__(self) -> int:
        return len(self._verdicts) + len(self._removed.rows) + len(self._added.rows)

    def count_kinds(self) -> Counter[tuple[str, ...]]:
        """How many changes have the same kinds."""
        counts: Counter[tuple[str, ...]] = Counter()
        tie_changes = self._tie_changes
        verdicts = Counter(
            kinds if number not in tie_changes else kinds | tie_changes[number].kinds
            for number, (kinds, _, _) in enumerate(self._verdicts)
        )
        for kinds, times in verdicts.items():
            counts[_in_order(kinds)] += times
        for kind, rows in (("removed", self._removed.rows), ("added", self._added.rows)):
            if rows:
                counts[kind,] += len(rows)
        return counts

    def changes(self) -> list[Change]:
        """All changes, in the order of the first tree, followed by the added leaves."""
        by_row: dict[int, Change] = {}
        numbered = enumerate(zip(self._sources, self._targets, self._verdicts, strict=True))
        for number, ((row, path, spec), (_, other, partner), (kinds, comparison, reason)) in numbered:
            tied = self._tie_changes.get(number, _NO_TIE_CHANGE)
            every = kinds | tied.kinds if tied.kinds else kinds
            facts = spec.dtype, partner.dtype, spec.shape, partner.shape
            notes = (*tied.notes, reason) if reason else tied.notes
            by_row[row] = Change(
                _in_order(every), path, other if other != path else None, *facts, comparison, None, notes
            )
        for row, path, spec in self._removed:
            by_row[row] = Change(("removed",), path, dtype=spec.dtype, shape=spec.shape)
        changes = [by_row[row] for row in sorted(by_row)]
        for _, path, spec in self._added:
            changes.append(Change(("added",), path, other_dtype=spec.dtype, other_shape=spec.shape))
        return changes


@cache
def _in_order(kinds: frozenset[str]) -> tuple[str, ...]:
    """Kinds, the most important first."""
    return tuple(kind for kind in KINDS if kind in kinds and (kind != "same" or len(kinds) == 1))
