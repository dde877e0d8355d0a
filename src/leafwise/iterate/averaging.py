"""`lw.Average`: the mean of a model over its training."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.rebuild import with_leaves
from leafwise.core.tree import Tree, tree
from leafwise.errors import PathError, RuleError, WalkError, WriteError


class Average:
    """The moving average of a model, or with `decay=None` the equal-weight average of all updates.

    Call `update()` after each step of the optimizer; for models that cannot change, `update(model)` with the new one.
    The first update takes the values as they are. With `warmup=k`, update number n decays by at most
    `(1 + n) / (k + n)`, so that the average forgets the beginning quickly. Buffers are copied as they are, or with
    `buffers="average"` averaged where they are floating point. A tied leaf is averaged once. Leaves of less than 32
    bits are averaged in float32, where small steps do not get lost. Saved and loaded with everything else:
    `lw.save({"model": model, "average": average}, path)`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> average = lw.Average(net, decay=0.5)
    >>> for value in (1.0, 2.0, 4.0):
    ...     net.weight.data.fill_(value)
    ...     average.update()
    tensor([[1.]])
    tensor([[2.]])
    tensor([[4.]])
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
            raise RuleError(f"decay is the share of the average that stays, from 0 to 1, not {decay!r}")
        if decay is None and warmup:
            raise RuleError("warmup= belongs to a moving average; give decay=, too")
        if buffers not in ("copy", "average"):
            raise RuleError(f'buffers= takes "copy" or "average", not {buffers!r}')
        self.decay, self.warmup = decay, warmup
        self.updates = 0
        self._tree: Tree = tree(model)
        self._applied = False
        self._keys, averaged, copied = _sorted_leaves(self._tree, buffers)
        values = [_Part(self._tree, leaves) for leaves in averaged]
        self._averaged = values
        self._copied = [_Part(self._tree, leaves) for leaves in copied]

    def update(self, model: Any = None) -> None:
        """Takes the values of the model, as it is now, into the average."""
        if self._applied:
            raise WriteError("the model holds its average now; leave `with average.applied()` before the next update")
        columns, leaf_at = self._found(model)
        weight = self._weight()
        for part in self._averaged:
            part.move(columns, leaf_at, weight)
        for part in self._copied:
            part.move(columns, leaf_at, 1.0)
        self.updates += 1

    def _weight(self) -> float:
        """How much of the new values goes into the average."""
        n = self.updates
        if not n:
            return 1.0
        if self.decay is None:
            return 1 / (n + 1)
        return 1 - (min(self.decay, (1 + n) / (self.warmup + n)) if self.warmup else self.decay)

    def _found(self, model: Any) -> tuple[Columns, dict[int, int] | None]:
        """Where the leaves stand now; where that is another model, by their names."""
        columns = self._tree._columns
        if model is None or model is self._tree or model is columns.node_objects[self._tree._node]:
            return columns, None
        t = tree(model)
        theirs = t._columns
        found = dict(zip(theirs.keys(t._first_rows, t._node), t._first_rows, strict=True))
        wrong = sorted(found.keys() ^ self._keys.keys())
        if wrong:
            where = "only in the average" if wrong[0] in self._keys else "not in the average"
            raise PathError(f"this model is not the one that is averaged: {wrong[0]} is {where}")
        return theirs, {leaf: theirs.ties.get(found[key], found[key]) for key, leaf in self._keys.items()}

    @contextmanager
    def applied(self, model: Any = None) -> Iterator[Any]:
        """The model with the averaged values, for as long as this is entered; then its own values come back."""
        if self._applied:
            raise WriteError("the model holds its average already")
        columns, leaf_at = self._found(model)
        parts = [*self._averaged, *self._copied]
        if all(part.home.in_place for part in parts):
            values = [part.values(columns, leaf_at) for part in parts]
            own = [part.home.clone_many(held, False) for part, held in zip(parts, values, strict=True)]
            self._applied = True
            try:
                for part, held in zip(parts, values, strict=True):
                    part.home.copy_many(held, part.arrays)
                yield columns.node_objects[0 if leaf_at else self._tree._node]
            finally:
                for part, held, before in zip(parts, values, own, strict=True):
                    part.home.copy_many(held, before)
                self._applied = False
        else:
            new: dict[int, Any] = {}
            for part in parts:
                values_now = part.values(columns, leaf_at)
                leaves = part.leaves if leaf_at is None else [leaf_at[leaf] for leaf in part.leaves]
                new.update(zip(leaves, part.home.copy_many(values_now, part.arrays), strict=True))
            yield with_leaves(self._tree if leaf_at is None else tree(model), new)

    # -- saving and loading ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """How many updates there were, and the averages by path."""
        at = {leaf: array for part in (*self._averaged, *self._copied) for leaf, array in part.items()}
        return {"updates": self.updates, "values": {key: at[leaf] for key, leaf in self._keys.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        values = state["values"]
        wrong = sorted(values.keys() ^ self._keys.keys())
        if wrong:
            raise PathError(f"this is not the average of the model: {wrong[0]} is not in both")
        at = {leaf: values[key] for key, leaf in self._keys.items()}
        for part in (*self._averaged, *self._copied):
            part.arrays = part.home.copy_many(part.arrays, [at[leaf] for leaf in part.leaves])
        self.updates = int(state["updates"])

    def __repr__(self) -> str:
        how = "equal weights" if self.decay is None else f"decay {self.decay:g}"
        return f"<Average of {len(self._keys):,} leaves: {how}, {self.updates:,} updates>"


class _Part:
    """Leaves of one home, and their averages."""

    def __init__(self, t: Tree, leaves: list[int]) -> None:
        columns = t._columns
        self.leaves = leaves
        held = [columns.current(leaf) for leaf in leaves]
        self.home: Home = columns.home(held[0])
        self.arrays: list[Any] = self.home.clone_many(held, True)

    def values(self, columns: Columns, leaf_at: dict[int, int] | None) -> list[Any]:
        leaves = self.leaves if leaf_at is None else [leaf_at[leaf] for leaf in self.leaves]
        return [columns.current(leaf) for leaf in leaves]

    def move(self, columns: Columns, leaf_at: dict[int, int] | None, weight: float) -> None:
        values = self.values(columns, leaf_at)
        try:
            if weight == 1:
                self.arrays = self.home.copy_many(self.arrays, values)
            else:
                self.arrays = self.home.lerp_many(self.arrays, values, weight)
        except Exception as error:
            for leaf, value, array in zip(self.leaves, values, self.arrays, strict=True):
                now, then = self.home.spec(value).shape, self.home.spec(array).shape
                if now != then:
                    raise WriteError(
                        f"{columns.row_text(leaf)} has another shape than its average: {now}, {then}"
                    ) from error
            raise

    def items(self) -> Iterator[tuple[int, Any]]:
        return zip(self.leaves, self.arrays, strict=True)


def _sorted_leaves(t: Tree, buffers: str) -> tuple[dict[str, int], list[list[int]], list[list[int]]]:
    """Each leaf by its key, and the numbers of those that are averaged and of those that are copied, by home."""
    columns = t._columns
    keys: dict[str, int] = {}
    averaged: dict[Home, list[int]] = {}
    copied: dict[Home, list[int]] = {}
    rows = t._first_rows
    for row, key, facts in zip(rows, columns.keys(rows, t._node), columns.facts(rows), strict=True):
        leaf = columns.ties.get(row, row)
        value = columns.current(leaf)
        home = columns.home(value)
        if reason := home.cannot_read(value):
            raise WalkError(f"cannot average {columns.row_text(row)}: {reason}")
        is_float = facts.spec.dtype.startswith(("float", "bfloat", "complex"))
        moves = is_float and (facts.kind == "parameter" or buffers == "average")
        (averaged if moves else copied).setdefault(home, []).append(leaf)
        keys[key] = leaf
    if not averaged:
        raise WalkError("there is nothing to average: there are no parameters")
    return keys, list(averaged.values()), list(copied.values())
