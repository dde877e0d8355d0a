"""`lw.flat`: the trainable leaves as one vector, and their gradients as another."""

from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from leafwise.core.capabilities.packing import DictSlot, PackedPart, Packing
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, capability_or_none
from leafwise.core.memory.ops import Op
from leafwise.core.parts import check_not_gathered, check_whole_leaves, first_rows
from leafwise.core.results.result import Table
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import WalkError, WriteError


class FlatPart:
    """The vectors of one dtype on one device, for a model with several; see `lw.flat`.

    `values` and `grads` are the vectors, and `slices` has the slice of each leaf in them, by path.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1).double())
    >>> [(part.values.dtype, list(part.slices)) for part in lw.flat(model).parts]
    [(torch.float32, ['0.weight', '0.bias']), (torch.float64, ['1.weight', '1.bias'])]
    """

    def __init__(self, columns: Columns, leaves: list[int], packed: PackedPart) -> None:
        self._columns, self.leaves, self.packed = columns, leaves, packed

    @property
    def values(self) -> Any:
        """The vector of values. Writing to it changes the leaves."""
        return self.packed.values(self._moved)

    @property
    def grads(self) -> Any:
        """The vector of gradients."""
        return self.packed.grads(self._moved)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of each leaf in the vectors, by path."""
        keys = self._columns.keys([self.leaves[number] for number in self.packed.order])
        places = zip(keys, self.packed.starts, self.packed.sizes, strict=True)
        return {key: slice(start, start + size) for key, start, size in places}

    def check(self) -> None:
        """Checks every leaf and every gradient, however many there are."""
        self.packed.values(self._moved, full=True)
        self.packed.grads(self._moved, full=True)

    def _moved(self, number: int) -> Exception:
        return WriteError(
            f"{self._columns.row_text(self.leaves[number])} is no longer in this vector: the model was moved or "
            "cast, a parameter or module was replaced or frozen, or lw.flat was called again; call lw.flat(model) again"
        )


class Flat(Table, kind="flat"):
    """The result of `lw.flat`: the vectors of values and gradients of a model. Prints as a table.

    `values` and `grads` are the vectors, and `slices` has the slice of each leaf in them. If a model has several dtypes
    or devices, use `parts`: each has its own `values`, `grads` and `slices`. `undo()` gives every leaf its own memory
    again.

    >>> import torch, leafwise as lw
    >>> flat = lw.flat(torch.nn.Linear(2, 1))
    >>> flat.values.shape, flat.slices
    (torch.Size([3]), {'weight': slice(0, 2, None), 'bias': slice(2, 3, None)})
    """

    def __init__(self, t: Tree, parts: list[FlatPart], followers: "list[_Follower]") -> None:
        self.tree = t
        self._followers = followers
        self._parts = tuple(parts)
        self.is_undone = False  # whether `undo()` was called, so that the model no longer uses the vectors

    @property
    def model(self) -> Any:
        """The model that was made flat."""
        return self.tree.columns.node_objects[self.tree.root]

    @property
    def parts(self) -> tuple[FlatPart, ...]:
        """The vectors of each dtype and device."""
        if self.is_undone:
            raise WriteError("this Flat was undone; call lw.flat(model) again")
        return self._parts

    @property
    def values(self) -> Any:
        """The vector of values. Writing to it changes the leaves."""
        return self._only.values

    @property
    def grads(self) -> Any:
        """The vector of gradients. Leaves without a gradient, as after `zero_grad()`, have zeros here."""
        return self._only.grads

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of each leaf in the vectors, by path."""
        return self._only.slices

    @property
    def _only(self) -> FlatPart:
        if len(self.parts) != 1:
            kinds = ", ".join(str(part.packed.dtype) for part in self.parts)
            raise WalkError(f"there are several vectors, one each for {kinds}; use flat.parts")
        return self.parts[0]

    def check(self) -> None:
        """Checks every leaf and every gradient, however many there are. Copies gradients that were replaced back into
        the vector, and raises if a leaf is no longer in it."""
        for part in self.parts:
            part.check()

    def undo(self) -> Any:
        """Gives every leaf and its gradient their own memory again; returns the model."""
        for part in self.parts:
            part.packed.undo()
        _follow(self.tree.columns, self._followers)
        self.is_undone = True
        return self.model

    def account(self) -> list[tuple[str, dict[str, slice]]]:
        """For each vector, its dtype and the slice of each leaf. Works also after `undo()`."""
        return [(str(part.packed.dtype).removeprefix("torch."), part.slices) for part in self._parts]


# By the id of the model, which a Flat keeps alive.
_flats: "WeakValueDictionary[int, Flat]" = WeakValueDictionary()


def flat_of(model: Any) -> Flat | None:
    """The Flat of a model; None if there is none, or if the caller has dropped or undone it."""
    if isinstance(model, Flat):
        return model
    flattened = _flats.get(id(model))
    return None if flattened is None or flattened.is_undone else flattened


def flat(model: Any) -> Flat:
    """Moves all trainable leaves of a model into one vector, and their gradients into another.

    Every parameter becomes a view of the vector, so that an optimizer takes only a few lines of vector code. Parameters
    remain the same objects, ties remain tied, and state dicts do not change. There is one vector for each dtype and
    device. `flat.undo()` reverses it.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> flat = lw.flat(net)
    >>> net(torch.ones(2, 4)).sum().backward()
    >>> _ = flat.values.sub_(0.1 * flat.grads)
    >>> flat.slices["2.bias"], torch.equal(flat.grads[flat.slices["2.bias"]], net[2].bias.grad)
    (slice(48, 49, None), True)
    """
    with opened(model, "flat", live=True, action="be flattened") as t:
        check_not_gathered(t, "flatten")
        check_whole_leaves(t, "flat")
        return _flattened(t)


def _flattened(t: Tree) -> Flat:
    columns = t.columns
    leaves = [
        columns.ties.get(row, row)
        for row, facts in zip(first_rows(t), columns.facts(first_rows(t)), strict=True)
        # An array that cannot change does not know that it is trained.
        if facts.kind == "parameter" and (facts.spec.trainable or not columns.home(columns.row_values[row]).in_place)
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
    """The slots of a leaf under each of its names, and the slots of every node above it."""
    slots = []
    for row in columns.rows_of(leaf):
        node, name = columns.row_nodes[row], columns.row_names[row]
        while node >= 0:
            owner = columns.node_objects[node]
            packing = capability_or_none(columns.home(owner), Packing)
            slot = packing.slot(owner, name) if packing is not None else None
            if slot is not None:
                slots.append(slot)
            node, name = columns.node_parents[node], columns.node_names[node]
    return slots


def _check(t: Tree, leaves: list[int]) -> None:
    """Raises, before anything is changed, if a leaf cannot become a view of a vector."""
    columns = t.columns
    if not leaves:
        raise WalkError("cannot flatten the model: it has no trainable parameters")
    for leaf in leaves:
        value = columns.current(leaf)
        if reason := columns.home(value).capability(Packing).cannot_pack(value):
            raise WalkError(f"cannot flatten {columns.row_text(leaf)}: {reason}; nothing was changed")
    packed = set(leaves)
    for members, _ in columns.overlaps:
        if packed.intersection(members):
            names = " and ".join(columns.row_text(leaf) for leaf in members)
            raise WalkError(f"cannot flatten {names}: they share memory but are not tied; nothing was changed")
    for leaf in leaves:
        for row in columns.further_rows.get(leaf, ()):
            op = columns.row_op(row)
            if op == "view" and op.slices is None:
                raise WalkError(
                    f"cannot flatten {columns.row_text(leaf)}: {columns.row_text(row)} is a view of it that no slice "
                    "describes; nothing was changed"
                )


class _Follower(NamedTuple):
    """Another array over the memory of a leaf, which must move along with the leaf."""

    array: Any
    leaf_array: Any
    op: Op


def _followers(t: Tree, leaves: list[int]) -> list[_Follower]:
    columns = t.columns
    followers = []
    for leaf in leaves:
        leaf_array = columns.current(leaf)
        for row in columns.further_rows.get(leaf, ()):
            owner, name = columns.node_objects[columns.row_nodes[row]], columns.row_names[row]
            value = columns.current(row)
            if value is not leaf_array and not _is_view(columns.home(owner), owner, name):
                followers.append(_Follower(value, leaf_array, columns.row_op(row)))
    return followers


def _follow(columns: Columns, followers: list[_Follower]) -> None:
    """Points arrays to the current memory of their leaf."""
    for array, leaf_array, op in followers:
        home = columns.home(array)
        home.capability(Packing).repoint(array, home.capability(Viewing).seen_through(leaf_array, op))


def _is_view(home: Home, owner: Any, name: str) -> bool:
    """Whether the leaf with this name is a view that its home computes from another leaf."""
    viewing = capability_or_none(home, Viewing)
    return viewing is not None and viewing.view_source(owner, name) is not None
