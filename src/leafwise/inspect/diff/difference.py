"""`lw.diff`: what two trees have in common, and what not."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, overload

from leafwise.core.bars import bar
from leafwise.core.doc import Shown
from leafwise.core.match import Prefix
from leafwise.core.path import shown_url
from leafwise.core.proposals import Proposal
from leafwise.core.tree import Tree, tree
from leafwise.errors import Error, PathError, QueryError, WalkError
from leafwise.inspect.diff.changes import KINDS, Change, in_order
from leafwise.inspect.pairing import Held, Link, Pairing, Side, nothing_in_common, plain_kind


class Diff(Shown, Sequence[Change], kind="diff"):
    """What became of every leaf, in the order of the first tree, and then what was added; see `lw.diff`.

    `same` says whether nothing differs. `d["2.weight"]` is the change of a leaf, `d.of("changed")` all changes of a
    kind, `counts` how many there are of each. `names` are what both trees are called. `notes` tell what is no
    difference, `proposals` are renames that might be meant.
    """

    def __init__(self, changes: list[Change], names: tuple[str, str], values: bool, pairing: Pairing) -> None:
        self._changes, self.names, self.values = changes, names, values
        self.notes: list[str] = list(pairing.notes)
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
        found = Counter(kind for change in self._changes for kind in change.kinds)
        return {kind: found[kind] for kind in KINDS if kind in found}

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
        others = {change.other: change for change in self._changes if change.other is not None}
        return {**others, **{change.path: change for change in self._changes}}

    @overload
    def __getitem__(self, which: int) -> Change: ...
    @overload
    def __getitem__(self, which: slice) -> list[Change]: ...
    @overload
    def __getitem__(self, which: str) -> Change: ...
    def __getitem__(self, which: int | slice | str) -> Change | list[Change]:
        if not isinstance(which, str):
            return self._changes[which]
        if which not in self._by_path:
            raise PathError(f'nothing was compared under "{which}"')
        return self._by_path[which]

    def __contains__(self, which: object) -> bool:
        return which in self._by_path if isinstance(which, str) else which in self._changes

    def __iter__(self) -> Iterator[Change]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def text(self, *, depth: int | None = None, full: bool = False) -> str:
        """The outline as plain text. `depth` says how many steps of a path get lines of their own; `full` shows every
        leaf, also those that are the same."""
        if depth is not None and (type(depth) is not int or depth < 0):
            raise QueryError(f"a depth is a whole number from 0 on, not {depth!r}")
        return self._text(depth=depth, full=full)


def diff(a: Any, b: Any, *, rename: Any = None, values: bool = True, progress: bool = False) -> Diff:
    """What differs between two models, files, folders, URLs, containers or Trees, leaf by leaf.

    First by structure, from headers: leaves `added`, `removed`, `reshaped`, `tied`, `untied`. Then by values, a piece
    at a time: `same` in every bit; `changed`, with the relative L2 norm of the difference, the cosine, the largest
    difference and the share of elements that changed; `cast`, equal but for the dtype; `transposed`; and `renamed`, the
    same values under another name. `unknown` are leaves without values, and objects that do not say whether they are
    equal. `values=False` leaves it at the structure.

    `rename` gives names of `a` those that they have in `b`: a mapping of names or of their fronts, a list of
    `(pattern, replacement)`, a function, or `"auto"`, which takes what is proposed and certain. Well-known prefixes,
    as of a wrapper, are no difference. A shared leaf is compared once.

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
    trees: list[Tree] = []
    try:
        trees += [tree(a)]
        trees += [tree(b)]  # one by one, so that the first is closed where the second is none
        return _compared(trees[0], trees[1], (_called(a, trees[0]), _called(b, trees[1])), rename, values, progress)
    except ModuleNotFoundError as error:
        raise Error(f"lw.diff needs {error.name}: pip install {error.name}") from error
    finally:
        for found, given in zip(trees, (a, b), strict=False):
            if found is not given and found.is_file:
                found.close()


def _called(given: Any, t: Tree) -> str:
    """What a tree is called: the name of its file, or what it is."""
    if isinstance(given, str | os.PathLike):
        return os.path.basename(shown_url(os.fspath(given)).rstrip("/")) or os.fspath(given)
    root = t.columns.node_objects[0]
    path = getattr(root, "path", None) if t.is_file else None
    return os.path.basename(shown_url(str(path)).rstrip("/")) if path else t.columns.type_name(0) or "a tree"


def _compared(a: Tree, b: Tree, names: tuple[str, str], rename: Any, values: bool, progress: bool) -> Diff:
    for one in (a, b):
        one.check_listed("compare")
    pairing = Pairing(a, b, rename)
    found = _Changes(pairing)
    if values:
        found.compare_values(progress)
    else:
        found.compare_structure()
    plain = pairing.scalars
    changes = found.changes() + _plain_changes(pairing)
    if not found.links and not plain.pairs and changes and len(pairing.one.rows) and len(pairing.other.rows):
        raise nothing_in_common(pairing)
    if found.renamed:
        old = {link.one for link in found.renamed}
        left = {pairing.one.name_of[row] for row in pairing.removed if row not in old}
        pairing.proposals = [one for one in pairing.proposals if left.issuperset(old for old, _ in one.pairs)]
    _note_metadata(pairing)
    return Diff(changes, names, values, pairing)


class _Changes:
    """The leaves of both sides that belong together, and what is found of each."""

    def __init__(self, pairing: Pairing) -> None:
        self.pairing = pairing
        self.one, self.other = pairing.one, pairing.other
        self.links: list[Link] = list(pairing.links)
        self.renamed: list[Link] = []
        self.verdicts: list[Any] = []

    def _held(self, link: Link) -> tuple[Held, Held]:
        return self.one.held(link.one), self.other.held(link.other)

    def compare_structure(self) -> None:
        for link in self.links:
            spec, other = self.one.spec(link.one), self.other.spec(link.other)
            shape = "" if spec.shape == other.shape else "unknown" if None in (spec.shape, other.shape) else "reshaped"
            self.verdicts.append(_SEEN[shape, "cast" * (spec.dtype != other.dtype)])

    def compare_values(self, progress: bool) -> None:
        from leafwise.inspect.value_comparison import compare_values

        pairs = [self._held(link) for link in self.links]
        ones = [self.one.held(row) for row in self.pairing.removed]
        others = [self.other.held(row) for row in self.pairing.added]
        left = [*ones, *others] if ones and others else []
        total = sum(one.spec.nbytes for one in [*(one for one, _ in pairs), *left])
        with bar(total, "comparing", progress) as count:
            self.verdicts = list(compare_values(pairs, count))
            if pairs and all("unknown" in verdict.kinds for verdict in self.verdicts):
                raise _nothing_to_compare(self.one, self.links[0], self.verdicts[0].reason)
            if left:
                self._find_renamed(ones, others, count)
        _unchanged([held for pair in pairs for held in pair] + ones + others)

    def _find_renamed(self, ones: list[Held], others: list[Held], count: Callable[[int], None]) -> None:
        from leafwise.inspect.diff.renames import find_renamed
        from leafwise.inspect.value_comparison import Verdict, compare_values

        proven: dict[tuple[int, int], Verdict] = {}

        def prove(pairs: list[tuple[Held, Held]]) -> list[bool]:
            found = compare_values(pairs, lambda count: None)
            proven.update({(one.row, other.row): verdict for (one, other), verdict in zip(pairs, found, strict=True)})
            return [bool(verdict.kinds & {"same", "transposed"}) for verdict in found]

        for one, other in find_renamed(ones, others, prove, count):
            self.renamed.append(Link(one.row, other.row, frozenset({"renamed"})))
            self.verdicts.append(proven[one.row, other.row])
        self.links += self.renamed

    def changes(self) -> list[Change]:
        """In the order of the first tree, then what was added."""
        found: dict[int, Change] = {}
        for link, (kinds, comparison, reason) in zip(self.links, self.verdicts, strict=True):
            path, other = self.one.text(link.one), self.other.text(link.other)
            every = kinds | link.kinds if link.kinds else kinds
            spec, partner = self.one.spec(link.one), self.other.spec(link.other)
            facts = spec.dtype, partner.dtype, spec.shape, partner.shape
            notes = (*link.notes, reason) if reason else link.notes
            found[link.one] = Change(
                _told_by(every), path, other if other != path else None, *facts, comparison, None, notes
            )
        taken = {link.other for link in self.renamed}
        for row in self.pairing.removed:
            if row not in found:
                spec = self.one.spec(row)
                found[row] = Change(("removed",), self.one.text(row), dtype=spec.dtype, shape=spec.shape)
        changes = [found[row] for row in sorted(found)]
        for row in self.pairing.added:
            if row not in taken:
                spec = self.other.spec(row)
                change = Change(("added",), self.other.text(row), other_dtype=spec.dtype, other_shape=spec.shape)
                changes.append(change)
        return changes


# What shapes and dtypes alone say of two leaves.
_SEEN = {
    (shape, dtype): (frozenset(filter(None, (shape, dtype))) or frozenset({"same"}), None, "")
    for shape in ("", "unknown", "reshaped")
    for dtype in ("", "cast")
}


@cache
def _told_by(kinds: frozenset[str]) -> tuple[str, ...]:
    return in_order(kinds - {"same"} if len(kinds) > 1 else kinds)


def _plain_changes(pairing: Pairing) -> list[Change]:
    """Plain values that differ; those that are the same too, so that they are counted."""
    changes = []
    for (path, one), (other_path, other) in pairing.scalars.pairs:
        kind = "same" if _same_parameters(path, one, other) else plain_kind(one, other)
        notes = (f"{type(one).__name__} objects do not say whether they are equal",) if kind == "unknown" else ()
        place = other_path if other_path != path else None
        changes.append(Change((kind,), path, place, values=(one, other), notes=notes))
    changes += [Change(("removed",), path, values=(value, None)) for path, value in pairing.scalars.removed]
    changes += [Change(("added",), path, values=(None, value)) for path, value in pairing.scalars.added]
    return changes


def _same_parameters(path: str, one: Any, other: Any) -> bool:
    """Whether the parameters of a group of an optimizer are named on one side, and numbered in order on the other, as
    its state dict does: numbers say nothing but which comes after which."""
    if not path.endswith(".params") or not (isinstance(one, list) and isinstance(other, list)):
        return False
    names, numbers = (one, other) if one and isinstance(one[0], str) else (other, one)
    if len(names) != len(numbers) or not all(type(number) is int for number in numbers):
        return False
    if not all(isinstance(name, str) for name in names):
        return False
    if any(name.isdecimal() for name in names):
        return names == [str(number) for number in numbers]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def _unchanged(held: list[Held]) -> None:
    by_home: dict[Any, list[Any]] = {}
    for one in held:
        by_home.setdefault(one.home, []).append(one.value)
    for home, values in by_home.items():
        home.unchanged(values)


def _nothing_to_compare(one: Side, link: Link, reason: str) -> WalkError:
    path = one.text(link.one)
    return WalkError(
        f"no leaf has values to compare; {path}: {reason}; lw.diff(…, values=False) compares names, shapes and dtypes"
    )


def _note_metadata(pairing: Pairing) -> None:
    """Metadata of files is not a difference, but it is mentioned."""
    ones, others = (
        getattr(side.columns.node_objects[0], "metadata", None) if side.tree.is_file else None
        for side in (pairing.one, pairing.other)
    )
    if isinstance(ones, dict) and isinstance(others, dict) and ones != others:
        keys = [str(key) for key in {**ones, **others} if ones.get(key) != others.get(key)]
        some = ", ".join(keys[:4]) + (", …" if len(keys) > 4 else "")
        pairing.notes.append(f"metadata of the files differs: {some}")
