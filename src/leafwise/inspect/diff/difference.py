"""`lw.diff`: what two trees have in common, and what not."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, overload

from leafwise.core.capabilities.saving import Saving
from leafwise.core.leaf_pairs import LeafPair, LeafPairs
from leafwise.core.match import Prefix
from leafwise.core.pairing import NamedArray, Pairing, Side
from leafwise.core.path import shown_url
from leafwise.core.plain_pairs import PlainPairs, compare_plain
from leafwise.core.progress import bar
from leafwise.core.proposals import Proposal
from leafwise.core.result import Table, whole_number
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError, QueryError, WalkError
from leafwise.inspect.diff.changes import KINDS, Change, in_order

RENAME_HINT = "give rename= what they are called in b"


class Diff(Table, Sequence[Change], kind="diff"):
    """What became of every leaf, in the order of the first tree, and then what was added; see `lw.diff`.

    `same` says whether nothing differs. `d["2.weight"]` is the change of a leaf, `d.of("changed")` all changes of a
    kind, `counts` how many there are of each. `names` are what both trees are called. `notes` list what does not
    count as a difference, `proposals` are renames that might be meant.
    """

    def __init__(
        self, changes: list[Change], names: tuple[str, str], values: bool, pairing: Pairing, notes: list[str]
    ) -> None:
        self._changes, self.names, self.values = changes, names, values
        self.notes = notes
        self.prefixes: list[Prefix] = pairing.prefixes
        self.proposals: list[Proposal] = pairing.proposals
        self.applied: list[Proposal] = pairing.applied

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return all(change.kinds == ("same",) for change in self._changes)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many leaves and plain values there are of each kind; one that is of several counts in each."""
        counts = Counter(kind for change in self._changes for kind in change.kinds)
        return {kind: counts[kind] for kind in KINDS if kind in counts}

    def of(self, kind: str) -> list[Change]:
        """The changes of a kind.

        >>> import torch, leafwise as lw
        >>> d = lw.diff({"a": torch.zeros(2), "b": torch.ones(2)}, {"a": torch.zeros(2), "c": torch.zeros(3)})
        >>> [change.path for change in d.of("added")], [change.path for change in d.of("same")]
        (['c'], ['a'])
        """
        if kind not in KINDS:
            raise QueryError(f"there is no kind of change called {kind!r}; there are {', '.join(KINDS)}")
        return [change for change in self._changes if kind in change.kinds]

    @cached_property
    def _by_path(self) -> dict[str, Change]:
        by_second_path = {change.other: change for change in self._changes if change.other is not None}
        return {**by_second_path, **{change.path: change for change in self._changes}}

    @overload
    def __getitem__(self, key: int) -> Change: ...
    @overload
    def __getitem__(self, key: slice) -> list[Change]: ...
    @overload
    def __getitem__(self, key: str) -> Change: ...
    def __getitem__(self, key: int | slice | str) -> Change | list[Change]:
        if not isinstance(key, str):
            return self._changes[key]
        if key not in self._by_path:
            raise PathError(f'nothing was compared under "{key}"')
        return self._by_path[key]

    def __contains__(self, key: object) -> bool:
        return key in self._by_path if isinstance(key, str) else key in self._changes

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._by_path)

    def __iter__(self) -> Iterator[Change]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def text(self, *, width: int | None = None, full: bool = False, depth: int | None = None) -> str:
        """The outline as plain text, `width` columns wide. `depth` is the number of path entries that get lines of
        their own; `full` shows every leaf, also those that are the same."""
        return self.render_text(width=width, full=full, depth=whole_number(depth, "depth", 0))


def diff(a: Any, b: Any, *, rename: Any = None, values: bool = True, progress: bool = False) -> Diff:
    """What differs between two models, files, folders, URLs, containers or Trees, leaf by leaf.

    First by structure, from headers: leaves `added`, `removed`, `reshaped`, `tied`, `untied`. Then by values, a piece
    at a time: `same` in every bit; `changed`, with the relative L2 norm of the difference, the cosine, the largest
    difference and the share of elements that changed; `cast`, equal but for the dtype; `transposed`; and `renamed`, the
    same values under another name. `unknown` are leaves without values, and objects that do not say whether they are
    equal. `values=False` leaves it at the structure.

    `rename` gives names of `a` those that they have in `b`: a mapping of names or of their fronts, a list of
    `(pattern, replacement)`, a function, or `"auto"`, which takes what is proposed and certain. Well-known prefixes,
    as of a wrapper, do not count as differences. A shared leaf is compared once.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 2)
    >>> before = {name: value.clone() for name, value in net.state_dict().items()}
    >>> lw.diff(before, net).same
    True
    >>> with torch.no_grad():
    ...     _ = net.bias.add_(1)
    >>> d = lw.diff(before, net)
    >>> d.same, d.counts, d["bias"].kind, d["bias"].comparison.share
    (False, {'changed': 1, 'same': 1}, 'changed', 1.0)
    """
    with opened(a, "diff") as first, opened(b, "diff") as second:
        names = _tree_name(a, first), _tree_name(b, second)
        return _compared(first, second, names, rename, values, progress)


def _tree_name(x: Any, t: Tree) -> str:
    """What a tree is called: the name of its file, or of its type."""
    if isinstance(x, str | os.PathLike):
        return os.path.basename(shown_url(os.fspath(x)).rstrip("/")) or os.fspath(x)
    root = t.columns.node_objects[0]
    path = getattr(root, "path", None) if t.is_file else None
    return os.path.basename(shown_url(str(path)).rstrip("/")) if path else t.columns.type_name(0) or "a tree"


def _compared(a: Tree, b: Tree, names: tuple[str, str], rename: Any, values: bool, progress: bool) -> Diff:
    for t in (a, b):
        t.check_listed("compare")
    pairing = Pairing(Side(a), Side(b), rename)
    leaves = _LeafComparison(pairing)
    plain = PlainPairs(a, b, rename)
    if values:
        leaves.compare_values(progress)
    else:
        leaves.compare_structure()
    changes = leaves.changes() + _plain_changes(plain)
    if not leaves.pairs and not plain.pairs and changes and len(pairing.source.rows) and len(pairing.target.rows):
        raise _nothing_in_common(pairing)
    if leaves.renamed:
        old = {pair.source for pair in leaves.renamed}
        left = {pairing.source.name_of[row] for row in leaves.removed if row not in old}
        pairing.proposals = [
            proposal for proposal in pairing.proposals if left.issuperset(old for old, _ in proposal.pairs)
        ]
    notes = [*leaves.notes, *(f"rename: {rule!r} fits no name" for rule in pairing.idle), *_metadata_notes(a, b)]
    return Diff(changes, names, values, pairing, notes)


class _LeafComparison:
    """The leaves of both sides that belong together, and what became of each."""

    def __init__(self, pairing: Pairing) -> None:
        self.source, self.target = pairing.source, pairing.target
        leaves = LeafPairs(pairing)
        self.pairs = leaves.pairs
        self.removed, self.added, self.notes = leaves.removed, leaves.added, leaves.notes
        self.renamed: list[LeafPair] = []
        self.verdicts: list[Any] = []

    def compare_structure(self) -> None:
        for pair in self.pairs:
            spec, partner = self.source.spec(pair.source), self.target.spec(pair.target)
            unknown = None in (spec.shape, partner.shape)
            shape = "" if spec.shape == partner.shape else "unknown" if unknown else "reshaped"
            self.verdicts.append(_BY_STRUCTURE[shape, "cast" * (spec.dtype != partner.dtype)])

    def compare_values(self, progress: bool) -> None:
        from leafwise.inspect.value_comparison import compare_values

        pairs = [(self.source.array(pair.source), self.target.array(pair.target)) for pair in self.pairs]
        removed = [self.source.array(row) for row in self.removed]
        added = [self.target.array(row) for row in self.added]
        left = [*removed, *added] if removed and added else []
        total = sum(array.spec.nbytes for array in [*(array for array, _ in pairs), *left])
        with bar(total, "comparing", progress) as count:
            self.verdicts = list(compare_values(pairs, count))
            if pairs and all("unknown" in verdict.kinds for verdict in self.verdicts):
                raise _nothing_to_compare(self.source.text(self.pairs[0].source), self.verdicts[0].reason)
            if left:
                self._find_renamed(removed, added, count)
        _check_unchanged([array for pair in pairs for array in pair] + removed + added)

    def _find_renamed(self, removed: list[NamedArray], added: list[NamedArray], count: Callable[[int], None]) -> None:
        from leafwise.inspect.diff.renames import find_renamed
        from leafwise.inspect.value_comparison import Verdict, compare_values

        proven: dict[tuple[int, int], Verdict] = {}

        def prove(pairs: list[tuple[NamedArray, NamedArray]]) -> list[bool]:
            verdicts = compare_values(pairs, lambda count: None)
            proven.update({(old.row, new.row): verdict for (old, new), verdict in zip(pairs, verdicts, strict=True)})
            return [bool(verdict.kinds & {"same", "transposed"}) for verdict in verdicts]

        for old, new in find_renamed(removed, added, prove, count):
            self.renamed.append(LeafPair(old.row, new.row, frozenset({"renamed"})))
            self.verdicts.append(proven[old.row, new.row])
        self.pairs += self.renamed

    def changes(self) -> list[Change]:
        """In the order of the first tree, then what was added."""
        by_row: dict[int, Change] = {}
        for pair, (kinds, comparison, reason) in zip(self.pairs, self.verdicts, strict=True):
            path, other = self.source.text(pair.source), self.target.text(pair.target)
            every = kinds | pair.kinds if pair.kinds else kinds
            spec, partner = self.source.spec(pair.source), self.target.spec(pair.target)
            facts = spec.dtype, partner.dtype, spec.shape, partner.shape
            notes = (*pair.notes, reason) if reason else pair.notes
            by_row[pair.source] = Change(
                _in_order(every), path, other if other != path else None, *facts, comparison, None, notes
            )
        for row in self.removed:
            if row not in by_row:
                spec = self.source.spec(row)
                by_row[row] = Change(("removed",), self.source.text(row), dtype=spec.dtype, shape=spec.shape)
        changes = [by_row[row] for row in sorted(by_row)]
        renamed = {pair.target for pair in self.renamed}
        for row in self.added:
            if row not in renamed:
                spec = self.target.spec(row)
                change = Change(("added",), self.target.text(row), other_dtype=spec.dtype, other_shape=spec.shape)
                changes.append(change)
        return changes


# What shapes and dtypes alone say of two leaves.
_BY_STRUCTURE = {
    (shape, dtype): (frozenset(filter(None, (shape, dtype))) or frozenset({"same"}), None, "")
    for shape in ("", "unknown", "reshaped")
    for dtype in ("", "cast")
}


@cache
def _in_order(kinds: frozenset[str]) -> tuple[str, ...]:
    return in_order(kinds - {"same"} if len(kinds) > 1 else kinds)


def _plain_changes(plain: PlainPairs) -> list[Change]:
    """Plain values that differ; those that are the same too, so that they are counted."""
    changes = []
    for (path, value), (other_path, partner) in plain.pairs:
        kind = "same" if _same_parameters(path, value, partner) else compare_plain(value, partner)
        notes = (f"{type(value).__name__} objects do not say whether they are equal",) if kind == "unknown" else ()
        place = other_path if other_path != path else None
        changes.append(Change((kind,), path, place, values=(value, partner), notes=notes))
    changes += [Change(("removed",), path, values=(value, None)) for path, value in plain.removed]
    changes += [Change(("added",), path, values=(None, value)) for path, value in plain.added]
    return changes


def _same_parameters(path: str, value: Any, partner: Any) -> bool:
    """Whether the parameters of a group of an optimizer are named on one side, and numbered in order on the other, as
    its state dict does: numbers say nothing but which comes after which."""
    if not path.endswith(".params") or not (isinstance(value, list) and isinstance(partner, list)):
        return False
    names, numbers = (value, partner) if value and isinstance(value[0], str) else (partner, value)
    if len(names) != len(numbers) or not all(type(number) is int for number in numbers):
        return False
    if not all(isinstance(name, str) for name in names):
        return False
    if any(name.isdecimal() for name in names):
        return names == [str(number) for number in numbers]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def _check_unchanged(arrays: list[NamedArray]) -> None:
    """Raises where a file was written to while it was compared."""
    by_home: dict[Any, list[Any]] = {}
    for array in arrays:
        by_home.setdefault(array.home, []).append(array.value)
    for home, values in by_home.items():
        home.capability(Saving).check_unchanged(values)


def _nothing_to_compare(path: str, reason: str) -> WalkError:
    return WalkError(
        f"no leaf has values to compare; {path}: {reason}; lw.diff(…, values=False) compares names, shapes and dtypes"
    )


def _nothing_in_common(pairing: Pairing) -> QueryError:
    sides = []
    for side, tree_name in ((pairing.source, "a"), (pairing.target, "b")):
        names = ", ".join(side.names[:3]) + (", …" if len(side.names) > 3 else "")
        sides.append(f"{tree_name} has {names}")
    hint = RENAME_HINT
    if pairing.proposals:
        proposal = pairing.proposals[0]
        hint = f'{RENAME_HINT}, such as [(r"{proposal.pattern}", r"{proposal.replacement}")]'
    return QueryError(f"the two trees have no leaf in common: {'; '.join(sides)}; {hint}")


def _metadata_notes(a: Tree, b: Tree) -> list[str]:
    """Metadata of files is not a difference, but it is mentioned."""
    metadata, partner = (getattr(t.columns.node_objects[0], "metadata", None) if t.is_file else None for t in (a, b))
    if not isinstance(metadata, dict) or not isinstance(partner, dict) or metadata == partner:
        return []
    keys = [str(key) for key in {**metadata, **partner} if metadata.get(key) != partner.get(key)]
    listed = ", ".join(keys[:4]) + (", …" if len(keys) > 4 else "")
    return [f"metadata of the files differs: {listed}"]
