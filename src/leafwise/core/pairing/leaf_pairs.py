"""The leaves of two trees that belong together, each once, whatever its names; which ties differ; what is left."""

from collections.abc import Sequence
from typing import NamedTuple

from leafwise.core.memory.ops import SAME
from leafwise.core.pairing.row_pairs import Pairing, Side


class TieChange(NamedTuple):
    """How the ties of two leaves differ: `kinds` of change, and `notes` about them."""

    kinds: frozenset[str]
    notes: tuple[str, ...] = ()


class LeafPairs:
    """Pairs of leaves, and a row for each leaf that is only in the source (`removed`) or only in the target (`added`).

    `sources` and `targets` have a row for each pair. `tie_changes` has the pairs whose ties differ, by their number.
    `notes` are about further names of paired leaves that only one side has. They call the source `a` and the target
    `b`, like `lw.diff`.
    """

    def __init__(self, pairing: Pairing) -> None:
        source, target = _Views(pairing.source), _Views(pairing.target)
        self.notes: list[str] = []
        self.tie_changes: dict[int, TieChange] = {}
        self.removed: list[int] = []
        self.added: list[int] = []
        has_ties = bool(source.side.columns.ties or target.side.columns.ties)
        if pairing.is_in_order and not has_ties:
            self.sources: Sequence[int] = pairing.source.rows
            self.targets: Sequence[int] = pairing.target.rows
            return
        target_of = pairing.target_of
        self.sources = sorted(target_of)
        self.targets = [target_of[row] for row in self.sources]
        paired, partners = set(self.sources), set(self.targets)
        if has_ties:
            self.sources, self.targets, self.tie_changes = _paired_once(source, target, self.sources, self.targets)
        self.removed = self._left(source, self.sources, "a", paired.union(pairing.left_out))
        self.added = self._left(target, self.targets, "b", partners)

    def _left(self, views: "_Views", compared: Sequence[int], tree_name: str, excluded: set[int]) -> list[int]:
        """One row for each value that has no partner, without transient rows. If such a row is only another name of a
        paired value, it becomes a note instead."""
        free = [row for row in views.side.rows if row not in excluded and not views.side.is_transient(row)]
        if not free:
            return []
        known: dict[int, dict[str, int]] = {}  # by leaf and view, the first row with these values
        for row in compared:
            known.setdefault(views.leaf(row), {}).setdefault(views.label(row), row)
        left: set[int] = set()
        # Rows that show the whole leaf come first; a row that shows a part is then another name of it.
        for row in sorted(free, key=lambda row: not views.shows_all(row)):
            rows_by_view = known.setdefault(views.leaf(row), {})
            whole = next((first for first in rows_by_view.values() if views.shows_all(first)), None)
            first = rows_by_view.get(views.label(row), whole)
            if first is None:
                rows_by_view[views.label(row)] = row
                left.add(row)
            elif first not in left:
                text = views.side.text(row)
                self.notes.append(f"{text} is only in {tree_name}, where it is {views.describe(row, first)}")
        return sorted(left)


class _Views:
    """How the rows of one side view their leaves: as they are, transposed, or a part of them."""

    def __init__(self, side: Side) -> None:
        self.side, self.leaf, self.op = side, side.leaf, side.columns.row_op

    def shows_all(self, row: int) -> bool:
        """Whether a row shows every element of its leaf, in any order."""
        op = self.op(row)
        return op == SAME or (op.slices is None and op.order is not None)

    def label(self, row: int) -> str:
        """A text that is different for each view of a leaf; the number of the row if the view is not known."""
        op = self.op(row)
        return op.describe() if op.is_described else f"row {row}"

    def overlap(self, row: int, first: int | None) -> bool:
        """Whether one of two rows of a leaf certainly shows everything that the other shows. Two parts may have nothing
        in common."""
        if first is None:
            return False
        return self.shows_all(row) or self.shows_all(first) or self.label(row) == self.label(first)

    def describe(self, row: int, first: int) -> str:
        """A description of a row in terms of another row of the same leaf."""
        text = self.side.text(first)
        if self.label(row) == self.label(first):
            return f"another name of {text}"
        return f"{text}{self.op(row).describe()}" if self.op(first) == SAME else f"tied to {text}"


def _paired_once(
    source: _Views, target: _Views, rows: Sequence[int], partners: Sequence[int]
) -> tuple[list[int], list[int], dict[int, TieChange]]:
    """Each pair of leaves once, whatever its names. A leaf that has two partners was tied, or untied."""
    views: dict[tuple[int, int], set[str]] = {}  # by both leaves, the views that are compared and are the same
    first_of_source: dict[int, int] = {}
    first_of_target: dict[int, int] = {}
    sources: list[int] = []
    targets: list[int] = []
    tie_changes: dict[int, TieChange] = {}
    pairs = zip(rows, partners, strict=True)
    # Rows that show all of both leaves come first; it is then known whether a part is another name of them.
    for a, b in sorted(pairs, key=lambda pair: not (source.shows_all(pair[0]) and target.shows_all(pair[1]))):
        leaf, partner = source.leaf(a), target.leaf(b)
        known = views.get((leaf, partner))
        view = _common_view(source, a, target, b)
        if known and view is not None and known & {"", view}:
            continue  # another name of both
        kinds, notes = set(), []
        # If it is not known how a row views its leaf, only the values are compared.
        is_known = source.op(a).is_described and target.op(b).is_described
        may_differ = known is None or (is_known and source.label(a) != target.label(b))
        if may_differ and source.overlap(a, first_of_source.get(leaf)):
            kinds.add("untied")
            notes.append(f"in a it is {source.describe(a, first_of_source[leaf])}")
        if may_differ and target.overlap(b, first_of_target.get(partner)):
            kinds.add("tied")
            notes.append(f"in b it is {target.describe(b, first_of_target[partner])}")
        views.setdefault((leaf, partner), set()).update([] if view is None else [view])
        first_of_source.setdefault(leaf, a)
        first_of_target.setdefault(partner, b)
        if kinds:
            tie_changes[len(sources)] = TieChange(frozenset(kinds), tuple(notes))
        sources.append(a)
        targets.append(b)
    return sources, targets, tie_changes


def _common_view(source: _Views, row: int, target: _Views, partner: int) -> str | None:
    """How two rows view leaves of one shape, if they certainly view them in the same way."""
    op, label = source.op(row), source.label(row)
    if not (op.is_described and target.op(partner).is_described) or label != target.label(partner):
        return None
    return label if op == SAME or source.side.leaf_shape(row) == target.side.leaf_shape(partner) else None
