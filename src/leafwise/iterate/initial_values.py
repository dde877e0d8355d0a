"""`lw.initialize`: initial values by rule and role, with random numbers seeded by the path of each leaf."""

import logging
from collections.abc import Iterable
from hashlib import sha256
from operator import index
from typing import Any, TypeVar, overload

from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.sharding import Team
from leafwise.core.columns import Columns
from leafwise.core.parts import check_not_gathered, check_whole_leaves
from leafwise.core.path import escape, listed
from leafwise.core.rebuild import recomputed, replaced_leaves, with_leaves
from leafwise.core.tree import Tree, tree
from leafwise.core.verbs import opened
from leafwise.core.work.progress import Count, bar
from leafwise.core.work.ranks import agreeing, comparing, drop_gathered, same_text, team_of
from leafwise.errors import Error, RuleError, interruption_explained, warn
from leafwise.iterate.init_jobs import InitJob, LeafToFill, leaves_to_fill, plan_jobs, values_for, values_for_all
from leafwise.iterate.initializers import Orthogonal, groups_of
from leafwise.iterate.leaf_filler import LeafFiller, fill_leaves
from leafwise.iterate.rules import Rule, checked_rules

M = TypeVar("M")

_log = logging.getLogger("leafwise")

# Elements of a sharded leaf that each rank draws as a whole, in 64 bits, to use its part: 1 GiB.
_DRAWN_WHOLE = 1 << 27


@overload
def initialize(model: Tree, rules: Iterable[Rule] | None = None, seed: int = 0, *, progress: bool = False) -> Any: ...
@overload
def initialize(model: M, rules: Iterable[Rule] | None = None, seed: int = 0, *, progress: bool = False) -> M: ...
def initialize(model: Any, rules: Iterable[Rule] | None = None, seed: int = 0, *, progress: bool = False) -> Any:
    """Initializes every parameter of a model, by rules. Returns the model.

    `rules` are such as `Rule("**.weight", init="normal", std=0.02)`. Later rules override earlier ones. Leaves of
    known layers that no rule covers get the distribution that PyTorch uses in `reset_parameters`; any other parameter
    that no rule covers is an error. `init` is one of these:

    - the name of an initializer, such as `"kaiming_normal"`, followed by its options
    - `None`, which keeps the present values
    - a callable, which gets the leaf and a mapping of the other leaves of its owner by name. It returns an array, or
      options such as `{"init": "normal", "std": 0.02}`. Callables run last, when the other leaves have their values.

    A rule applies to the parameters that match, or to buffers if it matches no parameters.

    Element i of a leaf depends only on `seed`, the path and i. So adding a layer does not change the others, and equal
    paths get equal values in every framework and on every device. A model on meta gets memory; a lazy layer is
    initialized when its shape is known. `progress=True` shows a progress bar.

    If the model is sharded over several processes, every process must call this, with the same rules and seed. Each of
    them draws its own parts only, and the values are those of the model in one process. Orthogonal matrices are drawn
    as a whole, so they must not be too large.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> net = lw.initialize(net, [lw.Rule("**.weight", init="normal", std=0.02)], seed=1)
    >>> [round(value, 4) for value in net[0].weight[0].tolist()]
    [0.0063, 0.0138, -0.0113, -0.0365]
    """
    try:
        number = index(seed)
    except TypeError as error:
        raise RuleError(f"seed= takes a whole number, not {seed!r}") from error
    with opened(model, "initialize", live=True) as t:
        check_not_gathered(t, "initialize")
        check_whole_leaves(t, "initialize", in_order=True)
        team = team_of(t)
        with agreeing(t, "initialize", team) as rows:
            initialization = _Initialization(t, checked_rules(rules), number, progress, team)
            if team is not None:
                rows += [(job.path, f"{_options_text(job)} with seed {number}") for job in initialization.jobs]
        return initialization.result()


def _options_text(job: InitJob) -> str:
    return ", ".join(f"{name}={same_text(option)}" for name, option in job.options.items())


class _Initialization:
    """One call of `lw.initialize`. Everything that can be checked is checked before the first leaf is filled."""

    def __init__(self, t: Tree, rules: list[Rule], seed: int, progress: bool, team: Team | None) -> None:
        self.tree, self.seed, self.progress, self._team = t, seed, progress, team
        self.columns: Columns = t.columns
        self.jobs = plan_jobs(t, rules)
        leaves = leaves_to_fill(self.columns, self.jobs)
        self._lazy = self._lazy_jobs(leaves)
        leaves = [leaf for leaf in leaves if self.columns.row_nodes[leaf.job.leaf] not in self._lazy]
        self._distributions = values_for_all(self.columns, leaves)
        self._check_parts(leaves)
        self._replaced = replaced_leaves(t, [leaf.job.leaf for leaf in leaves])
        self._leaves = self._targets(leaves)

    def result(self) -> Any:
        """Fills the leaves and returns the model. Callables run last, since they may read other leaves."""
        columns, leaves, distributions, lazy = self.columns, self._leaves, self._distributions, self._lazy
        named = [leaf for leaf in leaves if leaf.job.leaf in distributions]
        total = sum(leaf.spec.size for leaf in leaves)
        root = columns.node_objects[self.tree.root]
        drop_gathered(self.tree)
        with (
            bar(total, "initializing", self.progress) as count,
            interruption_explained("initialize", "initialize it again"),
        ):
            if new := _filled(columns, self.seed, [(leaf, distributions[leaf.job.leaf]) for leaf in named], count):
                root = with_leaves(self.tree, new, bool(self._replaced))
            for leaf in leaves:
                if leaf.job.leaf in distributions:
                    continue
                if newest := _filled(columns, self.seed, [(leaf, self._called(leaf))], count):
                    new |= newest
                    # A tree that cannot be changed in place is rebuilt with all new arrays so far.
                    root = with_leaves(self.tree, new if self._replaced else newest, bool(self._replaced))
        for node, jobs in lazy.items():
            owner = columns.node_objects[node]
            deferred = _DeferredInit(self.seed, jobs, [columns.row_names[job.leaf] for job in jobs])
            columns.home(owner).capability(Filling).when_shaped(owner, deferred)
        self._recompute()
        _log.info(
            "initialized %s of %s leaves; the others follow when their shapes are known", len(leaves), len(self.jobs)
        )
        return root

    def _called(self, leaf: LeafToFill) -> Any:
        """The values that a callable returns. All ranks must get the same ones, because each uses a part of them."""
        with comparing(self._team, "initialize", []) as rows:
            values = values_for(self.columns, leaf.job, leaf.spec)
            if self._team is not None:
                is_array = hasattr(values, "tobytes")
                text = (
                    f"values with the digest {sha256(values.tobytes()).hexdigest()}" if is_array else same_text(values)
                )
                rows.append((leaf.job.path, text))
        return values

    def _check_parts(self, leaves: list[LeafToFill]) -> None:
        """Raises if a leaf that is sharded over ranks is too large to be drawn as a whole on each of them."""
        for job, _, spec, *_ in leaves if self._team is not None else ():
            is_drawn_whole = isinstance(self._distributions.get(job.leaf), Orthogonal)
            if is_drawn_whole and spec.sharding is not None and spec.size > _DRAWN_WHOLE:
                raise RuleError(
                    f"cannot initialize {job.path} by {job.rule}: an orthogonal matrix is drawn as a whole on every "
                    f"rank, and this one has {spec.size:,} elements, more than {_DRAWN_WHOLE:,}; nothing was changed; "
                    "use another initializer, such as normal, or initialize the model before it is sharded"
                )

    def _lazy_jobs(self, leaves: list[LeafToFill]) -> dict[int, list[InitJob]]:
        """The jobs of all nodes that have a leaf of unknown shape, by node."""
        nodes = self.columns.row_nodes
        lazy: dict[int, list[InitJob]] = {nodes[leaf.job.leaf]: [] for leaf in leaves if leaf.spec.shape is None}
        for job in self.jobs if lazy else ():
            if nodes[job.leaf] in lazy:
                lazy[nodes[job.leaf]].append(job)
        return lazy

    def _targets(self, leaves: list[LeafToFill]) -> list[LeafToFill]:
        """The leaves with the arrays to fill, which are new for arrays on meta."""
        columns = self.columns
        values = [leaf.value for leaf in leaves]
        reasons = [""] * len(leaves)
        for home, numbers in columns.by_home(values).items():
            if home.in_place:
                with_memory = [number for number in numbers if leaves[number].spec.device != "meta"]
                refusals = home.capability(Filling).cannot_fill([values[number] for number in with_memory])
                for number, reason in zip(with_memory, refusals, strict=True):
                    reasons[number] = reason
        targets = []
        for leaf, reason in zip(leaves, reasons, strict=True):
            if reason:
                path, rule = leaf.job.path, leaf.job.rule
                raise RuleError(f"cannot initialize {path} by {rule}: {reason}; nothing was changed")
            is_kept = leaf.spec.device != "meta" and leaf.job.leaf not in self._replaced
            targets.append(leaf if is_kept else self._new_target(leaf))
        return targets

    def _new_target(self, leaf: LeafToFill) -> LeafToFill:
        home = self.columns.home(leaf.value)
        if not home.in_place and (reason := home.capability(Rebuilding).cannot_renew(leaf.value)):
            raise RuleError(f"cannot initialize {leaf.job.path} by {leaf.job.rule}: {reason}; nothing was changed")
        if not home.in_place:
            return leaf._replace(is_new=True)
        try:
            array = home.capability(Rebuilding).allocate(leaf.value, leaf.spec.shape or ())
        except Error as error:
            raise RuleError(f"cannot initialize {leaf.job.path}: {error}; nothing was changed") from error
        return leaf._replace(value=array, spec=home.spec(array), is_new=True)

    def _recompute(self) -> None:
        """Computes the buffers that are still on meta because no rule covers them. Random states cannot be computed."""
        rows = [row for row in self.tree.rows if self.columns.row_kinds[row] in ("buffer", "transient", "rest")]
        values, left = recomputed(self.columns, rows)
        for row, value in values.items():
            owner = self.columns.node_objects[self.columns.row_nodes[row]]
            self.columns.home(owner).capability(Rebuilding).replace(owner, {self.columns.row_names[row]: value})
        if left:
            names = listed([self.columns.row_text(row) for row in left])
            kind = "leaves" if any(self.columns.row_kinds[row] == "rest" for row in left) else "buffers"
            warn(
                escape(
                    f"the {kind} {names} are still on meta: no rule covers them, and leafwise does not know how to "
                    "compute them; compute them as the model's constructor does"
                )
            )


def _filled(columns: Columns, seed: int, leaves: list[tuple[LeafToFill, Any]], count: Count) -> dict[int, Any]:
    """Fills each leaf with its values. Returns the arrays that replace current ones, by leaf."""

    def filler(leaf: LeafToFill) -> LeafFiller:
        job, value, spec, (role, axes), _ = leaf
        groups = groups_of(columns, job.leaf) if role == "conv_transpose.weight" else 1
        return LeafFiller(columns.home(value), value, spec, axes, seed, job.seed, groups, count)

    filled = fill_leaves(((filler(leaf), values) for leaf, values in leaves), count)
    return {leaf.job.leaf: array for (leaf, _), array in zip(leaves, filled, strict=True) if leaf.is_new}


class _DeferredInit:
    """Initializes the leaves of a lazy layer once their shapes are known. It is a class, not a closure, so that the
    model can be pickled in the meantime."""

    def __init__(self, seed: int, jobs: list[InitJob], names: list[str]) -> None:
        self.seed, self.jobs, self.names = seed, jobs, names

    def __call__(self, owner: Any) -> None:
        columns = tree(owner).columns
        rows = {columns.row_names[row]: row for row in columns.own_rows(0)}
        jobs = [job._replace(leaf=rows[name], row=rows[name]) for job, name in zip(self.jobs, self.names, strict=True)]
        leaves = leaves_to_fill(columns, sorted(jobs, key=lambda job: callable(job.options["init"])))
        for leaf in leaves:
            _filled(columns, self.seed, [(leaf, values_for(columns, leaf.job, leaf.spec))], lambda count: None)
