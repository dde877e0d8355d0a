"""Which leaf of one tree is which leaf of another, by their names; and which ties differ."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from math import copysign
from typing import Any, NamedTuple

from leafwise.core.columns import Columns
from leafwise.core.dtypes import number_kind
from leafwise.core.families import Unmatched
from leafwise.core.home import Home, Spec
from leafwise.core.match import Matching, match, new_name, renamer
from leafwise.core.memory import SAME
from leafwise.core.path import quote
from leafwise.core.proposals import Proposal, certain_pairs, propose
from leafwise.core.tree import Tree
from leafwise.errors import QueryError

_quoted = lru_cache(4096)(quote)  # models repeat a few names


class Held(NamedTuple):
    """An array that stands at a row, with its home, its facts and its name seen from the tree."""

    row: int
    home: Home
    value: Any
    spec: Spec
    name: str
    names: int = 1  # how many names its leaf has


class Side:
    """The rows of a tree that take part, and their names."""

    def __init__(self, t: Tree) -> None:
        self.tree, self.columns = t, t.columns
        self.rows: Sequence[int] = t.rows
        self.names = self.columns.keys(self.rows, t.root)
        self._specs = dict(zip(self.rows, self.columns.facts(self.rows), strict=True))
        self.name_of = dict(zip(self.rows, self.names, strict=True))

    def leaf(self, row: int) -> int:
        return self.columns.ties.get(row, row)

    def text(self, row: int) -> str:
        """The path of a row as it prints."""
        return self._fronts[self.columns.row_nodes[row]] + _quoted(self.columns.row_names[row])

    @cached_property
    def _fronts(self) -> list[str]:
        """For each node its path as it prints, with a dot; each made from that of the node above."""
        columns = self.columns
        fronts = [""]
        for node in range(1, len(columns.node_names)):
            above = fronts[columns.node_parents[node]]
            fronts.append(above if columns.hidden(node) else f"{above}{_quoted(columns.node_names[node])}.")
        return fronts

    def spec(self, row: int) -> Spec:
        return self._specs[row].spec

    def leaf_shape(self, row: int) -> tuple[int, ...] | None:
        """The shape of the leaf that a row sees, also where that is not among the rows."""
        leaf = self.leaf(row)
        known = self._specs.get(leaf) or self.columns.facts([leaf])[0]
        return known.spec.shape

    def held(self, row: int) -> Held:
        value = self.columns.current(row)
        names = self._names[self.leaf(row)]
        return Held(row, self.columns.home(value), value, self.spec(row), self.name_of[row], names)

    @cached_property
    def _names(self) -> Counter[int]:
        return Counter(map(self.leaf, self.rows))

    def sees_all(self, row: int) -> bool:
        """Whether a row shows every element of its leaf, in whatever order."""
        op = self.columns.row_op(row)
        return op == SAME or (op.slices is None and op.order is not None)

    def seen_as(self, row: int) -> str:
        """How a row sees its leaf, in words that no other view has; by its number where nobody can say."""
        op = self.columns.row_op(row)
        return op.describe() if self.can_say(row) else f"row {row}"

    def can_say(self, row: int) -> bool:
        """Whether it is known just how a row sees its leaf."""
        op = self.columns.row_op(row)
        return op == SAME or op.slices is not None or op.order is not None

    def are_one(self, row: int, first: int | None) -> bool:
        """Whether what a row shows is surely shown by another one of its leaf, too, or the other way round; parts of a
        leaf may have nothing in common."""
        if first is None:
            return False
        return self.sees_all(row) or self.sees_all(first) or self.seen_as(row) == self.seen_as(first)

    def told_by(self, row: int, first: int) -> str:
        """A row in words, by another one of the same leaf."""
        op, name = self.columns.row_op(row), self.text(first)
        if self.seen_as(row) == self.seen_as(first):
            return f"another name of {name}"
        return f"{name}{op.describe()}" if self.columns.row_op(first) == SAME else f"one with {name}"

    def is_transient(self, row: int) -> bool:
        """Whether no checkpoint holds it, so that nobody misses it in one."""
        return self.columns.row_kinds[self.leaf(row)] == "transient"


class Link(NamedTuple):
    """A leaf of one tree and the leaf of the other that it is, each by a row; and how ties differ there."""

    one: int
    other: int
    kinds: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class Pairing:
    """Both sides, what belongs together, and what is left on either side: a row for each leaf."""

    def __init__(self, a: Tree, b: Tree, rename: Any) -> None:
        self.one, self.other = Side(a), Side(b)
        self.proposals: list[Proposal] = []
        self.applied: list[Proposal] = []
        self.notes: list[str] = []
        found = self._matched(rename)
        self.prefixes = found.prefixes
        self.rows = [(self.one.rows[s], self.other.rows[t]) for t, s in found.sources.items()]
        self.rows.sort()
        self.left_out = {self.one.rows[number] for number in found.left_out}
        self.links = _linked(self.one, self.other, self.rows)
        self.removed = self._left(self.one, [link.one for link in self.links], "a", self.left_out)
        self.added = self._left(self.other, [link.other for link in self.links], "b", set())
        self.scalars = _Scalars(a, b, rename)
        if found.idle:
            self.notes += [f"rename: {rule!r} fits no name" for rule in found.idle]

    def _matched(self, rename: Any) -> Matching:
        auto = isinstance(rename, str) and rename == "auto"
        ones, others = self.one.names, self.other.names
        found = match(others, ones, None if auto else rename)
        if found.targets_left and found.sources_left:
            ours, theirs = _unmatched(self.other, found.targets_left), _unmatched(self.one, found.sources_left)
            self.proposals = propose(ours, [one._replace(front=found.fronts) for one in theirs])
            if auto:
                self.applied = [proposal for proposal in self.proposals if proposal.certain]
                self.proposals = [proposal for proposal in self.proposals if not proposal.certain]
                return found.joined(certain_pairs(self.applied, others, ones))
        return found

    def _left(self, side: Side, linked: list[int], which: str, besides: set[int]) -> list[int]:
        """The rows whose values found none, and that are not only passing; no values twice. A name that is left of
        values that did find some is told of."""
        known: dict[int, dict[str, int]] = {}
        for row in linked:
            known.setdefault(side.leaf(row), {}).setdefault(side.seen_as(row), row)
        rows = {row for row, _ in self.rows} if which == "a" else {row for _, row in self.rows}
        left: set[int] = set()
        free = [row for row in side.rows if row not in rows and row not in besides and not side.is_transient(row)]
        # Those that see all of their leaf first: what sees a part of it is then another name of that.
        for row in sorted(free, key=lambda row: not side.sees_all(row)):
            views = known.setdefault(side.leaf(row), {})
            every = next((one for one in views.values() if side.sees_all(one)), None)
            first = views.get(side.seen_as(row), every)
            if first is None:
                views[side.seen_as(row)] = row
                left.add(row)
            elif first not in left:
                self.notes.append(f"{side.text(row)} is only in {which}, where it is {side.told_by(row, first)}")
        return sorted(left)


def _unmatched(side: Side, numbers: list[int]) -> list[Unmatched]:
    specs = [side.spec(side.rows[number]) for number in numbers]
    return [
        Unmatched(side.names[number], (spec.shape, number_kind(spec.dtype)))
        for number, spec in zip(numbers, specs, strict=True)
    ]


def _linked(one: Side, other: Side, rows: list[tuple[int, int]]) -> list[Link]:
    """Each pair of leaves once, whatever its names. A leaf that meets a second one has been tied, or untied."""
    if not one.columns.ties and not other.columns.ties:
        return [Link(a, b) for a, b in rows]
    seen: dict[tuple[int, int], set[str]] = {}  # how what is compared is seen, where that is alike
    first_of_one: dict[int, int] = {}
    first_of_other: dict[int, int] = {}
    links = []
    # What sees all of a leaf first: what sees a part of it is then another name of that, or not.
    for a, b in sorted(rows, key=lambda pair: not (one.sees_all(pair[0]) and other.sees_all(pair[1]))):
        leaf, partner = one.leaf(a), other.leaf(b)
        known = seen.get((leaf, partner))
        view = _seen_alike(one, a, other, b)
        if known and view is not None and known & {"", view}:
            continue  # another name of both
        kinds, notes = set(), []
        # Where nobody can say how either sees its leaf, the values say all there is.
        said = one.can_say(a) and other.can_say(b)
        elsewhere = known is None or (said and one.seen_as(a) != other.seen_as(b))
        if elsewhere and one.are_one(a, first_of_one.get(leaf)):
            kinds.add("untied")
            notes.append(f"in a it is {one.told_by(a, first_of_one[leaf])}")
        if elsewhere and other.are_one(b, first_of_other.get(partner)):
            kinds.add("tied")
            notes.append(f"in b it is {other.told_by(b, first_of_other[partner])}")
        seen.setdefault((leaf, partner), set()).update([] if view is None else [view])
        first_of_one.setdefault(leaf, a)
        first_of_other.setdefault(partner, b)
        links.append(Link(a, b, frozenset(kinds), tuple(notes)))
    return links


def _seen_alike(one: Side, row: int, other: Side, partner: int) -> str | None:
    """How two rows see leaves of one shape, where that is surely the same."""
    if not (one.can_say(row) and other.can_say(partner)) or one.seen_as(row) != other.seen_as(partner):
        return None
    whole = one.columns.row_op(row) == SAME
    return one.seen_as(row) if whole or one.leaf_shape(row) == other.leaf_shape(partner) else None


# -- plain values ----------------------------------------------------------------------------------------------------


class _Scalars:
    """Plain values of both sides that belong together, and those that are left; each with its path."""

    def __init__(self, a: Tree, b: Tree, rename: Any) -> None:
        ones, others = _values_of(a), _values_of(b)
        give = _giver(rename)
        kept = {key: new for key in ones if (new := give(key)) is not None}
        found = match(list(others), list(kept.values())) if others and kept else None
        keys, other_keys = list(kept), list(others)
        pairs = {} if found is None else {keys[s]: other_keys[t] for t, s in found.sources.items()}
        self.pairs = [(ones[key], others[pairs[key]]) for key in ones if key in pairs]
        taken = set(pairs.values())
        self.removed = [ones[key] for key in kept if key not in pairs]
        self.added = [value for key, value in others.items() if key not in taken]


def _values_of(t: Tree) -> dict[str, tuple[str, Any]]:
    """The plain values of a tree with their paths by their names; but not what a file says of itself."""
    columns: Columns = t.columns
    if not t.is_whole or not columns.scalars:
        return {}
    return {
        key: (str(columns.scalar_path(node, name, value)), value)
        for key, node, name, value in columns.scalar_items(t.root)
        if not (t.is_file and key.startswith("__metadata__."))
    }


def _giver(rename: Any) -> Callable[[str], str | None]:
    if rename is None or (isinstance(rename, str) and rename == "auto"):
        return lambda name: name
    give = renamer(rename)[0]
    return lambda name: new_name(give, name)


def plain_kind(one: Any, other: Any) -> str:
    """Whether two plain values are the `same` or `changed`; `unknown` where their equality says nothing. Lists and
    tuples are one, as are numbers of Python and of NumPy; nan is itself, and -0.0 is not 0.0."""
    one, other = _as_number(one), _as_number(other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return "changed"
        found = set(map(plain_kind, one, other))
        return next((kind for kind in ("changed", "unknown") if kind in found), "same")
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return "same" if _same_number(one, other) else "changed"
    if type(one) is not type(other):
        return "changed"
    return "same" if one is other else _equal(one, other)


_PLAIN = (str, bytes, int, float, complex, type(None))


def _as_number(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, complex) or isinstance(other, complex):
        numbers = all(isinstance(value, int | float | complex) for value in (one, other))
        return numbers and _same_number(one.real, other.real) and _same_number(one.imag, other.imag)
    if one == other:
        return not (isinstance(one, float) and isinstance(other, float)) or copysign(1, one) == copysign(1, other)
    return bool(one != one and other != other)


def _equal(one: Any, other: Any) -> str:
    """What two objects of one type say of each other."""
    try:
        kind: Any = type(one)
        if kind.__eq__ is object.__eq__:
            # Those of which there is one for each name, such as dtypes, are told by that.
            return "changed" if isinstance(one, Enum | type) or isinstance(one.__reduce__(), str) else "unknown"
        equal, own = _as_number(one == other), _as_number(one == one)
        if isinstance(equal, bool) and isinstance(own, bool):
            return "same" if equal or (not own and other != other) else "changed"
    except Exception:
        pass  # of whoever wrote the objects: nothing is known, then
    return "unknown"


RENAME_HINT = "give rename= what they are called in b"


def nothing_in_common(pairing: Pairing) -> QueryError:
    sides = []
    for side, which in ((pairing.one, "a"), (pairing.other, "b")):
        names = ", ".join(side.names[:3]) + (", …" if len(side.names) > 3 else "")
        sides.append(f"{which} has {names}")
    hint = RENAME_HINT
    if pairing.proposals:
        proposal = pairing.proposals[0]
        hint = f'{RENAME_HINT}, such as [(r"{proposal.pattern}", r"{proposal.replacement}")]'
    return QueryError(f"the two trees have no leaf in common: {'; '.join(sides)}; {hint}")
