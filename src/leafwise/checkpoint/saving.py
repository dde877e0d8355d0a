"""`lw.save`: writes a model, an optimizer or a dict of them, with checksums, and replaces the old file atomically."""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, overload

from leafwise.checkpoint.background import BackgroundSave, finish_saves
from leafwise.checkpoint.plain_values import PlainValues, can_be_made
from leafwise.core.arguments import renamed_arguments
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import Stepping, is_optimizer
from leafwise.core.columns import Columns, Facts
from leafwise.core.dtypes import is_float
from leafwise.core.memory import SAME, Op
from leafwise.core.opaque import Opaque
from leafwise.core.path import escape, shown_file
from leafwise.core.progress import bar
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import Error, FileError, QueryError, WalkError, WriteError
from leafwise.files import checkpoint_writer, reader
from leafwise.files.arrays import ITEM_BYTES, Stored
from leafwise.files.casts import SATURATE, cast_pieces, checked_cast, checked_dtype
from leafwise.files.folder import INDEX
from leafwise.files.plain_values import copied
from leafwise.files.record import KEY, KINDS, NodeType, TieRow
from leafwise.files.remote import is_url
from leafwise.files.safetensors import CODES

METADATA = "__metadata__"  # the key of the metadata of a file
_LETTERS = {"parameter": "p", "buffer": "b", "state": "s"}
assert set(_LETTERS.values()) == set(KINDS)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


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
    target = _target(path)
    size = None if shard_size is None else _bytes(shard_size)
    if ties not in ("once", "copy"):
        raise QueryError(f'ties= takes "once" or "copy", not {ties!r}')
    if not checked_cast(cast):
        raise QueryError('cast= takes True or "saturate", not False; to save without casting, leave out dtype=')
    if cast == "saturate" and dtype is None:
        raise QueryError('cast="saturate" needs dtype=')
    wanted = checked_dtype(dtype, CODES)
    header = _metadata(metadata)
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


# -- arguments ---------------------------------------------------------------------------------------------


def _target(path: Any) -> str:
    name = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name or not _can_be_a_path(name):
        given = repr(path) if isinstance(path, str | bytes | None) else type(path).__name__
        raise FileError(f"path= takes the path of a file or a folder, not {given}")
    if is_url(name):
        raise FileError(
            f"cannot save to {shown_file(name)}: lw.save writes to local files only; save to a file, then upload it"
        )
    if os.path.isdir(name):
        name = os.path.join(name, "model.safetensors")  # the name that Hugging Face looks for
    elif name.endswith(("/", os.sep)):
        raise FileError(f"cannot write {shown_file(name)}: there is no such folder")
    target = name.removesuffix(INDEX)
    if target.endswith(INDEX) or not os.path.basename(target):
        raise FileError(f"cannot write {shown_file(name)}: names that end in {INDEX} are for the index of shards")
    return target


def _can_be_a_path(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _bytes(size: int | str) -> int:
    """A size as a number of bytes.

    >>> _bytes("5GB"), _bytes("200 MiB"), _bytes(10)
    (5000000000, 209715200, 10)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?I?)B?\s*", str(size).upper())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS or match[1].count(".") > 1:
        raise QueryError(f'shard_size= takes a number of bytes or a string such as "5GB", not {size!r}')
    try:
        count = int(float(match[1]) * _UNITS[match[2]])
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise QueryError(f"shard_size= must be at least 1 byte, not {size!r}")
    return count


def _metadata(given: Any) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise QueryError(f"metadata= takes a dict of strings, not {given!r}")
    metadata = {"format": "pt", **(given or {})}  # Hugging Face does not load a file without it
    for key, value in metadata.items():
        if {type(key), type(value)} != {str}:
            raise QueryError(
                f"metadata= takes strings only, not {key!r}: {value!r}; put numbers into the dict that you save"
            )
        if not _is_text(key + value):
            raise QueryError(f"metadata= {key!a} contains an unpaired surrogate, which cannot be written as UTF-8")
        if key == KEY:
            raise QueryError(f"the metadata key {KEY!r} is reserved for leafwise; choose another key")
    return metadata


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


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
            except Error:
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
        for array, value in zip(self.arrays, values, strict=True):
            spec, kind, _ = array.facts
            pieces = partial(self._pieces, array, columns.home(value), value)
            role = columns.row_role(array.row)
            yield checkpoint_writer.Item(array.name, spec.shape or (), array.dtype, _LETTERS[kind], role, pieces)

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
        _check_circles(columns, t.root)
    if not rows and not t.is_whole and where is None:
        raise QueryError("there is nothing to save: the selection contains no leaf; nothing was saved")
    if not rows and where is not None:
        raise QueryError(f"no leaf matches where={where!r}; nothing was saved")
    stored, tied = _stored(columns, rows, copies)
    names = dict(zip(rows, columns.keys(rows, t.root), strict=True))
    facts = columns.facts(stored)
    collected.arrays = [
        _Array(row, names[row], fact, _dtype(fact, dtype)) for row, fact in zip(stored, facts, strict=True)
    ]
    for row, (source, op) in tied.items():
        collected.ties.append((names[row], names[source], op))
        collected.tie_roles.append(columns.row_role(row))
    if where is None and t.is_whole:
        values = PlainValues(t)
        collected.scalars = _scalars(columns, values, t.is_file)
        collected.nodes = values.node_types()
        _check_states(columns, t.root, collected.nodes)
    _check(collected)
    return collected


def _stored(columns: Columns, rows: list[int], copies: bool) -> tuple[list[int], dict[int, tuple[int, Op]]]:
    """The rows to write; and those that are not written, because they are other names of rows that are."""
    if not columns.ties:
        return rows, {}
    chosen = set(rows)
    first: dict[tuple[int, object], int] = {}  # leaf and view of it → the row that is written for it
    stored: list[int] = []
    tied: dict[int, tuple[int, Op]] = {}
    for row in rows:
        leaf = columns.ties.get(row, row)
        op = columns.row_op(row)
        # A view that slices and an order of axes cannot describe is written separately.
        seen = (op, repr(op.slices), op.order) if op.is_told else row
        if leaf in chosen and row != leaf and op.is_told:
            tied[row] = leaf, op
        elif (leaf, seen) in first:
            tied[row] = first[leaf, seen], SAME
        else:
            first[leaf, seen] = row
            stored.append(row)
    if copies:
        return rows, tied
    return stored, tied


def _dtype(facts: Facts, asked: str | None) -> str:
    own = facts.spec.dtype
    return asked if asked is not None and facts.kind != "state" and is_float(own) else own


def _scalars(columns: Columns, values: PlainValues, of_file: bool) -> dict[str, Any]:
    scalars: dict[str, Any] = {}
    for key, node, name, value in values.items:
        try:
            value = copied(value)  # so that changes during a background save do not affect the file
        except (TypeError, ValueError) as error:
            if isinstance(value, Opaque):
                raise WalkError(
                    f"cannot save {columns.scalar_path(node, name, value)}: it is {error}; save only the part that you "
                    "need, as in lw.save(t['state_dict'], path), or convert the file with leafwise convert"
                ) from error
            raise WalkError(
                f"cannot save {columns.scalar_path(node, name, value)}: leafwise does not save {error}; leave the "
                "value out, or convert it to arrays, numbers, strings, bytes, None, or lists, tuples, sets and dicts "
                "of these"
            ) from error
        if key in scalars:
            where = columns.scalar_path(node, name, value)
            raise WalkError(f"cannot save {where}: another value has the name {key!r}, too; rename one of them")
        is_file_metadata = of_file and key.partition(".")[0] == METADATA
        if not is_file_metadata and (reason := _cannot_be_a_name(key)):
            raise WalkError(f"cannot save {escape(key) or 'a value'}: {reason}")
        scalars[key] = value
    return scalars


def _check_circles(columns: Columns, below: int) -> None:
    """Raises for nodes that the walk does not list, because they contain themselves or are repeated too often: they
    would be missing from the file."""
    for node in sorted(node for node in columns.listed_elsewhere if below < node < columns.node_ends[below]):
        first = columns.repeats[node]
        why = "which contains it" if node < columns.node_ends[first] else "which is repeated too often to be listed"
        raise WalkError(f"cannot save {columns.node_text(node)}: it is {columns.node_text(first) or 'the root'}, {why}")


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
    _check_containers(collected)


def _check_containers(collected: _Collected) -> None:
    """Raises if something in the file has a name below that of a container, whose items have such names, too."""
    containers = [name for name, value in collected.scalars.items() if isinstance(value, list | tuple | dict) and value]
    names = sorted([*collected.scalars, *(array.name for array in collected.arrays)]) if containers else []
    for prefix in containers:
        at = bisect_left(names, f"{prefix}.")
        if at < len(names) and names[at].startswith(f"{prefix}."):
            raise WalkError(
                f"cannot save {escape(names[at])}: {escape(prefix)} is also a "
                f"{type(collected.scalars[prefix]).__name__}, whose items have such names; rename one of them"
            )


def _cannot_be_saved(array: _Array, taken: set[str]) -> str:
    if array.facts.spec.shape is None:
        return "its shape is not known yet; run a forward pass first"
    if array.facts.spec.device == "meta":
        return "it is on meta and has no values; load or initialize the model first"
    if array.dtype not in CODES or array.dtype not in ITEM_BYTES:
        return f"safetensors cannot store {array.dtype}; cast it first"
    if array.name in taken:
        return f"something else in the file has the name {array.name!r}, too"
    return _cannot_be_a_name(array.name)


def _cannot_be_a_name(name: str) -> str:
    """Why a name cannot be used in a file; empty if it can."""
    if not _is_text(name):
        return "its name contains an unpaired surrogate, which cannot be written as UTF-8"
    if name.partition(".")[0] == METADATA:
        return f"safetensors reserves the name {METADATA!r}; rename it"
    return "" if all(name.split(".")) else f"{name!r} has an empty entry, which a path cannot contain; rename it"
