"""`lw.initialize`: initial values by rule and role, each leaf drawn from its own path."""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.bars import bar
from leafwise.core.columns import Columns
from leafwise.core.home import Draw, Home
from leafwise.core.leaf import Leaf
from leafwise.core.rebuild import left_on_meta, with_leaves
from leafwise.core.tree import Tree, tree
from leafwise.errors import Error, RuleError
from leafwise.iterate.drawing import Key, normal, numbers, words
from leafwise.iterate.initialisers import (
    Defaults,
    InitialiserError,
    Orthogonal,
    Padded,
    Site,
    check_options,
    drawn_by,
)
from leafwise.iterate.rules import Cascade, Rule, checked_rules, matches_nothing

_CHUNK = 1 << 18  # elements drawn at a time
_log = logging.getLogger("leafwise")


def initialize(model: Any, rules: Iterable[Rule] | None = None, seed: int = 0, *, progress: bool = False) -> Any:
    """Gives every parameter an initial value, by rule; returns the model.

    `Rule(where, init="kaiming_normal")` names an initialiser and its options; `init=None` keeps what is there, and a
    callable is given the leaf and its owner's other leaves by name, and returns an array, or options such as
    `{"init": "normal", "std": 0.02}`. Later rules override earlier ones; before all of them, each layer of PyTorch has
    the distribution of its own `reset_parameters`. A parameter for which no rule says anything is an error.

    Element i of a leaf is a function of seed, path and i: adding a layer changes no other, and the same paths get the
    same values in every framework and on every device. A model on meta gets memory; a lazy layer is filled when its
    shape is known.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> net = lw.initialize(net, [lw.Rule("**.weight", init="normal", std=0.02)], seed=1)
    >>> [round(value, 4) for value in net[0].weight[0].tolist()]
    [0.0063, 0.0138, -0.0113, -0.0365]
    """
    if not isinstance(seed, int):
        raise RuleError(f"a seed is a whole number, not {seed!r}")
    return _Initialising(tree(model), checked_rules(rules), seed, progress).result()


class _Job(NamedTuple):
    """A leaf and what goes into it, by what holds for the name at `row`."""

    leaf: int
    row: int
    key: str
    options: dict[str, Any]
    rule: str


class _Initialising:
    def __init__(self, t: Tree, rules: list[Rule], seed: int, progress: bool) -> None:
        self.tree, self.seed, self.progress = t, seed, progress
        self.columns: Columns = t._columns
        self.rules: list[Rule] = [Defaults(), *rules]
        for rule in rules:
            if "init" in rule.options:
                _explained(repr(rule), partial(check_options, rule.options))
        leaves = [leaf for leaf in map(self._leaf, t._first_rows) if self.columns.leaf_kind(leaf) != "state"]
        here = set(t._rows) if self.columns.further_rows else set()
        self.names = {
            leaf: [row for row in self.columns.rows_of(leaf) if row in here]
            if leaf in self.columns.further_rows
            else [leaf]
            for leaf in leaves
        }
        self.cascade = Cascade(t, self.rules, [row for rows in self.names.values() for row in rows], {}, "init")
        for rule, matched in zip(rules, self.cascade.matched[1:], strict=True):
            if not matched:
                raise matches_nothing(t, rule, "parameter or buffer")
        self.jobs = self._planned()

    def _leaf(self, row: int) -> int:
        return self.columns.ties.get(row, row)

    def _planned(self) -> list[_Job]:
        columns = self.columns
        jobs, uncovered = [], []
        for leaf, rows in self.names.items():
            held = self.cascade.holds(rows)
            if "init" in held.options:
                if held.options["init"] is not None:
                    row, rule = self.cascade.deciding(rows, held), self.cascade.rule_of(held, "init")
                    jobs.append(_Job(leaf, row, _key_of(columns, rows[0]), held.options, rule))
            elif held.options:
                rule = self.cascade.rule_of(held, next(iter(held.options)))
                raise RuleError(f"{columns.row_text(rows[0])}: {rule} names no initialiser, and no rule before it does")
            elif columns.leaf_kind(leaf) == "parameter":
                uncovered.append(rows[0])
        if uncovered:
            raise self._uncovered(uncovered)
        return jobs

    def _uncovered(self, rows: list[int]) -> RuleError:
        columns = self.columns
        names = [columns.name(row) for row in rows[:8]]
        some = [f"{name.path} ({name.owner}, {name.role or 'no role'})" for name in names]
        more = f" and {len(rows) - 8:,} more" if len(rows) > 8 else ""
        return RuleError(
            f"no rule says how to initialise {', '.join(some)}{more}; nothing was changed; add "
            f'Rule("{columns.row_text(rows[0])}", init="normal", std=0.02), or init=None to keep what is there'
        )

    # -- doing it ----------------------------------------------------------------------------------------

    def result(self) -> Any:
        columns = self.columns
        later: dict[int, list[_Job]] = {}
        now: list[tuple[_Job, Any]] = []
        facts = columns.facts([job.leaf for job in self.jobs])
        lazy = {
            columns.row_nodes[job.leaf] for job, one in zip(self.jobs, facts, strict=True) if one.spec.shape is None
        }
        for job in self.jobs:
            node = columns.row_nodes[job.leaf]
            if node in lazy:
                later.setdefault(node, []).append(job)
            else:
                now.append((job, _drawn(columns, job)))
        targets = [self._target(job) for job, _ in now]
        new = _filled(columns, self.seed, now, targets, self.progress)
        for node, jobs in later.items():
            owner = columns.node_objects[node]
            later_on = _Later(self.seed, jobs, [columns.row_names[job.leaf] for job in jobs])
            columns.home(owner).when_shaped(owner, later_on)
        root = with_leaves(self.tree, new) if new else columns.node_objects[self.tree._node]
        self._recompute()
        _log.info("initialised %s leaves, %s when their shape is known", f"{len(now):,}", sum(map(len, later.values())))
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
                return home.blank(value, spec.shape or ()), True
            except Error as error:
                raise RuleError(
                    f"cannot initialise {columns.row_text(job.leaf)}: {error}; nothing was changed"
                ) from error
        if reason := home.cannot_fill(value):
            raise RuleError(
                f"cannot initialise {columns.row_text(job.leaf)} by {job.rule}: {reason}; nothing was changed"
            )
        return value, False

    def _recompute(self) -> None:
        """Buffers that no rule speaks of, and that have no values yet."""
        rows = [row for row in self.tree._rows if self.columns.row_kinds[row] in ("buffer", "transient")]
        left = left_on_meta(self.columns, rows)
        if left:
            some = ", ".join(left[:8]) + (f" and {len(left) - 8:,} more" if len(left) > 8 else "")
            warnings.warn(
                f"no rule says how to initialise the buffers {some}, and leafwise knows no way to compute them: still "
                "on meta; make them as the model does when it is built",
                stacklevel=4,
            )


class _Later:
    """Initialises leaves of a layer once their shapes are known. A class, so that models can be pickled meanwhile."""

    def __init__(self, seed: int, jobs: list[_Job], names: list[str]) -> None:
        self.seed, self.jobs, self.names = seed, jobs, names

    def __call__(self, owner: Any) -> None:
        columns = tree(owner)._columns
        rows = {columns.row_names[row]: row for row in columns.own_rows(0)}
        jobs = [job._replace(leaf=rows[name], row=rows[name]) for job, name in zip(self.jobs, self.names, strict=True)]
        now = [(job, _drawn(columns, job)) for job in jobs]
        _filled(columns, self.seed, now, [(columns.current(job.leaf), False) for job in jobs], False)


class _Others(Mapping[str, Leaf]):
    """The other leaves of the owner of a leaf, by name; looked up when somebody asks."""

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns, self._row = columns, row

    def _rows(self) -> dict[str, int]:
        columns = self._columns
        rows = columns.own_rows(columns.row_nodes[self._row])
        return {columns.row_names[row]: row for row in rows if row != self._row}

    def __getitem__(self, name: str) -> Leaf:
        return self._columns.leaf(self._rows()[name])

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
    drawn = _explained(f"{job.key} by {job.rule}", partial(drawn_by, site, job.options))
    spec = columns.facts([job.leaf])[0].spec
    if isinstance(drawn, Draw | Padded | Orthogonal):
        constant = isinstance(drawn, Draw) and not drawn.scale
        if not constant and not spec.dtype.startswith(("float", "bfloat")):
            raise RuleError(
                f"{job.key} by {job.rule}: random numbers do not fit into {spec.dtype}; nothing was changed"
            )
        return drawn
    value = columns.current(job.leaf)
    array = columns.home(value).as_numpy(drawn)
    if array.shape not in ((), spec.shape):
        raise RuleError(
            f"{job.key} by {job.rule}: it has the shape {spec.shape}, and was given {array.shape}; nothing was changed"
        )
    return array


# -- keys, and the order of axes -----------------------------------------------------------------------------

# What frameworks call the same leaf: a key has the first of them.
_ALIASES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "gamma": "weight", "beta": "bias"}
_RANK = {axis: rank for rank, axis in enumerate(("out", "in", "in1", "in2", "d", "h", "w"))}


def _key_of(columns: Columns, row: int) -> str:
    """The path that a leaf is drawn from: its own, but for names that mean the same in another framework."""
    path = columns.row_text(row)
    name = columns.row_names[row]
    alias = _ALIASES.get(name)
    if alias is None or columns.row_role(row)[0] is None:
        return path
    if any(columns.row_names[other] == alias for other in columns.own_rows(columns.row_nodes[row])):
        return path
    return path.removesuffix(name) + alias


def canonical_order(axes: Sequence[str] | None) -> tuple[int, ...] | None:
    """The axes in the order in which elements are numbered: out, in, then space; None where they stand so already."""
    if axes is None or not set(axes) <= _RANK.keys():
        return None
    order = tuple(sorted(range(len(axes)), key=lambda at: _RANK[axes[at]]))
    return None if order == tuple(range(len(axes))) else order


# -- filling -------------------------------------------------------------------------------------------------


def _filled(
    columns: Columns, seed: int, jobs: list[tuple[_Job, Any]], targets: list[tuple[Any, bool]], progress: bool
) -> dict[int, Any]:
    """Fills the targets; gives those that take the place of a leaf."""
    new: dict[int, Any] = {}
    homes = [columns.home(value) for value, _ in targets]
    total = sum(home.spec(value).nbytes for home, (value, _) in zip(homes, targets, strict=True))
    with bar(total, "initialising", progress) as count:
        for (job, drawn), home, (value, takes_place) in zip(jobs, homes, targets, strict=True):
            order = canonical_order(columns.row_role(job.leaf)[1])
            made = _Filling(home, value, order, Key.of(seed, job.key), count).fill(drawn)
            if takes_place:
                new[job.leaf] = made
    return new


class _Filling:
    """Fills one leaf. Elements are numbered with its axes in `order`."""

    def __init__(
        self, home: Home, value: Any, order: tuple[int, ...] | None, key: Key, count: Callable[[int], None]
    ) -> None:
        self.home, self.value, self.order, self.key, self.count = home, value, order, key, count
        spec = home.spec(value)
        self.shape, self.dtype = spec.shape or (), spec.dtype
        self.whole = _turned(self.shape, order) or (1,)

    def fill(self, drawn: Any) -> Any:
        """The array that has the values."""
        zero_row = drawn.zero_row if isinstance(drawn, Padded) else None
        drawn = drawn.draw if isinstance(drawn, Padded) else drawn
        if isinstance(drawn, Orthogonal):
            drawn = self._back(_orthogonal(self.key, self.whole, drawn.gain))
        if not isinstance(drawn, Draw):
            return self._put(drawn)
        if not self.home.in_place:
            array = self._back(numbers(drawn, _words(self.key, 0, self.whole[0], self.whole, ())))
            if zero_row is not None:
                array[zero_row] = 0
            return self.home.made(self.value, array.astype(self.dtype))
        for local, starts in self.home.local_parts(self.value):
            self._draw(local, starts, drawn)
            if zero_row is not None:
                self._zero(local, starts, zero_row)
        return self.value

    def _back(self, array: Any) -> Any:
        """From the order in which elements are numbered to that of the leaf."""
        order = self.order or tuple(range(len(self.shape)))
        return array.reshape(_turned(self.shape, self.order)).transpose([order.index(at) for at in range(len(order))])

    def _put(self, array: Any) -> Any:
        """Puts an array that somebody made into a leaf; a number goes everywhere."""
        home = self.home
        array = np.broadcast_to(array, self.shape)
        if not home.in_place:
            return home.made(self.value, array.astype(self.dtype))
        for local, starts in home.local_parts(self.value):
            part = array
            if starts is not None:
                sizes = home.spec(local).shape or ()
                part = array[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]
            home.fill(local, None, 0, part.reshape(part.shape or (1,)))
        return self.value

    def _draw(self, local: Any, starts: tuple[int, ...] | None, draw: Draw) -> None:
        """Draws the elements of an array, some rows at a time; where it is a part of a leaf, only its own."""
        home, order = self.home, self.order
        spec = home.spec(local)
        own = _turned(spec.shape or (), order) or (1,)
        if not math.prod(own):
            return
        first = _turned(starts, order) if starts else (0,) * len(own)
        inside = tuple(slice(a, a + n) for a, n in zip(first[1:], own[1:], strict=True))
        rows = max(1, _CHUNK // math.prod(self.whole[1:]))
        for start in range(0, own[0], rows):
            some = min(rows, own[0] - start)
            if not draw.scale:
                home.fill(local, order, start, np.full((some, *own[1:]), draw.shift))
            else:
                found = _words(self.key, first[0] + start, some, self.whole, inside)
                if not home.draw(local, order, start, found, draw):
                    home.fill(local, order, start, numbers(draw, found))
            self.count(spec.nbytes * some // own[0])

    def _zero(self, local: Any, starts: tuple[int, ...] | None, row: int) -> None:
        shape = self.home.spec(local).shape or ()
        at = row - (starts[0] if starts else 0)
        if 0 <= at < shape[0]:
            self.home.fill(local, None, at, np.zeros((1, *shape[1:])))


def _words(key: Key, start: int, count: int, whole: tuple[int, ...], inside: tuple[slice, ...]) -> Any:
    """The words of some rows of a leaf, or of a part of each."""
    size = math.prod(whole[1:])
    return words(key, start * size, count * size).reshape(count, *whole[1:])[(slice(None), *inside)]


def _turned(sizes: Sequence[int], order: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(sizes) if order is None else tuple(sizes[at] for at in order)


def _orthogonal(key: Key, shape: tuple[int, ...], gain: float) -> Any:
    rows, columns = shape[0], math.prod(shape[1:])
    if not rows * columns:
        return np.zeros(shape)
    drawn = numbers(normal(0.0, 1.0), words(key, 0, rows * columns)).reshape(rows, columns)
    q, r = np.linalg.qr(drawn if rows >= columns else drawn.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # so that the result is spread evenly over all rotations
    return (gain * (q if rows >= columns else q.T)).reshape(shape)
