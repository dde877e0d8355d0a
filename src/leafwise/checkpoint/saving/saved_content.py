"""What of a tree goes into a file, and its values."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import PlainValues, can_be_made, is_whole_content
from leafwise.checkpoint.saving.collecting import (
    LETTERS,
    cannot_be_a_name,
    cannot_store,
    check_circles,
    check_containers,
    has_no_values,
    keyed_nodes,
    plain_values_to_save,
    stored_and_tied,
)
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.columns import Columns, Facts
from leafwise.core.dtypes import is_float
from leafwise.core.home import Home
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.parts import check_listed, not_understood
from leafwise.core.path import escape
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import Error, FileError, QueryError, Unsupported, WalkError, WriteError, warn
from leafwise.files.casts import SATURATE, cast_pieces
from leafwise.files.record import NodeType, TieRow
from leafwise.files.writing.item_writer import Checkpoint, Item
from leafwise.files.writing.live_arrays import LiveArray


class SavedArray(NamedTuple):
    """A row to write: its name in the file, its facts, and its dtype in the file."""

    row: int
    name: str
    facts: Facts
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.facts.spec.shape or ()


class SavedContent:
    """Everything of a tree that goes into the file."""

    def __init__(self, columns: Columns, saturate: bool) -> None:
        self.columns = columns
        self.saturate = saturate  # whether values that do not fit into `dtype` become the nearest that do
        self.arrays: list[SavedArray] = []
        self.ties: list[TieRow] = []
        self.tie_roles: list[Any] = []
        self.scalars: dict[str, Any] = {}
        self.nodes: dict[str, NodeType] = {}
        self.keyed: frozenset[str] = frozenset()  # the nodes that are directly in a dict or a list

    @property
    def values(self) -> list[Any]:
        return [self.columns.current(array.row) for array in self.arrays]

    def orders(self) -> dict[str, tuple[int, ...]]:
        """The memory layout of optimizer state that is not in C order. With another layout, an optimizer might compute
        different last bits after resuming. Parameters and buffers need none: they are loaded into existing memory."""
        orders = {}
        for array in self.arrays:
            if array.facts.kind == "state" and len(array.shape) > 1:
                value = self.columns.current(array.row)
                order = self.columns.home(value).capability(Saving).axis_order(value)
                if order is not None:
                    orders[array.name] = order
        return orders

    def snapshot(self) -> list[Any]:
        """Copies of all values, so that later changes do not affect the file."""
        return self._copied(self.arrays, self.values)

    def _copied(self, arrays: list[SavedArray], values: list[Any]) -> list[Any]:
        for batch in self.columns.batches([array.row for array in arrays], values):
            saving = batch.home.capability(Saving)
            try:
                copies = saving.snapshot(batch.values)
            except Unsupported:
                for position, value in zip(batch.positions, batch.values, strict=True):  # to name the leaf
                    with self._named(arrays[position]):
                        saving.snapshot([value])
                raise
            for position, copy in zip(batch.positions, copies, strict=True):
                values[position] = copy
        return values

    def checkpoint(self, values: list[Any], metadata: dict[str, str]) -> Checkpoint:
        """What is written, with these values."""
        return self._checkpoint(self._items(self.arrays, values, [array.shape for array in self.arrays]), metadata)

    def described(self, metadata: dict[str, str]) -> Checkpoint:
        """What is written, without the values."""
        return self._checkpoint([self._item(array, array.shape) for array in self.arrays], metadata)

    def _checkpoint(self, items: list[Item], metadata: dict[str, str]) -> Checkpoint:
        orders = self.orders()
        return Checkpoint(items, self.ties, self.tie_roles, self.scalars, self.nodes, orders, metadata, self.keyed)

    # -- parts of arrays, for processes that save together ------------------------------------------------------

    def parts(self, array: SavedArray) -> list[LocalPart]:
        """The parts of an array that are in this process. Of an array without elements, every process has all."""
        value = self.columns.current(array.row)
        distributing = self.columns.home(value).capability(Distributing)
        if not array.facts.spec.size:
            return [LocalPart(distributing.local(value), (0,) * len(array.shape), array.shape)]
        return distributing.parts(value)

    def part_items(self, parts: list[tuple[int, LocalPart]], copied: bool) -> dict[str, list[Item]]:
        """The items for parts of arrays, which are given by number; with `copied`, of copies of their values."""
        arrays = [self.arrays[number] for number, _ in parts]
        values = [part.value for _, part in parts]
        if copied:
            values = self._copied(arrays, values)
        items: dict[str, list[Item]] = {}
        for item in self._items(arrays, values, [part.shape for _, part in parts]):
            items.setdefault(item.name, []).append(item)
        return items

    # -- items -----------------------------------------------------------------------------------------------------

    def _items(self, arrays: list[SavedArray], values: list[Any], shapes: list[tuple[int, ...]]) -> list[Item]:
        """Items for arrays or parts of them, with their values."""
        return [
            self._item(array, shape, partial(self._pieces, array, self.columns.home(value), value), live)
            for array, value, shape, live in zip(arrays, values, shapes, self._live(arrays, values), strict=True)
        ]

    def _item(
        self,
        array: SavedArray,
        shape: tuple[int, ...],
        pieces: Callable[[], Iterable[Any]] = tuple,
        live: LiveArray | None = None,
    ) -> Item:
        letter, role = LETTERS[array.facts.kind], self.columns.row_role(array.row)
        return Item(array.name, shape, array.dtype, letter, role, pieces, live=live)

    def _live(self, arrays: list[SavedArray], values: list[Any]) -> list[LiveArray | None]:
        """The values that several threads copy out of a device; None for others."""
        live: list[LiveArray | None] = [None] * len(values)
        for batch in self.columns.batches([array.row for array in arrays], values):
            extractions = batch.home.capability(Saving).extractions(batch.values)
            for position, value, extraction in zip(batch.positions, batch.values, extractions, strict=True):
                if extraction is not None:
                    array = arrays[position]
                    named = partial(self._named, array)
                    live[position] = LiveArray(value, extraction, array.facts.spec.dtype, self.saturate, named)
        return live

    def _pieces(self, array: SavedArray, home: Any, value: Any) -> Iterator[Any]:
        own = array.facts.spec.dtype
        with self._named(array):
            pieces = home.capability(Saving).pieces(value)
            yield from pieces if own == array.dtype else cast_pieces(pieces, own, array.dtype, self.saturate)
            home.capability(Saving).check_unchanged([value])

    @contextmanager
    def _named(self, array: SavedArray) -> Iterator[None]:
        """Adds the name of the leaf to errors."""
        try:
            yield
        except FileError:
            raise
        except Error as error:
            repair = f"; {SATURATE}" if isinstance(error, WriteError) else ""
            raise WalkError(f"cannot save {escape(self.columns.row_text(array.row))}: {error}{repair}") from error


def collect(
    t: Tree,
    where: Any,
    dtype: str | None,
    copies: bool,
    format_name: str | None,
    saturate: bool,
    sharded: bool = False,
) -> SavedContent:
    """What of a tree goes into a file. Raises if a leaf cannot be saved; with `sharded`, it may be sharded over
    processes."""
    columns = t.columns
    collected = SavedContent(columns, saturate)
    rows = t.rows if where is None else Query.of(where).names(columns, t.root, t.rows)
    rows = [row for row in rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]
    part = t if where is None else t.select(where)
    for row, reason in not_understood(part, sharded).items():
        raise WalkError(f"cannot save {escape(columns.row_text(row))}: {reason}")
    check_listed(t, "save")
    if where is None:
        check_circles(columns, t.root)
    if not rows and not t.is_whole and where is None:
        raise QueryError("there is nothing to save: the selection contains no leaf; nothing was saved")
    if not rows and where is not None:
        raise QueryError(f"no leaf matches where={where!r}; nothing was saved")
    stored, tied = stored_and_tied(columns, rows, copies)
    names = dict(zip(rows, columns.keys(rows, t.root), strict=True))
    facts = columns.facts(stored)
    collected.arrays = [
        SavedArray(row, names[row], fact, _dtype(fact, dtype)) for row, fact in zip(stored, facts, strict=True)
    ]
    collected.ties = [(names[row], names[source], op) for row, (source, op) in tied.items()]
    collected.tie_roles = [columns.row_role(row) for row in tied]
    if where is None and t.is_whole:
        values = PlainValues(t, apart=is_whole_content)
        collected.scalars = plain_values_to_save(columns, values, t.is_file)
        collected.nodes = values.node_types()
        _check_states(columns, t.root, collected.nodes)
        _warn_of_gradients(columns, t.root)
    if format_name == "dcp":
        collected.keyed = keyed_nodes(columns, t.root)
    _check(collected, format_name)
    return collected


def _warn_of_gradients(columns: Columns, below: int) -> None:
    """Warns if gradients are being accumulated, because files do not contain them."""
    for node in columns.optimizers(below):
        optimizer = columns.node_objects[node]
        if columns.home(optimizer).capability(Stepping).has_unused_gradients(optimizer):
            warn(
                "gradients that no optimizer.step() has used yet are not saved, so a resumed run would lack them; save "
                "after a step"
            )
            return


def _dtype(facts: Facts, asked: str | None) -> str:
    own = facts.spec.dtype
    return asked if asked is not None and facts.kind != "state" and is_float(own) else own


def _check_states(columns: Columns, below: int, types: dict[str, NodeType]) -> None:
    """Raises if the state of an optimizer contains something that `lw.load` could not rebuild."""
    keys = columns.node_keys(below)
    for node in columns.optimizers(below):
        prefix = f"{keys[node]}." if keys[node] else ""
        stepping = columns.home(columns.node_objects[node]).capability(Stepping)
        parts = set(map(id, stepping.state_of_parts(columns.node_objects[node])))
        for row in range(*columns.row_ranges[node]):
            if id(columns.row_values[row]) in parts:
                raise WalkError(
                    f"cannot save {columns.row_text(row)}: it belongs to the part of a sharded parameter in this "
                    "process, but is not sharded itself, so the state of the other processes would be lost; make it in "
                    "the optimizer with torch.zeros_like(parameter)"
                )
            if reason := stepping.cannot_restore(columns.row_values[row]):
                raise WalkError(f"cannot save {columns.row_text(row)}: {reason}")
        for key, kind in types.items():
            if key.startswith(prefix) and key != keys[node] and not can_be_made(kind):
                raise WalkError(
                    f"cannot save {escape(key)}: leafwise cannot load a {kind.type} into the state of an optimizer"
                )


def _check(collected: SavedContent, format_name: str | None) -> None:
    taken: set[str] = set(collected.scalars)
    for array in collected.arrays:
        value = collected.columns.current(array.row)
        home = collected.columns.home(value)
        reason = (
            has_no_values(array.facts.spec)
            or cannot_store(array.dtype, format_name)
            or (f"something else in the file has the name {array.name!r}, too" if array.name in taken else "")
            or cannot_be_a_name(array.name)
            or _cannot_read(home, value, array.facts)
        )
        if reason:
            raise WalkError(f"cannot save {escape(collected.columns.row_text(array.row))}: {reason}")
        taken.add(array.name)
    for name, _, _ in collected.ties:
        if name in collected.scalars:
            raise WalkError(f"cannot save {escape(name)}: there is a plain value with the same name")
    check_containers(collected.scalars, [array.name for array in collected.arrays])


def _cannot_read(home: Home, value: Any, facts: Facts) -> str:
    distributing = home.capability(Distributing)
    if facts.spec.sharding is None:
        return home.cannot_read(value)
    return distributing.cannot_use_parts(value) or home.cannot_read(distributing.local(value))
