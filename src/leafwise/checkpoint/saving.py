"""`lw.save`: writes a model, an optimizer or a dict of them, with checksums, and replaces the old file atomically."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, overload

from leafwise.checkpoint.background import BackgroundSave, finish_saves
from leafwise.checkpoint.collecting import (
    LETTERS,
    cannot_be_a_name,
    check_circles,
    check_containers,
    plain_values_to_save,
    stored_and_tied,
)
from leafwise.checkpoint.file_names import check_name
from leafwise.checkpoint.plain_values import PlainValues, can_be_made, is_whole_content
from leafwise.checkpoint.write_arguments import byte_count, header_metadata, target_path
from leafwise.core.arguments import renamed_arguments
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import Stepping, is_optimizer
from leafwise.core.columns import Columns, Facts
from leafwise.core.dtypes import is_float
from leafwise.core.path import escape
from leafwise.core.progress import bar
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import Error, FileError, QueryError, Unsupported, WalkError, WriteError
from leafwise.files import checkpoint_writer, reader
from leafwise.files.arrays import ITEM_BYTES, Stored
from leafwise.files.casts import SATURATE, cast_pieces, checked_cast, checked_dtype
from leafwise.files.live_arrays import LiveArray
from leafwise.files.record import NodeType, TieRow
from leafwise.files.safetensors import CODES


@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors"] | None = None,
    background: Literal[False] = False,
    progress: bool = False,
) -> str: ...
@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors"] | None = None,
    background: Literal[True],
    progress: bool = False,
) -> BackgroundSave: ...
@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors"] | None = None,
    background: bool = False,
    progress: bool = False,
) -> str | BackgroundSave: ...
@renamed_arguments(obj="source", only="where")
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors"] | None = None,
    background: bool = False,
    progress: bool = False,
) -> str | BackgroundSave:
    """Saves a model, an optimizer, or a dict of models, optimizers and plain values, as a normal safetensors file.

    Returns the path that was written. Even if saving is interrupted, there is always a complete file at the path: the
    old one or the new one. Every leaf and the header get checksums, which `lw.load` and `lw.verify` compare.

    - `where` is a query: only the leaves that match are saved.
    - `shard_size` (bytes, or a string such as `"5GB"`) writes several files with an index, as Hugging Face does.
    - `dtype` casts floating-point parameters and buffers. If a value does not fit, this raises an error and the old
      file stays; with `cast="saturate"`, the nearest number that fits is used.
    - `metadata` is a dict of strings for the header.
    - `ties="copy"` stores a tied leaf under each of its names, for readers that need them all. By default it is stored
      once.
    - `format="safetensors"` writes safetensors under a name that belongs to another format, such as `model.pt`. Without
      it, these names are refused.
    - `background=True` returns a `BackgroundSave` as soon as the values are copied; its `wait()` returns the path.
    - `progress=True` shows a progress bar.

    >>> import tempfile, torch, leafwise as lw
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = lw.save({"model": model, "optimizer": optimizer, "step": 7}, f"{folder}/run.safetensors")
    ...     found = lw.open(path)
    ...     found["step"], found["model.weight"].shape, found["model.weight"].role
    (7, (2, 4), 'linear.weight')
    """
    finish_saves()
    target = target_path(path)
    check_name(target, format)
    size = None if shard_size is None else byte_count(shard_size)
    if ties not in ("once", "copy"):
        raise QueryError(f'ties= takes "once" or "copy", not {ties!r}')
    if not checked_cast(cast):
        raise QueryError('cast= takes True or "saturate", not False; to save without casting, leave out dtype=')
    if cast == "saturate" and dtype is None:
        raise QueryError('cast="saturate" needs dtype=')
    wanted = checked_dtype(dtype, CODES)
    header = header_metadata(metadata)
    with ExitStack() as files:
        t = files.enter_context(opened(source, "save"))
        collected = _collected(t, where, wanted, ties == "copy")
        collected.saturate = cast == "saturate"
        values = collected.snapshot() if background else collected.values
        checkpoint = collected.checkpoint(values, header)

        def work() -> str:
            # Verified first: damaged values must not be saved with new, valid checksums.
            named = zip(checkpoint.items, values, strict=True)
            reader.verify_arrays([(item.name, value) for item, value in named if isinstance(value, Stored)])
            with bar(sum(item.nbytes for item in checkpoint.items), "saving", progress) as count:
                return checkpoint_writer.write(checkpoint, target, size, count)

        if not background:
            return work()
        still_open = files.pop_all()  # a checkpoint that is the source is closed once it is copied

        def work_then_close() -> str:
            with still_open:
                return work()

        return BackgroundSave(target, work_then_close)


# -- what goes into the file -------------------------------------------------------------------------------


class _Array(NamedTuple):
    """A row to write: its name in the file, its facts, and its dtype in the file."""

    row: int
    name: str
    facts: Facts
    dtype: str


class _Collected:
    """Everything of a tree that goes into the file."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.arrays: list[_Array] = []
        self.ties: list[TieRow] = []
        self.tie_roles: list[Any] = []
        self.scalars: dict[str, Any] = {}
        self.nodes: dict[str, NodeType] = {}
        self.saturate = False  # whether values that do not fit into `dtype` become the nearest that do

    @property
    def values(self) -> list[Any]:
        return [self.columns.current(array.row) for array in self.arrays]

    def orders(self) -> dict[str, tuple[int, ...]]:
        """The memory layout of optimizer state that is not in C order. With another layout, an optimizer might compute
        different last bits after resuming. Parameters and buffers need none: they are loaded into existing memory."""
        orders = {}
        for array in self.arrays:
            if array.facts.kind == "state" and len(array.facts.spec.shape or ()) > 1:
                value = self.columns.current(array.row)
                order = self.columns.home(value).capability(Saving).axis_order(value)
                if order is not None:
                    orders[array.name] = order
        return orders

    def snapshot(self) -> list[Any]:
        """Copies of all values, so that later changes do not affect the file."""
        values = self.values
        for batch in self.columns.batches([array.row for array in self.arrays], values):
            saving = batch.home.capability(Saving)
            try:
                copies = saving.snapshot(batch.values)
            except Unsupported:
                for position, value in zip(batch.positions, batch.values, strict=True):  # to name the leaf
                    with self._named(self.arrays[position]):
                        saving.snapshot([value])
                raise
            for position, copy in zip(batch.positions, copies, strict=True):
                values[position] = copy
        return values

    def checkpoint(self, values: list[Any], metadata: dict[str, str]) -> checkpoint_writer.Checkpoint:
        """What is written, with these values."""
        return checkpoint_writer.Checkpoint(
            list(self._items(values)), self.ties, self.tie_roles, self.scalars, self.nodes, self.orders(), metadata
        )

    def _items(self, values: list[Any]) -> Iterable[checkpoint_writer.Item]:
        columns = self.columns
        for array, value, live in zip(self.arrays, values, self._live(values), strict=True):
            spec, kind, *_ = array.facts
            pieces = partial(self._pieces, array, columns.home(value), value)
            role = columns.row_role(array.row)
            yield checkpoint_writer.Item(
                array.name, spec.shape or (), array.dtype, LETTERS[kind], role, pieces, live=live
            )

    def _live(self, values: list[Any]) -> list[LiveArray | None]:
        """The values that several threads copy out of a device; None for others."""
        live: list[LiveArray | None] = [None] * len(values)
        for batch in self.columns.batches([array.row for array in self.arrays], values):
            extractions = batch.home.capability(Saving).extractions(batch.values)
            for position, value, extraction in zip(batch.positions, batch.values, extractions, strict=True):
                if extraction is not None:
                    array = self.arrays[position]
                    named = partial(self._named, array)
                    live[position] = LiveArray(value, extraction, array.facts.spec.dtype, self.saturate, named)
        return live

    def _pieces(self, array: _Array, home: Any, value: Any) -> Iterator[Any]:
        own = array.facts.spec.dtype
        with self._named(array):
            pieces = home.capability(Saving).pieces(value)
            yield from pieces if own == array.dtype else cast_pieces(pieces, own, array.dtype, self.saturate)
            home.capability(Saving).check_unchanged([value])

    @contextmanager
    def _named(self, array: _Array) -> Iterator[None]:
        """Adds the name of the leaf to errors."""
        try:
            yield
        except FileError:
            raise
        except Error as error:
            repair = f"; {SATURATE}" if isinstance(error, WriteError) else ""
            raise WalkError(f"cannot save {escape(self.columns.row_text(array.row))}: {error}{repair}") from error


def _collected(t: Tree, where: Any, dtype: str | None, copies: bool) -> _Collected:
    columns = t.columns
    collected = _Collected(columns)
    rows = t.rows if where is None else Query.of(where).names(columns, t.root, t.rows)
    rows = [row for row in rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]
    part = t if where is None else t.select(where)
    for row, reason in part.not_understood().items():
        raise WalkError(f"cannot save {escape(columns.row_text(row))}: {reason}")
    t.check_listed("save")
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
        _Array(row, names[row], fact, _dtype(fact, dtype)) for row, fact in zip(stored, facts, strict=True)
    ]
    for row, (source, op) in tied.items():
        collected.ties.append((names[row], names[source], op))
        collected.tie_roles.append(columns.row_role(row))
    if where is None and t.is_whole:
        values = PlainValues(t, apart=is_whole_content)
        collected.scalars = plain_values_to_save(columns, values, t.is_file)
        collected.nodes = values.node_types()
        _check_states(columns, t.root, collected.nodes)
    _check(collected)
    return collected


def _dtype(facts: Facts, asked: str | None) -> str:
    own = facts.spec.dtype
    return asked if asked is not None and facts.kind != "state" and is_float(own) else own


def _check_states(columns: Columns, below: int, types: dict[str, NodeType]) -> None:
    """Raises if the state of an optimizer contains something that `lw.load` could not rebuild."""
    keys = columns.node_keys(below)
    for node in columns.nodes_where(is_optimizer, below):
        prefix = f"{keys[node]}." if keys[node] else ""
        stepping = columns.home(columns.node_objects[node]).capability(Stepping)
        for row in range(*columns.row_ranges[node]):
            if reason := stepping.cannot_restore(columns.row_values[row]):
                raise WalkError(f"cannot save {columns.row_text(row)}: {reason}")
        for key, kind in types.items():
            if key.startswith(prefix) and key != keys[node] and not can_be_made(kind):
                raise WalkError(
                    f"cannot save {escape(key)}: leafwise cannot load a {kind.type} into the state of an optimizer"
                )


def _check(collected: _Collected) -> None:
    taken: set[str] = set(collected.scalars)
    for array in collected.arrays:
        value = collected.columns.current(array.row)
        if reason := _cannot_be_saved(array, taken) or collected.columns.home(value).cannot_read(value):
            raise WalkError(f"cannot save {escape(collected.columns.row_text(array.row))}: {reason}")
        taken.add(array.name)
    for name, _, _ in collected.ties:
        if name in collected.scalars:
            raise WalkError(f"cannot save {escape(name)}: there is a plain value with the same name")
    check_containers(collected.scalars, [array.name for array in collected.arrays])


def _cannot_be_saved(array: _Array, taken: set[str]) -> str:
    if array.facts.spec.shape is None:
        return "its shape is not known yet; run a forward pass first"
    if array.facts.spec.device == "meta":
        return "it is on meta and has no values; load or initialize the model first"
    if array.dtype not in CODES or array.dtype not in ITEM_BYTES:
        return f"safetensors cannot store {array.dtype}; cast it first"
    if array.name in taken:
        return f"something else in the file has the name {array.name!r}, too"
    return cannot_be_a_name(array.name)
