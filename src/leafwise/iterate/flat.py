"""`lw.flat`: the trainable leaves as one vector, and their gradients as another."""

from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from leafwise.core.capabilities.packing import DictSlot, PackedPart, Packing
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, offer
from leafwise.core.memory import Op
from leafwise.core.path import escape
from leafwise.core.tree import Tree, tree
from leafwise.errors import WalkError, WriteError


class FlatPart:
    """The leaves of one dtype on one device. `slices` says where each lies in `values` and `grads`."""

    def __init__(self, columns: Columns, leaves: list[int], packed: PackedPart) -> None:
        self._columns, self.leaves, self.packed = columns, leaves, packed

    @property
    def values(self) -> Any:
        """The vector of values: what is written there, the leaves hold."""
        return self.packed.values(self._moved)

    @property
    def grads(self) -> Any:
        """The vector of gradients."""
        return self.packed.grads(self._moved)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """For each leaf, by its path, its place in the vectors."""
        keys = self._columns.keys([self.leaves[one] for one in self.packed.order])
        places = zip(keys, self.packed.starts, self.packed.sizes, strict=True)
        return {key: slice(start, start + size) for key, start, size in places}

    def check(self) -> None:
        """Looks at every leaf and every gradient, however many there are."""
        self.packed.values(self._moved, full=True)
        self.packed.grads(self._moved, full=True)

    def _moved(self, number: int) -> Exception:
        return WriteError(
            f"{self._columns.row_text(self.leaves[number])} no longer lies in this vector: the model was moved or "
            "cast, a parameter or module was replaced or frozen, or it was made flat again; call lw.flat(model) again"
        )


class Flat:
    """A model whose trainable leaves are views of one vector; see `lw.flat`.

    `values` and `grads` are the vectors. A model of several dtypes or devices has several: `parts`, each with `values`,
    `grads` and `slices`. `undo()` gives every leaf memory of its own again.
    """

    def __init__(self, t: Tree, parts: list[FlatPart], followers: "list[_Follower]") -> None:
        self._tree = t
        self._followers = followers
        self._parts = tuple(parts)
        self._undone = False

    @property
    def parts(self) -> tuple[FlatPart, ...]:
        if self._undone:
            raise WriteError("this was undone; call lw.flat(model) again")
        return self._parts

    @property
    def values(self) -> Any:
        """The vector of values: what is written there, the leaves hold."""
        return self._only.values

    @property
    def grads(self) -> Any:
        """The vector of gradients. A leaf that has none, as after `zero_grad()`, has zeros here."""
        return self._only.grads

    @property
    def slices(self) -> dict[str, slice]:
        """For each leaf, by its path, its place in the vectors."""
        return self._only.slices

    @property
    def _only(self) -> FlatPart:
        if len(self.parts) != 1:
            kinds = ", ".join(str(part.packed.dtype) for part in self.parts)
            raise WalkError(f"there is a vector for each of {kinds}; go through flat.parts")
        return self.parts[0]

    def check(self) -> None:
        """Looks at every leaf and every gradient, however many there are: fetches gradients back that were replaced,
        and raises where a leaf is no longer in the vector."""
        for part in self.parts:
            part.check()

    def undo(self) -> Any:
        """Gives every leaf, and its gradient, memory of its own again; returns the model."""
        for part in self.parts:
            part.packed.undo()
        _follow(self._tree.columns, self._followers)
        self._undone = True
        return self._tree.columns.node_objects[self._tree.root]

    def __repr__(self) -> str:
        leaves = sum(len(part.leaves) for part in self._parts)
        size = sum(sum(part.packed.sizes) for part in self._parts)
        kinds = ", ".join(str(part.packed.dtype).removeprefix("torch.") for part in self._parts)
        return escape(f"<Flat{', undone' * self._undone}: {leaves:,} leaves, {size:,} parameters, {kinds}>")


# By the identity of the model, which a Flat keeps alive.
_flats: "WeakValueDictionary[int, Flat]" = WeakValueDictionary()


def flat_of(model: Any) -> Flat | None:
    """The Flat of a model that was made flat, for as long as somebody has it."""
    if isinstance(model, Flat):
        return model
    found = _flats.get(id(model))
    return None if found is None or found._undone else found


def flat(model: Any) -> Flat:
    """Puts all trainable leaves, and their gradients, into one vector each; every leaf becomes a live view.

    An optimizer is then a few vector lines, whatever the number of leaves. Parameters stay the objects they are, ties
    stay tied, state dicts stay as they were. There is one vector for each dtype and device.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> flat = lw.flat(net)
    >>> net(torch.ones(2, 4)).sum().backward()
    >>> _ = flat.values.sub_(0.1 * flat.grads)
    >>> flat.slices["2.bias"], torch.equal(flat.grads[flat.slices["2.bias"]], net[2].bias.grad)
    (slice(48, 49, None), True)
    """
    t = tree(model)
    columns = t.columns
    leaves = [
        columns.ties.get(row, row)
        for row, facts in zip(t.first_rows, columns.facts(t.first_rows), strict=True)
        if facts.kind == "parameter" and facts.spec.trainable
    ]
    _check(t, leaves)
    parts = []
    followers = _followers(t, leaves)
    for batch in columns.batches(leaves):
        slots = [_slots(columns, leaf) for leaf in batch.rows]
        for numbers, packed in batch.home.capability(Packing).pack(batch.values, slots):
            parts.append(FlatPart(columns, [batch.rows[number] for number in numbers], packed))
    _follow(columns, followers)
    made = _flats[id(columns.node_objects[t.root])] = Flat(t, parts, followers)
    return made


def _slots(columns: Columns, leaf: int) -> list[DictSlot]:
    """Where a leaf stands, under each of its names, and every node above it."""
    found = []
    for row in columns.rows_of(leaf):
        node, name = columns.row_nodes[row], columns.row_names[row]
        while node >= 0:
            owner = columns.node_objects[node]
            packing = offer(columns.home(owner), Packing)
            slot = packing.slot(owner, name) if packing is not None else None
            if slot is not None:
                found.append(slot)
            node, name = columns.node_parents[node], columns.node_names[node]
    return found


def _check(t: Tree, leaves: list[int]) -> None:
    """Raises, before anything is changed, if a leaf cannot be a view of a vector."""
    columns = t.columns
    if not leaves:
        raise WalkError("there is nothing to flatten: no leaf is trained")
    for leaf in leaves:
        value = columns.current(leaf)
        if reason := columns.home(value).capability(Packing).cannot_pack(value):
            raise WalkError(f"cannot flatten {columns.row_text(leaf)}: {reason}; nothing was changed")
    packed = set(leaves)
    for members, _ in columns.overlaps:
        if packed.intersection(members):
            names = " and ".join(columns.row_text(leaf) for leaf in members)
            raise WalkError(f"cannot flatten {names}: they share memory and are not tied; nothing was changed")
    for leaf in leaves:
        for row in columns.further_rows.get(leaf, ()):
            op = columns.row_op(row)
            if op == "view" and op.slices is None:
                raise WalkError(
                    f"cannot flatten {columns.row_text(leaf)}: {columns.row_text(row)} lies in it in a way that no "
                    "slice says; nothing was changed"
                )


class _Follower(NamedTuple):
    """An array over the memory of a leaf, that is not the array of the leaf."""

    array: Any
    of: Any
    op: Op


def _followers(t: Tree, leaves: list[int]) -> list[_Follower]:
    columns = t.columns
    found = []
    for leaf in leaves:
        first = columns.current(leaf)
        for row in columns.further_rows.get(leaf, ()):
            owner, name = columns.node_objects[columns.row_nodes[row]], columns.row_names[row]
            value = columns.current(row)
            if value is not first and not _is_view(columns.home(owner), owner, name):
                found.append(_Follower(value, first, columns.row_op(row)))
    return found


def _follow(columns: Columns, followers: list[_Follower]) -> None:
    """Leads arrays to where the leaf that they see lies now."""
    for array, of, op in followers:
        home = columns.home(array)
        home.capability(Packing).repoint(array, home.capability(Viewing).seen_through(of, op))


def _is_view(home: Home, owner: Any, name: str) -> bool:
    """Whether a home knows a leaf to be a view of a leaf elsewhere."""
    viewing = offer(home, Viewing)
    return viewing is not None and viewing.view_source(owner, name) is not None
