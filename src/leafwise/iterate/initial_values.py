"""`lw.initialize`: initial values by rule and role, each leaf drawn from its own path."""

import logging
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

from leafwise.core.capabilities.filling import Draw, Filling
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.columns import Columns
from leafwise.core.leaf import Leaf
from leafwise.core.path import escape, listed
from leafwise.core.progress import bar
from leafwise.core.rebuild import recomputed, with_leaves
from leafwise.core.tree import Tree, tree
from leafwise.errors import Error, RuleError
from leafwise.iterate.arrays import tied_names
from leafwise.iterate.distributions import Key
from leafwise.iterate.initializers import (
    Defaults,
    Drawn,
    InitialiserError,
    Orthogonal,
    Padded,
    Site,
    check_fits,
    check_options,
    checked_array,
    drawn_by,
)
from leafwise.iterate.leaf_filler import LeafFiller, key_of
from leafwise.iterate.rules import Cascade, Rule, checked_rules, matches_nothing

_log = logging.getLogger("leafwise")


def initialize(model: Any, rules: Iterable[Rule] | None = None, seed: int = 0, *, progress: bool = False) -> Any:
    """Gives every parameter an initial value, by rule; returns the model.

    `Rule(where, init="kaiming_normal")` names an initialiser and its options; `init=None` keeps what is there, and a
    callable is given the leaf and its owner's other leaves by name, and returns an array, or options such as
    `{"init": "normal", "std": 0.02}`. Callables come last, when other leaves have their values. Later rules override
    earlier ones; before all of them, each layer of PyTorch has the distribution of its own `reset_parameters`. A rule
    is for the parameters that match, and for buffers if it matches nothing else. A parameter for which no rule says
    anything is an error.

    Element i of a leaf is a function of seed, path and i: adding a layer changes no other, and the same paths get the
    same values in every framework and on every device. A model on meta gets memory; a lazy layer is filled when its
    shape is known.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> net = lw.initialize(net, [lw.Rule("**.weight", init="normal", std=0.02)], seed=1)
    >>> [round(value, 4) for value in net[0].weight[0].tolist()]
    [0.0063, 0.0138, -0.0113, -0.0365]
    """
    try:
        number = index(seed)
    except TypeError as error:
        raise RuleError(f"a seed is a whole number, not {seed!r}") from error
    return _Initialising(tree(model), checked_rules(rules), number, progress).result()


class _Job(NamedTuple):
    """A leaf and what goes into it, by what holds for the name at `row`."""

    leaf: int
    row: int
    key: str
    options: dict[str, Any]
    rule: str
    path: str


class _ForParameters(Rule):
    """A rule as somebody wrote it: for the parameters that match; for buffers only if it matches nothing else, since
    tables and statistics are not what `**` is meant for."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule.where, wins=rule.wins, **rule.options)
        self._rule = rule

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        found = list(self._rule.places(tree, rows))
        columns = tree.columns
        parameters = [one for one in found if columns.leaf_kind(columns.ties.get(one[0], one[0])) == "parameter"]
        return parameters or found

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        return self._rule.at(place, before)

    def __repr__(self) -> str:
        return repr(self._rule)


def declared(t: Tree, rules: Any) -> Iterator[tuple[int, str, Drawn]]:
    """What rules say of leaves, each with the rule that says so: for `True`, the layers' own, else what was given. Of
    what a callable would make nobody knows."""
    before, given = (
        ([Defaults()], []) if rules is True else ([], checked_rules([rules] if isinstance(rules, Rule) else rules))
    )
    columns = t.columns
    names, cascade = _ordered(t, before, given)
    for leaf, rows in names.items():
        held = cascade.holds(rows)
        init = held.options.get("init")
        if init is not None and not callable(init) and columns.facts([leaf])[0].spec.shape is not None:
            row, rule = cascade.deciding(rows, held), cascade.rule_of(held, "init")
            job = _Job(leaf, row, "", held.options, rule, columns.row_text(row))
            yield leaf, rule, _drawn(columns, job)


def _ordered(t: Tree, before: Sequence[Rule], rules: list[Rule]) -> tuple[dict[int, list[int]], Cascade]:
    """The names of each leaf that may get initial values, and what rules say of them; each must match some."""
    columns = t.columns
    leaves = [columns.ties.get(row, row) for row in t.first_rows]
    tied = tied_names(t)
    names = {leaf: tied.get(leaf, [leaf]) for leaf in leaves if columns.leaf_kind(leaf) != "state"}
    rows = [row for its in names.values() for row in its]
    cascade = Cascade(t, [*before, *map(_ForParameters, rules)], rows, {}, "init")
    for rule, matched in zip(rules, cascade.matched[len(before) :], strict=True):
        if not matched:
            raise matches_nothing(t, rule, "parameter or buffer")
    return names, cascade


class _Initialising:
    def __init__(self, t: Tree, rules: list[Rule], seed: int, progress: bool) -> None:
        self.tree, self.seed, self.progress = t, seed, progress
        self.columns: Columns = t.columns
        for rule in rules:
            if "init" in rule.options:
                _explained(repr(rule), partial(check_options, rule.options))
        self.names, self.cascade = _ordered(t, [Defaults()], rules)
        self.jobs = self._planned()
        self._check_memory()

    def _planned(self) -> list[_Job]:
        columns = self.columns
        jobs, uncovered = [], []
        for leaf, rows in self.names.items():
            held = self.cascade.holds(rows)
            if "init" in held.options:
                row, rule = self.cascade.deciding(rows, held), self.cascade.rule_of(held, "init")
                if held.options["init"] is not None:
                    jobs.append(_Job(leaf, row, key_of(columns, leaf), held.options, rule, columns.row_text(row)))
                elif columns.facts([leaf])[0].spec.device == "meta":
                    name = columns.row_text(rows[0])
                    raise RuleError(f"{name} by {rule}: init=None keeps what is there, and on meta there is nothing")
            elif held.options:
                rule = self.cascade.rule_of(held, next(iter(held.options)))
                name = columns.row_text(rows[0])
                raise RuleError(f"{name}: {rule} names no initialiser, and no rule before it does")
            elif columns.leaf_kind(leaf) == "parameter":
                uncovered.append(rows[0])
        if uncovered:
            raise self._uncovered(uncovered)
        return jobs

    def _uncovered(self, rows: list[int]) -> RuleError:
        columns = self.columns
        names = [columns.name(row) for row in rows]
        some = listed([f"{name.path} ({name.owner}, {name.role or 'no role'})" for name in names])
        init = {"norm.scale": "ones", "norm.bias": "zeros", "bias": "zeros"}.get(names[0].role or "")
        said = f'init="{init}"' if init else 'init="normal", std=0.02'
        return RuleError(
            f"no rule says how to initialise {some}; nothing was changed; add "
            f'Rule("{names[0].path}", {said}), or init=None to keep what is there'
        )

    def _check_memory(self) -> None:
        """Raises where one leaf would be written over another that lies in the same memory."""
        filled = {job.leaf for job in self.jobs}
        for members, _ in self.columns.overlaps:
            met = [self.columns.row_text(leaf) for leaf in members if leaf in filled]
            if len(met) > 1:
                raise RuleError(
                    f"{' and '.join(met)} lie in the same memory and are not tied; nothing was changed; "
                    f'lw.tie(model, "{met[1]}", to="{met[0]}") first'
                )

    # -- doing it ----------------------------------------------------------------------------------------

    def result(self) -> Any:
        """Everything that can be known to be wrong is, before the first leaf is filled. What callables make of other
        leaves comes last, when those have their values."""
        columns = self.columns
        facts = columns.facts([job.leaf for job in self.jobs])
        pairs = zip(self.jobs, facts, strict=True)
        lazy: dict[int, list[_Job]] = {columns.row_nodes[job.leaf]: [] for job, one in pairs if one.spec.shape is None}
        now = [job for job in self.jobs if columns.row_nodes[job.leaf] not in lazy]
        named = [job for job in now if not callable(job.options["init"])]
        drawn = {job.leaf: _drawn(columns, job) for job in named}
        targets = {job.leaf: self._target(job) for job in now}
        total = sum(facts.spec.size for facts in columns.facts(list(targets)))
        root = columns.node_objects[self.tree.root]
        with bar(total, "initialising", self.progress) as count:
            filler = _Filler(columns, self.seed, targets, count)
            if new := filler.fill([(job, drawn[job.leaf]) for job in named]):
                root = with_leaves(self.tree, new)
            for job in now:
                if job.leaf not in drawn and (one := filler.fill([(job, _drawn(columns, job))])):
                    new |= one
                    # What cannot change is made anew with all that is new; else the others are in their places.
                    in_place = columns.home(one[job.leaf]).in_place
                    root = with_leaves(self.tree, one if in_place else new)
        for job in self.jobs:
            if columns.row_nodes[job.leaf] in lazy:
                lazy[columns.row_nodes[job.leaf]].append(job)
        for node, jobs in lazy.items():
            owner = columns.node_objects[node]
            later = _Later(self.seed, jobs, [columns.row_names[job.leaf] for job in jobs])
            columns.home(owner).capability(Filling).when_shaped(owner, later)
        self._recompute()
        _log.info("initialised %s of %s leaves; the others when their shape is known", len(now), len(self.jobs))
        return root

    def _target(self, job: _Job) -> tuple[Any, bool]:
        """The array to fill, and whether it takes the place of what is there."""
        columns = self.columns
        value = columns.current(job.leaf)
        home = columns.home(value)
        spec = home.spec(value)
        if not home.in_place:
            return value, True
        if spec.device == "meta":
            try:
                return home.capability(Rebuilding).allocate(value, spec.shape or ()), True
            except Error as error:
                raise RuleError(f"cannot initialise {job.path}: {error}; nothing was changed") from error
        if reason := home.capability(Filling).cannot_fill(value):
            raise RuleError(f"cannot initialise {job.path} by {job.rule}: {reason}; nothing was changed")
        return value, False

    def _recompute(self) -> None:
        """Buffers that no rule speaks of, and that have no values yet."""
        rows = [row for row in self.tree.rows if self.columns.row_kinds[row] in ("buffer", "transient")]
        values, left = recomputed(self.columns, rows)
        for row, value in values.items():
            owner = self.columns.node_objects[self.columns.row_nodes[row]]
            self.columns.home(owner).capability(Rebuilding).replace(owner, {self.columns.row_names[row]: value})
        if left:
            names = listed([self.columns.row_text(row) for row in left])
            warnings.warn(
                escape(
                    f"no rule says how to initialise the buffers {names}, and leafwise does not know how to compute "
                    "them: still on meta; make them as the model does when it is built"
                ),
                stacklevel=4,
            )


class _Filler:
    """Fills leaves, each into its target."""

    def __init__(
        self, columns: Columns, seed: int, targets: dict[int, tuple[Any, bool]], count: Callable[[int], None]
    ) -> None:
        self._columns, self._seed, self._targets, self._count = columns, seed, targets, count

    def fill(self, jobs: list[tuple[_Job, Any]]) -> dict[int, Any]:
        """Those that take the place of a leaf."""
        new = {}
        for job, drawn in jobs:
            value, takes_place = self._targets[job.leaf]
            axes = self._columns.row_role(job.leaf)[1]
            key = Key.of(self._seed, job.key)
            made = LeafFiller(self._columns.home(value), value, axes, key, self._count).fill(drawn)
            if takes_place:
                new[job.leaf] = made
        return new


class _Later:
    """Initialises leaves of a layer once their shapes are known. A class, so that models can be pickled meanwhile."""

    def __init__(self, seed: int, jobs: list[_Job], names: list[str]) -> None:
        self.seed, self.jobs, self.names = seed, jobs, names

    def __call__(self, owner: Any) -> None:
        columns = tree(owner).columns
        rows = {columns.row_names[row]: row for row in columns.own_rows(0)}
        jobs = [job._replace(leaf=rows[name], row=rows[name]) for job, name in zip(self.jobs, self.names, strict=True)]
        targets = {job.leaf: (columns.current(job.leaf), False) for job in jobs}
        filler = _Filler(columns, self.seed, targets, lambda count: None)
        for job in sorted(jobs, key=lambda job: callable(job.options["init"])):
            filler.fill([(job, _drawn(columns, job))])


class _Others(Mapping[str, Leaf]):
    """The other leaves of the owner of a leaf, by name; looked up when somebody asks."""

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns, self._row = columns, row

    def _rows(self) -> dict[str, int]:
        columns = self._columns
        rows = columns.own_rows(columns.row_nodes[self._row])
        return {columns.row_names[row]: row for row in rows if row != self._row}

    def __getitem__(self, name: str) -> Leaf:
        return self._columns.leaf_of(self._rows()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


def _explained(who: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except InitialiserError as error:
        raise RuleError(f"{who}: {error}; nothing was changed") from error


def _drawn(columns: Columns, job: _Job) -> Any:
    """What goes into a leaf: something to draw, or an array."""
    owner = columns.node_objects[columns.row_nodes[job.row]]
    site = Site(Leaf(columns, job.leaf, job.row), owner, _Others(columns, job.row))
    spec = columns.facts([job.leaf])[0].spec
    who = f"{job.path} by {job.rule}"
    if not callable(job.options["init"]):
        drawn = _explained(who, partial(drawn_by, site, job.options))
        _explained(who, partial(check_fits, drawn, spec))
        return drawn
    try:
        drawn = drawn_by(site, job.options)
        if isinstance(drawn, Draw | Padded | Orthogonal):
            check_fits(drawn, spec)
            return drawn
        return checked_array(columns.home(columns.current(job.leaf)).capability(Filling).as_numpy(drawn), spec)
    except (Error, InitialiserError) as error:
        raise RuleError(f"{who}: {error}; the leaves before it are initialised") from error
    except Exception as error:
        raise RuleError(
            f"{who}: the callable raised {type(error).__name__}: {error}; the leaves before it are initialised"
        ) from error
