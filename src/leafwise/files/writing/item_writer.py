"""Writes arrays into a file: from memory in pieces, and from files and devices by several threads.

Other threads may write to arrays in memory meanwhile. So their memory is read only once: it is copied, a little at a
time, and the copy is hashed and written. A saved array may then mix old and new values, but its checksums match it.
Arrays in files, and arrays of live models on a device, are written by several threads; see `streaming` and
`live_arrays`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import Count
from leafwise.errors import FileError
from leafwise.files import record
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, Strided, spec_of
from leafwise.files.checksums import ChunkHasher
from leafwise.files.record import NodeType, Role, TieRow
from leafwise.files.writing import live_arrays
from leafwise.files.writing.live_arrays import LiveArray, PlacedLive
from leafwise.files.writing.output import Output
from leafwise.files.writing.streaming import Streaming

_PIECE_BYTES = 1 << 20  # bytes that are copied, hashed and written at a time; few enough for the processor's cache


class Item(NamedTuple):
    """An array to write: its name, shape, dtype, kind and role, and its bytes in pieces of any size. If `array` is
    given, it has this shape and dtype, and is read instead of `pieces`, by several threads; so is `live`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    role: Role
    pieces: Callable[[], Iterable[Any]] = tuple
    array: Stored | None = None
    live: LiveArray | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Checkpoint(NamedTuple):
    """Everything that goes into a file. `keyed` are the nodes that are directly in a dict or a list, by name."""

    items: list[Item]
    ties: list[TieRow]
    tie_roles: list[Role]
    scalars: dict[str, Any]
    nodes: dict[str, NodeType]
    orders: dict[str, tuple[int, ...]]
    metadata: dict[str, str]
    keyed: frozenset[str] = frozenset()

    @property
    def names(self) -> set[str]:
        """The names of all arrays, also of those that are only tied to others."""
        return {item.name for item in self.items} | {name for name, _, _ in self.ties}

    def entry(self, **columns: Any) -> str:
        """The text of leafwise's entry, with further columns of `record.text_of`."""
        return record.text_of(
            ties=self.ties,
            tie_roles=self.tie_roles,
            scalars=self.scalars,
            nodes=self.nodes,
            orders=self.orders,
            **columns,
        )


class TiedCopies:
    """Tied names that are written as copies, for readers that need them. Each gets the bytes that were written for the
    array it is tied to, read back from the file: memory may have changed since."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        names = {item.name for item in checkpoint.items}
        self._of = {name: (of, op) for name, of, op in checkpoint.ties if name in names}
        self._needed = {of for of, _ in self._of.values()}
        self._places: dict[str, tuple[Output, int, Item]] = {}

    @property
    def any(self) -> bool:
        return bool(self._of)

    def holds(self, item: Item) -> bool:
        """Whether an item is a tied copy. Copies are written last."""
        return item.name in self._of

    def wrote(self, item: Item, output: Output, start: int) -> None:
        if item.name in self._needed:
            self._places[item.name] = output, start, item

    def is_written(self, item: Item) -> bool:
        of, _ = self._of.get(item.name, ("", None))
        return of in self._places and self._places[of][2].dtype == item.dtype

    def pieces(self, item: Item) -> Iterator[Any]:
        of, op = self._of[item.name]
        output, start, leaf = self._places[of]
        array = Strided(spec_of(leaf.shape, leaf.dtype), Storage(output.source(), start, leaf.nbytes))
        return (array if op == "same" else record.seen(array, op)).chunks()


class PlacedItem(NamedTuple):
    """An item, and the bytes of the file around it: those that precede its own, and those that follow."""

    item: Item
    before: bytes = b""
    after: bytes = b""


def stored_arrays(items: Iterable[Item], workers: Workers | None = None) -> Streaming:
    """What streams the items that are in files, by workers if there are any. Their checksums are compared, before or
    while they are read."""
    return Streaming(((item.name, _checked(item)) for item in items if item.array is not None), workers)


def write_items(
    output: Output, items: list[PlacedItem], copies: TiedCopies, streaming: Streaming, progress: Count
) -> list[list[str]]:
    """Writes items one after another, each between the bytes around it. Returns the checksums of the chunks of each."""
    has_live = any(placed.item.live is not None for placed in items)
    stop = output.at + sum(len(before) + item.nbytes + len(after) for item, before, after in items)
    output.expect(stop, in_threads=has_live)
    progress = output.counted(progress)
    stream_items = partial(_stream_items, streaming)

    def way(placed: PlacedItem) -> Callable[[Output, list[PlacedItem], TiedCopies, Count], list[list[str]]]:
        if placed.item.array is not None:
            return stream_items
        return _write_live if placed.item.live is not None and not copies.holds(placed.item) else _write_pieces

    digits: list[list[str]] = []
    for write, group in groupby(items, way):
        digits += write(output, list(group), copies, progress)
    return digits


def _checked(item: Item) -> Stored:
    """The stored array of an item, which must have its shape and dtype."""
    assert item.array is not None
    spec = item.array.spec
    if (spec.shape, spec.dtype) != (item.shape, item.dtype):
        raise FileError(
            f"cannot write {item.name!r}: it should be {item.dtype} of shape {item.shape} but is {spec.dtype} of shape "
            f"{spec.shape}; nothing was written"
        )
    return item.array


def _write_live(output: Output, items: list[PlacedItem], copies: TiedCopies, progress: Count) -> list[list[str]]:
    """Writes arrays of a live model, in several threads."""
    arrays = []
    for item, start in _gaps_left(output, items, copies):
        assert item.live is not None
        arrays.append(PlacedLive(item.live, item.dtype, item.nbytes, start))
    return live_arrays.write(output, arrays, progress)


def _stream_items(
    streaming: Streaming, output: Output, items: list[PlacedItem], copies: TiedCopies, progress: Count
) -> list[list[str]]:
    """Writes arrays from files, in several threads."""
    places = [(item.name, start) for item, start in _gaps_left(output, items, copies)]
    return streaming.write(output, places, progress)


def _gaps_left(output: Output, items: list[PlacedItem], copies: TiedCopies) -> list[tuple[Item, int]]:
    """Writes what is around the items, and leaves gaps for them. Returns the items, with the offset of each."""
    starts = []
    around = b""
    for item, before, after in items:
        around += before
        if around:
            output.write(around)
        starts.append((item, output.at))
        copies.wrote(item, output, output.at)
        output.skip(item.nbytes)
        around = after
    if around:
        output.write(around)
    return starts


def _write_pieces(output: Output, items: list[PlacedItem], copies: TiedCopies, progress: Count) -> list[list[str]]:
    """Writes arrays in pieces, one after another."""
    staging = _Staging(output, progress)
    digits = []
    for item, before, after in items:
        staging.add(before)
        digits.append(_write_in_pieces(output, staging, item, copies))
        staging.add(after)
    staging.flush()
    return digits


def _write_in_pieces(output: Output, staging: "_Staging", item: Item, copies: TiedCopies) -> list[str]:
    hasher = ChunkHasher()
    written, start = 0, staging.at
    pieces = item.pieces
    if copies.is_written(item):
        staging.flush()
        pieces = partial(copies.pieces, item)
    for piece in pieces():
        view = memoryview(piece).cast("B")
        written += len(view)
        while view:
            copied = staging.take(view)
            hasher.add(copied)
            staging.counted += len(copied)
            view = view[len(copied) :]
    hasher.end()
    if written != item.nbytes:
        raise FileError(
            f"cannot save {item.name!r}: it should have {item.nbytes:,} bytes but has {written:,}; nothing was saved"
        )
    copies.wrote(item, output, start)
    return hasher.checksums


class _Staging:
    """Copies bytes into a buffer, and writes the buffer when it is full."""

    def __init__(self, output: Output, progress: Count) -> None:
        self._output, self._progress = output, progress
        self._memory = memoryview(bytearray(_PIECE_BYTES))
        self._filled = 0
        self.counted = 0  # bytes of arrays among those that are in the buffer

    @property
    def at(self) -> int:
        """The offset in the file of the next bytes that are added."""
        return self._output.at + self._filled

    def add(self, data: bytes) -> None:
        """Adds bytes that belong to no array."""
        view = memoryview(data)
        while view:
            view = view[len(self.take(view)) :]

    def take(self, view: memoryview) -> memoryview:
        """Copies as many bytes as there is room for; returns the copy, which is valid until the next call."""
        if self._filled == _PIECE_BYTES:
            self.flush()
        start = self._filled
        self._filled = min(start + len(view), _PIECE_BYTES)
        copy = self._memory[start : self._filled]
        copy[:] = view[: len(copy)]
        return copy

    def flush(self) -> None:
        if self._filled:
            self._output.write(self._memory[: self._filled])
            self._progress(self.counted)
            self._filled = self.counted = 0
