"""`lw.diff`: how two trees differ."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sharding import Team
from leafwise.core.pairing.leaf_pairs import LeafPairs, TieChange
from leafwise.core.pairing.plain_pairs import PlainPairs, compare_keys, compare_plain
from leafwise.core.pairing.proposals import Proposal
from leafwise.core.pairing.row_matching import Prefix
from leafwise.core.pairing.row_pairs import NamedArray, NamedArrays, Pairing, Side
from leafwise.core.parts import check_listed
from leafwise.core.path import shown_url
from leafwise.core.results.result import Table, rendered, whole_number
from leafwise.core.roles.role_table import KEY_DTYPE, other_implementations
from leafwise.core.tree import Tree
from leafwise.core.verbs import check_sendable, opened
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.fleet import each_checkpoint, is_pattern, refuse_pattern
from leafwise.core.work.progress import Count, bar
from leafwise.core.work.ranks import agree
from leafwise.errors import PathError, QueryError, WalkError
from leafwise.inspect.diff.changes import KINDS, Change
from leafwise.inspect.diff.leaf_changes import LeafChanges, LeafVerdict
from leafwise.inspect.ranks.teamwork import file_facts, team_of_trees

if TYPE_CHECKING:
    from leafwise.inspect.value_comparison import Verdict

RENAME_HINT = "pass rename= to map names of a to names of b"


class Diff(Table, Sequence[Change], kind="diff"):
    """The result of `lw.diff`: a `Change` for every leaf and plain value, also for equal ones. Prints as an outline.

    `same` is True if nothing differs. `d["2.weight"]` is the change of one leaf, `d.of("changed")` are all changes of a
    kind, and `counts` has the number of each kind. Changes are in the order of the first tree, followed by added
    leaves. `names` are the names of the two trees. `notes` lists what does not count as a difference, `proposals` has
    possible renames, and `applied` has the renames that `rename="auto"` applied.

    >>> import torch, leafwise as lw
    >>> d = lw.diff({"a": torch.zeros(2), "b": torch.ones(2)}, {"a": torch.zeros(2), "b": torch.zeros(2)})
    >>> d.same, d.counts
    (False, {'changed': 1, 'same': 1})
    """

    def __init__(
        self,
        leaves: LeafChanges,
        plain: list[Change],
        names: tuple[str, str],
        values: bool,
        pairing: Pairing,
        notes: list[str],
    ) -> None:
        self._leaves, self._plain = leaves, plain
        self.names, self.values, self.notes = names, values, notes
        self.prefixes: list[Prefix] = pairing.prefixes
        self.proposals: list[Proposal] = pairing.proposals
        self.applied: list[Proposal] = pairing.applied

    @cached_property
    def _changes(self) -> list[Change]:
        return self._leaves.changes() + self._plain

    @cached_property
    def _counts_by_kinds(self) -> Counter[tuple[str, ...]]:
        return self._leaves.count_kinds() + Counter(change.kinds for change in self._plain)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self._counts_by_kinds.keys() <= {("same",)}

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of changes of each kind. A change with several kinds counts for each of them."""
        counts: Counter[str] = Counter()
        for kinds, times in self._counts_by_kinds.items():
            counts.update(dict.fromkeys(kinds, times))
        return {kind: counts[kind] for kind in KINDS if kind in counts}

    def of(self, kind: str) -> list[Change]:
        """The changes of one kind, such as "changed" or "added".

        >>> import torch, leafwise as lw
        >>> d = lw.diff({"a": torch.zeros(2), "b": torch.ones(2)}, {"a": torch.zeros(2), "c": torch.zeros(3)})
        >>> [change.path for change in d.of("added")], [change.path for change in d.of("same")]
        (['c'], ['a'])
        """
        if kind not in KINDS:
            raise QueryError(f"{kind!r} is not a kind of change; the kinds are {', '.join(KINDS)}")
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
            raise PathError(f'"{key}" is not a leaf or plain value of either tree')
        return self._by_path[key]

    def __contains__(self, key: object) -> bool:
        return key in self._by_path if isinstance(key, str) else key in self._changes

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._by_path)

    def __iter__(self) -> Iterator[Change]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._leaves) + len(self._plain)

    def text(self, *, width: int | None = None, full: bool = False, depth: int | None = None) -> str:
        """The outline as plain text, `width` columns wide. `depth` limits the levels; `full=True` shows every leaf,
        including unchanged ones."""
        return rendered(self, width, full=full, depth=whole_number(depth, "depth", 0))


@overload
def diff(
    a: Any, b: Any, *, rename: Any = None, values: bool = True, progress: bool = False, executor: None = None
) -> Diff: ...
@overload
def diff(a: Any, b: Any, *, rename: Any = None, values: bool = True, progress: bool = False, executor: Any) -> Any: ...
def diff(
    a: Any, b: Any, *, rename: Any = None, values: bool = True, progress: bool = False, executor: Any = None
) -> Any:
    """Compares two models or checkpoints, leaf by leaf.

    `a` and `b` are anything that `lw.tree` takes. `values=False` compares only names, shapes and dtypes, which needs
    only the headers of files. `progress=True` shows a progress bar.

    `rename` maps names of `a` to names of `b`: a mapping of names or prefixes, a list of `(pattern, replacement)`, a
    function, or `"auto"`, which applies the renames that are certain. Well-known prefixes, such as `module.`, do not
    count as differences.

    Each leaf gets one or several kinds of change:

    - `same`: bitwise equal
    - `changed`: with the relative L2 norm of the difference, the cosine similarity, the largest difference and the
      share of elements that changed
    - `cast`: equal except for the dtype
    - `transposed`, `reshaped`, `tied`, `untied`, `added`, `removed`
    - `renamed`: the same values under another name
    - `unknown`: not compared, because there are no values, or because the objects cannot be compared

    A tied leaf is compared once. Files are read in chunks. If leaves are sharded over processes, every rank must call
    it, and gets the differences of the whole models.

    With `executor`, other processes read the files, and `b` may be a pattern, as for `lw.stats`: the result for a
    pattern is a `Fleet`, with a diff of `a` and each checkpoint that matches.

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
    if executor is None:
        return diff_of(a, b, rename, values, progress)
    refuse_pattern(a, "diff(a, b)")
    if not is_pattern(b):
        return diff_of(a, b, rename, values, progress, Workers(executor))
    with opened(a, "diff") as first:
        check_sendable(first, "diff")
        name = a if isinstance(a, str | os.PathLike) else first

        def against(path: str, workers: Workers) -> Diff:
            return diff_of(name, path, rename, values, False, workers)

        return each_checkpoint(b, "diff", executor, against, progress)


def diff_of(
    a: Any, b: Any, rename: Any = None, values: bool = True, progress: bool = False, workers: Workers | None = None
) -> Diff:
    """How two models or checkpoints differ, compared by workers if there are any."""
    with opened(a, "diff") as first, opened(b, "diff") as second:
        if workers is not None:
            check_sendable(first, "diff")
            check_sendable(second, "diff")
        names = _tree_name(a, first), _tree_name(b, second)
        return _compared(first, second, names, rename, values, progress, workers)


def _tree_name(x: Any, t: Tree) -> str:
    """The name of a tree: that of its file or its type, with the path of a part."""
    name = _root_name(x, t)
    return f"{name}: {t.path}" if t.root else name


def _root_name(x: Any, t: Tree) -> str:
    if isinstance(x, str | os.PathLike):
        return os.path.basename(shown_url(os.fspath(x)).rstrip("/")) or os.fspath(x)
    root = t.columns.node_objects[0]
    path = getattr(root, "path", None) if t.is_file else None
    return os.path.basename(shown_url(str(path)).rstrip("/")) if path else t.columns.type_name(0) or "a tree"


def _compared(
    a: Tree, b: Tree, names: tuple[str, str], rename: Any, values: bool, progress: bool, workers: Workers | None
) -> Diff:
    team = team_of_trees(a, b) if values else None
    for t in (a, b):
        check_listed(t, "compare")
    pairing = Pairing(Side(a), Side(b), rename)
    leaves = _LeafComparison(pairing, workers, team)
    plain = PlainPairs(a, b, rename)
    if values:
        leaves.compare_values(progress)
        leaves.compare_keys()
    else:
        leaves.compare_structure()
    leaf_changes, plain_changes = leaves.changes(), _plain_changes(plain) + (_key_changes(plain) if values else [])
    has_changes = bool(len(leaf_changes) or plain_changes)
    if not leaves.verdicts and not plain.pairs and has_changes and len(a.rows) and len(b.rows):
        raise _nothing_in_common(pairing)
    if leaves.renamed:
        old = leaves.renamed.keys()
        left = {pairing.source.name_of[row] for row in leaves.removed if row not in old}
        pairing.proposals = [
            proposal for proposal in pairing.proposals if left.issuperset(old for old, _ in proposal.pairs)
        ]
    notes = [*leaves.notes, *(f"rename: {rule!r} matches no name" for rule in pairing.idle), *_metadata_notes(a, b)]
    return Diff(leaf_changes, plain_changes, names, values, pairing, notes)


class _LeafComparison:
    """The pairs of leaves of both sides, and how each pair compares. `workers` has the workers that read the values, if
    both sides are files; `team` has the ranks over which leaves are sharded. Without both, this process compares."""

    def __init__(self, pairing: Pairing, workers: Workers | None, team: Team | None) -> None:
        self._workers, self._team = workers, team
        self.source, self.target = pairing.source, pairing.target
        leaves = LeafPairs(pairing)
        self.sources, self.targets, self.tie_changes = leaves.sources, leaves.targets, leaves.tie_changes
        self.removed, self.added, self.notes = leaves.removed, leaves.added, leaves.notes
        self.renamed: dict[int, int] = {}  # rows of removed leaves, and of the added leaves with the same values
        self.verdicts: Sequence[LeafVerdict] = []

    def compare_structure(self) -> None:
        verdicts: list[LeafVerdict] = []
        for spec, partner in zip(self.source.specs(self.sources), self.target.specs(self.targets), strict=True):
            unknown = None in (spec.shape, partner.shape)
            shape = "" if spec.shape == partner.shape else "unknown" if unknown else "reshaped"
            verdicts.append(_BY_STRUCTURE[shape, "cast" * (spec.dtype != partner.dtype)])
        self.verdicts = verdicts

    def compare_values(self, progress: bool) -> None:
        firsts, seconds = self.source.arrays(self.sources), self.target.arrays(self.targets)
        removed, added = self.source.arrays(self.removed), self.target.arrays(self.added)
        to_read = [firsts, removed, added] if removed and added else [firsts]
        total = sum(spec.nbytes for arrays in to_read for spec in arrays.specs)
        if self._team is not None:
            from leafwise.inspect.ranks.team_comparing import pair_facts, side_facts

            files = file_facts(self.source.tree, self.target.tree)
            facts = [*pair_facts(firsts, seconds), *side_facts(removed), *side_facts(added), *files]
            agree(self._team, "diff", facts)
        with bar(total, "comparing", progress) as count:
            verdicts = self._compared(firsts, seconds, count)
            self.verdicts = [*verdicts]
            if verdicts and all("unknown" in verdict.kinds for verdict in verdicts):
                raise WalkError(
                    f"no leaf has values to compare; {self.source.text(self.sources[0])}: {verdicts[0].reason}; "
                    "lw.diff(…, values=False) compares names, shapes and dtypes"
                )
            if removed and added:
                self._find_renamed(list(removed), list(added), count)
        _check_unchanged([firsts, seconds, removed, added])

    def compare_keys(self) -> None:
        """Marks PRNG keys of different implementations as changed, even if their integers are the same."""
        pairs = [*zip(self.sources, self.targets, strict=True), *self.renamed.items()]
        specs = self.source.specs([row for row, _ in pairs])
        if KEY_DTYPE not in {spec.dtype for spec in {id(spec): spec for spec in specs}.values()}:
            return
        for number, ((row, other), spec) in enumerate(zip(pairs, specs, strict=True)):
            if spec.dtype != KEY_DTYPE:
                continue
            kinds = other_implementations(self.source.columns, row, self.target.columns, other)
            if kinds is not None:
                tied = self.tie_changes.get(number, TieChange(frozenset()))
                note = f"in a it is a key of {kinds[0]}, in b of {kinds[1]}, which gives other random numbers"
                self.tie_changes[number] = TieChange(tied.kinds | {"changed"}, (*tied.notes, note))

    def _compared(self, firsts: NamedArrays, seconds: NamedArrays, count: Count) -> "list[Verdict]":
        from leafwise.inspect.value_comparison import compare_arrays

        if self._team is None:
            return compare_arrays(firsts, seconds, count, self._workers)
        from leafwise.inspect.ranks.team_comparing import compare_by_team

        return compare_by_team(self._team, firsts, seconds, count)

    def _find_renamed(self, removed: list[NamedArray], added: list[NamedArray], count: Count) -> None:
        from leafwise.inspect.diff.renames import find_renamed

        proven: dict[tuple[int, int], Verdict] = {}

        def prove(pairs: list[tuple[NamedArray, NamedArray]]) -> list[bool]:
            firsts, seconds = (NamedArrays.of([pair[side] for pair in pairs]) for side in (0, 1))
            verdicts = self._compared(firsts, seconds, lambda count: None)
            proven.update({(old.row, new.row): verdict for (old, new), verdict in zip(pairs, verdicts, strict=True)})
            return [bool(verdict.kinds & {"same", "transposed"}) for verdict in verdicts]

        verdicts = [*self.verdicts]
        for old, new in find_renamed(removed, added, prove, count, self._workers, self._team):
            self.renamed[old.row] = new.row
            self.tie_changes[len(verdicts)] = TieChange(frozenset({"renamed"}))
            verdicts.append(proven[old.row, new.row])
        self.verdicts = verdicts

    def changes(self) -> LeafChanges:
        rows: tuple[Sequence[int], Sequence[int]] = self.sources, self.targets
        if self.renamed:
            rows = [*self.sources, *self.renamed], [*self.targets, *self.renamed.values()]
        specs = self.source.specs(rows[0]), self.target.specs(rows[1])
        removed = [row for row in self.removed if row not in self.renamed]
        new = set(self.renamed.values())
        added = [row for row in self.added if row not in new]
        sides = self.source, self.target
        return LeafChanges(sides, rows, specs, self.verdicts, self.tie_changes, removed, added)


# The verdict on two leaves by shapes and dtypes alone.
_BY_STRUCTURE = {
    (shape, dtype): (frozenset(filter(None, (shape, dtype))) or frozenset({"same"}), None, "")
    for shape in ("", "unknown", "reshaped")
    for dtype in ("", "cast")
}


def _plain_changes(plain: PlainPairs) -> list[Change]:
    """The changes of plain values, including unchanged ones, so that they are counted."""
    changes = []
    for (path, value), (other_path, partner) in plain.pairs:
        kind = "same" if _same_parameters(path, value, partner) else compare_plain(value, partner)
        notes = (f"{type(value).__name__} objects cannot be compared",) if kind == "unknown" else ()
        place = other_path if other_path != path else None
        changes.append(Change((kind,), path, place, values=(value, partner), notes=notes))
    changes += [Change(("removed",), path, values=(value, None)) for path, value in plain.removed]
    changes += [Change(("added",), path, values=(None, value)) for path, value in plain.added]
    return changes


def _key_changes(plain: PlainPairs) -> list[Change]:
    """The changes of keys that have the same name in both trees; not the unchanged ones, which are part of paths."""
    kinds = [compare_keys(key, partner) for _, key, partner in plain.keys]
    changes = [
        Change((kind,), path, values=(key, partner))
        for kind, (path, key, partner) in zip(kinds, plain.keys, strict=True)
    ]
    return [change for change in changes if change.kind != "same"]


def _same_parameters(path: str, value: Any, partner: Any) -> bool:
    """Whether the parameters of an optimizer group are named on one side and numbered consecutively on the other, as in
    its state dict, where the numbers only give the order."""
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


def _check_unchanged(compared: list[NamedArrays]) -> None:
    """Raises if a file was written to while it was compared."""
    for home in {home for arrays in compared for home in arrays.homes}:
        values = [
            value
            for arrays in compared
            for value_home, value in zip(arrays.homes, arrays.values, strict=True)
            if value_home is home
        ]
        home.capability(Saving).check_unchanged(values)


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
    """A note if the metadata of two files differs, which does not count as a difference."""
    metadata, partner = (getattr(t.columns.node_objects[0], "metadata", None) if t.is_file else None for t in (a, b))
    if not isinstance(metadata, dict) or not isinstance(partner, dict) or metadata == partner:
        return []
    keys = [str(key) for key in {**metadata, **partner} if metadata.get(key) != partner.get(key)]
    listed = ", ".join(keys[:4]) + (", …" if len(keys) > 4 else "")
    return [f"the metadata of the files differs: {listed}"]
