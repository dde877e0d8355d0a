"""`lw.Average`: the average of a model during training."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_inexact
from leafwise.core.home import Home
from leafwise.core.parts import check_listed, check_not_gathered, check_whole_leaves, first_rows
from leafwise.core.path import escape
from leafwise.core.rebuild import replaced_leaves, with_leaves
from leafwise.core.tree import Tree, tree
from leafwise.core.verbs import opened
from leafwise.core.work.ranks import drop_gathered
from leafwise.errors import PathError, RuleError, WalkError, WriteError


class Average:
    """A moving average of the weights of a model (EMA); without `decay`, the average of all updates with equal weights.

    Call `update()` after each step of the optimizer, and evaluate the averaged weights in `with average.applied():`.
    If models cannot be changed in place, as in JAX, pass the new model: `update(model)`.

    The first update copies the values. After that, the new average is `decay` times the old one plus `1 - decay` times
    the new values. With `warmup=k`, update number n, counted from 0 (the copy), uses a decay of at most
    `(1 + n) / (k + n)`, so that the average forgets the beginning quickly.

    If the model is sharded over several processes, each of them averages its own parts, and nothing is sent. With
    FSDP2, create the average after `fully_shard`.

    Buffers are copied; with `buffers="average"`, floating-point buffers are averaged, too. A tied leaf is averaged
    once. Leaves with fewer than 32 bits are averaged in float32, so that small steps are not rounded away.

    Save and load it together with the model: `lw.save({"model": model, "average": average}, path)`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> average = lw.Average(net, decay=0.5)
    >>> for value in (1.0, 2.0, 4.0):
    ...     _ = net.weight.data.fill_(value)
    ...     average.update()
    >>> with average.applied():
    ...     net.weight.item()
    2.75
    >>> net.weight.item()
    4.0
    """

    def __init__(
        self,
        model: Any,
        decay: float | None = None,
        *,
        warmup: int = 0,
        buffers: Literal["copy", "average"] = "copy",
    ) -> None:
        if decay is not None and not 0 <= decay <= 1:
            raise RuleError(f"decay= must be between 0 and 1, not {decay!r}")
        if warmup < 0:
            raise RuleError(f"warmup= must be 0 or more, not {warmup!r}")
        if warmup and decay is None:
            raise RuleError("warmup= needs decay=: without decay=, all updates have equal weights")
        if buffers not in ("copy", "average"):
            raise RuleError(f'buffers= takes "copy" or "average", not {buffers!r}')
        self.decay, self.warmup = decay, warmup
        self.updates = 0
        with opened(model, "Average", live=True, action="be averaged") as t:
            check_whole_leaves(t, "Average", in_order=True)
            self._tree: Tree = t
            self._keys, self._parts = _parts_of(t, buffers)

    def update(self, model: Any = None) -> None:
        """Adds the current values of the model to the average."""
        if model is None and not all(part.home.in_place for part in self._parts):
            raise RuleError("the arrays of this model cannot change; pass the new model: average.update(model)")
        walk = self._walk(model)
        weight = self._weight()
        values = [part.checked(walk) for part in self._parts]
        _check_not_applied(values, "leave the `with average.applied()` block before the next update")
        for part, part_values in zip(self._parts, values, strict=True):
            part.move(part_values, weight if part.is_averaged else 1.0)
        self.updates += 1

    def _weight(self) -> float:
        """The weight of the new values in the average."""
        n = self.updates
        if not n:
            return 1.0
        if self.decay is None:
            return 1 / (n + 1)
        return 1 - (min(self.decay, (1 + n) / (self.warmup + n)) if self.warmup else self.decay)

    def _walk(self, model: Any) -> "_NewWalk":
        """Walks the model again, since parameters and modules may have been replaced. If the structure of the model is
        unchanged, so are the numbers of its leaves."""
        if model is None:
            model = self._tree.columns.node_objects[self._tree.root]
        t = tree(model)
        check_not_gathered(t, "average")
        columns = t.columns
        if not self._tree.root and not t.root and _structure(self._tree.columns) == _structure(columns):
            return _NewWalk(t, None)
        persistent = [row for row in t.rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]
        # By any of its names, because Flax NNX may sort modules, which gives a tied leaf another first name.
        rows = dict(zip(columns.keys(persistent, t.root), persistent, strict=True))
        wrong = self._keys.keys() - rows.keys()
        if self._tree.is_whole and not wrong:
            averaged = {columns.ties.get(rows[key], rows[key]) for key in self._keys}
            wrong = {key for key, row in rows.items() if columns.ties.get(row, row) not in averaged}
        if wrong:
            name = min(wrong)
            where = "average but not in the model" if name in self._keys else "model but not in the average"
            raise PathError(
                f"the model has changed since its average was created: {name} is in the {where}; "
                "create a new lw.Average(model)"
            )
        return _NewWalk(t, {leaf: columns.ties.get(rows[key], rows[key]) for key, leaf in self._keys.items()})

    @contextmanager
    def applied(self, model: Any = None) -> Iterator[Any]:
        """A context in which the model has the averaged values. Its own values are restored at the end."""
        walk = self._walk(model)
        values = [part.checked(walk) for part in self._parts]
        _check_not_applied(values, "an average cannot be applied twice")
        replaced = replaced_leaves(walk.tree, [leaf for part in self._parts for leaf in walk.leaves(part.leaves)])
        new: dict[int, Any] = {}
        changed: list[tuple[_AveragedPart, list[Any], list[Any]]] = []  # with their current and their own values
        for part, part_values in zip(self._parts, values, strict=True):
            leaves = walk.leaves(part.leaves)
            copies = part.averaging.clone_many(part_values, False) if part.home.in_place else part_values
            if replaced.issuperset(leaves):
                new.update(zip(leaves, part.averaging.copy_many(copies, part.arrays), strict=True))
            else:
                changed.append((part, part_values, copies))
        _applied.update(id(value) for _, part_values, _ in changed for value in part_values)
        try:
            drop_gathered(walk.tree)
            for part, part_values, _ in changed:
                part.averaging.copy_many(part_values, part.arrays)
            yield with_leaves(walk.tree, new, copied=True) if new else walk.root
        finally:
            _applied.difference_update(id(value) for _, part_values, _ in changed for value in part_values)
            for part, part_values, own_values in changed:
                part.averaging.copy_many(part_values, own_values)
            drop_gathered(walk.tree)  # of the averages

    # -- saving and loading ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the averaged values by path."""
        averages = {leaf: array for part in self._parts for leaf, array in zip(part.leaves, part.arrays, strict=True)}
        return {"updates": self.updates, "values": {key: averages[leaf] for key, leaf in self._keys.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`."""
        if not {"updates", "values"} <= state.keys():
            raise PathError('this is not the state of an average, which has the keys "updates" and "values"')
        values = state["values"]
        wrong = sorted(values.keys() ^ self._keys.keys())
        if wrong:
            where = (
                "loaded state but not in this average" if wrong[0] in values else "average but not in the loaded state"
            )
            raise PathError(f"cannot load this average: {wrong[0]} is in the {where}")
        value_of = {leaf: values[key] for key, leaf in self._keys.items()}
        new_values = [[value_of[leaf] for leaf in part.leaves] for part in self._parts]
        for part, part_values in zip(self._parts, new_values, strict=True):
            part.check(self._tree.columns, part.leaves, part_values)
        for part, part_values in zip(self._parts, new_values, strict=True):
            part.move(part_values, 1.0)
        self.updates = int(state["updates"])

    def __repr__(self) -> str:
        how = "equal weights" if self.decay is None else f"decay {self.decay:g}"
        return escape(f"<Average of {len(self._keys):,} leaves: {how}, {self.updates:,} updates>")


_applied: set[int] = set()  # the ids of the arrays that currently have averaged values


def _check_not_applied(values: list[list[Any]], repair: str) -> None:
    """Raises if an average is applied, because then these are not the model's own values."""
    if _applied and any(id(value) in _applied for part_values in values for value in part_values):
        raise WriteError(f"the model currently has its averaged values; {repair}")


class _NewWalk(NamedTuple):
    """A walk of the model as it is now. `number_of` maps the earlier number of each leaf to its number in this walk;
    None if all numbers are unchanged."""

    tree: Tree
    number_of: dict[int, int] | None

    @property
    def root(self) -> Any:
        return self.tree.columns.node_objects[self.tree.root]

    def leaves(self, leaves: list[int]) -> list[int]:
        return leaves if self.number_of is None else [self.number_of[leaf] for leaf in leaves]


class _AveragedPart:
    """Leaves of one home with their averages, or with copies of their values if `is_averaged` is False."""

    def __init__(self, home: Home, leaves: list[int], values: list[Any], is_averaged: bool) -> None:
        self.home, self.leaves, self.is_averaged = home, leaves, is_averaged
        self.averaging = home.capability(Averaging)
        self.arrays: list[Any] = self.averaging.clone_many(values, True)

    def checked(self, walk: _NewWalk) -> list[Any]:
        """The current arrays of the model; raises if one does not have the shape of its average."""
        columns, leaves = walk.tree.columns, walk.leaves(self.leaves)
        values = [columns.row_values[leaf] for leaf in leaves]
        self.check(columns, leaves, values)
        return values

    def check(self, columns: Columns, leaves: list[int], values: list[Any]) -> None:
        differing = self.averaging.first_of_other_shape(self.arrays, values)
        if differing is not None:
            specs = [self.home.spec(arrays[differing]) for arrays in (values, self.arrays)]
            name = columns.row_text(leaves[differing])
            now, then = (spec.shape for spec in specs)
            if now == then:
                sharded, average = (f"sharded ({spec.sharding})" if spec.sharding else "not sharded" for spec in specs)
                raise WriteError(
                    f"{name} is {sharded}, but its average is {average}; nothing was changed; create the average "
                    "after the model is sharded, and load the state of an average that is sharded in the same way"
                )
            raise WriteError(f"{name} has the shape {now}, but its average has {then}; nothing was changed")

    def move(self, values: list[Any], weight: float) -> None:
        """Moves the averages towards the values; with a weight of 1, all the way."""
        if weight == 1:
            self.arrays = self.averaging.copy_many(self.arrays, values)
        else:
            self.arrays = self.averaging.lerp_many(self.arrays, values, weight)


def _structure(walked: Columns) -> tuple[object, ...]:
    """The names that a walk found, in their order, and how they are tied."""
    return walked.row_names, walked.row_nodes, walked.node_names, walked.node_parents, walked.ties, walked.row_ops


def _cannot_average_parts(home: Home, value: Any) -> str:
    """Why a sharded array cannot be averaged; empty if it can."""
    distributing = home.capability(Distributing)
    if reason := distributing.cannot_use_parts(value) or home.cannot_read(distributing.local(value)):
        return reason
    return home.capability(Loading).cannot_write([value])[0]


def _parts_of(t: Tree, buffers: str) -> tuple[dict[str, int], list[_AveragedPart]]:
    """The leaves by key, and their parts: for each home, the leaves to average and the leaves to copy."""
    check_listed(t, "average")
    columns = t.columns
    keys: dict[str, int] = {}
    averaged: list[int] = []
    copied: list[int] = []
    # Non-persistent buffers are caches and constants, which may come and go.
    rows = [row for row in first_rows(t) if columns.row_kinds[row] != "transient"]
    for row, key, facts in zip(rows, columns.keys(rows, t.root), columns.facts(rows), strict=True):
        leaf = columns.ties.get(row, row)
        value = columns.current(leaf)
        home = columns.home(value)
        if facts.spec.sharding is not None:
            reason = _cannot_average_parts(home, value)
        else:
            reason = home.cannot_read(value) or (
                home.capability(Loading).cannot_write([value])[0] if home.in_place else ""
            )
        if reason:
            raise WalkError(f"cannot average {columns.row_text(row)}: {reason}")
        if key in keys:
            raise WalkError(f"cannot average {columns.row_text(row)}: another leaf is also called {key!r}")
        is_averaged = is_inexact(facts.spec.dtype) and (facts.kind == "parameter" or buffers == "average")
        (averaged if is_averaged else copied).append(leaf)
        keys[key] = leaf
    if not averaged:
        raise WalkError("there is nothing to average: the model has no floating-point parameters")
    return keys, [
        _AveragedPart(batch.home, list(batch.rows), batch.values, is_averaged)
        for leaves, is_averaged in ((averaged, True), (copied, False))
        for batch in columns.batches(leaves)
    ]
