"""Writes a checkpoint: plain safetensors with leafwise's entry in the metadata, in one file or in shards.

The header comes first in the file, but contains the checksums, which are known last. So a gap is left for it, the
arrays are written and hashed in one pass, and the header is filled in before the file is made durable.

Other threads may write to arrays in memory meanwhile. So their memory is read only once: it is copied, a little at a
time, and the copy is hashed and written. A saved array may then mix old and new values, but its checksums match it.
Arrays in files, and arrays of live models on a device, are written by several threads; see `streaming` and
`live_arrays`.
"""

import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files import disk as local
from leafwise.files import live_arrays, record, shards
from leafwise.files.arrays import ITEM_BYTES, Storage, Stored, Strided, spec_of
from leafwise.files.checksums import CHUNK, DIGITS, ChunkHasher, checksum, count
from leafwise.files.folder import INDEX
from leafwise.files.live_arrays import LiveArray, PlacedLive
from leafwise.files.readback import check_readable
from leafwise.files.record import NodeType, Role, TieRow
from leafwise.files.safetensors import rows_of
from leafwise.files.streaming import PlacedArray, Streaming
from leafwise.files.writer import FileTransaction, Output, remove_abandoned

MAX_HEADER = 90_000_000  # bytes; other readers refuse 100 MB
_PIECE = 1 << 20  # bytes that are copied, hashed and written at a time; few enough for the processor's cache
_SHARD = "-0123456789abcdef-00001-of-00001.safetensors"  # an example of what follows the checkpoint's name


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
    """Everything that goes into a file."""

    items: list[Item]
    ties: list[TieRow]
    tie_roles: list[Role]
    scalars: dict[str, Any]
    nodes: dict[str, NodeType]
    orders: dict[str, tuple[int, ...]]
    metadata: dict[str, str]


Progress = Callable[[int], None]


def write(checkpoint: Checkpoint, path: str, shard_size: int | None, progress: Progress) -> str:
    """Writes a checkpoint durably; returns the path of the file, or of the index of the shards. If it replaces a
    checkpoint in the other layout (shards instead of one file, or one file instead of shards), the old files are
    removed once the new ones are in place."""
    copies = _TiedCopies(checkpoint)
    streaming = Streaming((item.name, _checked(item)) for item in checkpoint.items if item.array is not None)
    parts = _parts(sorted(checkpoint.items, key=copies.holds), shard_size)
    whole = os.path.realpath(path)
    folder, name = os.path.split(whole)

    def check_staged(staged: dict[str, Output]) -> None:
        arrays = {item.name for item in checkpoint.items} | {name for name, _, _ in checkpoint.ties}
        check_readable(whole, staged, arrays, checkpoint.scalars.keys())

    if len(parts) == 1:
        with FileTransaction(name, check_staged, lambda: _remove_earlier(whole, in_shards=False)) as transaction:
            _write_tensors(transaction.open(path, like=path + INDEX), checkpoint, copies, streaming, progress)
            streaming.check_sources()
        return path
    prefix = f"{_own_front(name)}{secrets.token_hex(4)}"
    names = [f"{prefix}-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
    longest = local.disk.longest_name(folder)
    for file_name in (name + INDEX, names[-1]):
        if len(os.fsencode(file_name)) > longest:
            raise FileError(
                f"cannot write {shown_file(path)} in shards: the file name {shown_file(file_name)} would be longer "
                f"than the {longest} bytes that are allowed there; use a shorter name"
            )
    if os.path.lexists(whole + INDEX) and not _is_index(whole + INDEX):
        raise FileError(
            f"cannot write {shown_file(whole + INDEX)}: a file of that name exists and is not an index of shards; "
            "save under another name, or move that file away"
        )
    like = whole + INDEX if os.path.exists(whole + INDEX) else whole
    seals = {}
    with FileTransaction(name, check_staged, lambda: _remove_earlier(whole, in_shards=True)) as transaction:
        for file_name, items in zip(names, parts, strict=True):
            part = Checkpoint(items, [], [], {}, {}, {}, checkpoint.metadata)
            seals[file_name] = _write_tensors(
                transaction.open(os.path.join(folder, file_name), like), part, copies, streaming, progress
            )
        streaming.check_sources()
        transaction.open(whole + INDEX, like).write(_index(checkpoint, seals, parts))
    return whole + INDEX if os.path.islink(path) else path + INDEX


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


def _own_front(name: str) -> str:
    """The prefix of the names of a checkpoint's shards, which no other checkpoint has: it differs for `m` and
    `m.safetensors`. Characters that are part of a path on some system, or not printable, are replaced; a long name is
    cut."""
    stem, digits = _stem_and_digits(name)
    stem = re.sub(r"[\\:\x00-\x1f\x7f\ud800-\udfff]", "_", stem)
    return f"{stem.encode()[: 255 - len(_SHARD)].decode(errors='ignore')}-{digits}"


def _stem_and_digits(name: str) -> tuple[str, str]:
    return name.removesuffix(".safetensors"), checksum(os.fsencode(name))[:8]


def _parts(items: list[Item], shard_size: int | None) -> list[list[Item]]:
    """The arrays of each file: as many as fit into the requested size and into the longest header."""
    parts: list[list[Item]] = [[]]
    size = header = 0
    for item in items:
        nbytes = item.nbytes
        row = len(json.dumps(item.name)) + 100 + 22 * len(item.shape) + DIGITS * count(nbytes, CHUNK)
        too_large = shard_size is not None and size + nbytes > shard_size
        if parts[-1] and (too_large or header + row > MAX_HEADER):
            parts.append([])
            size = header = 0
        parts[-1].append(item)
        size, header = size + nbytes, header + row
    return parts


def _index(checkpoint: Checkpoint, seals: dict[str, str], parts: list[list[Item]]) -> bytes:
    entry_text = record.text_of(
        ties=checkpoint.ties,
        tie_roles=checkpoint.tie_roles,
        scalars=checkpoint.scalars,
        nodes=checkpoint.nodes,
        orders=checkpoint.orders,
        shards=seals,
    )
    rest = {
        "metadata": {"total_size": sum(item.nbytes for item in checkpoint.items)},
        "weight_map": {item.name: name for name, items in zip(seals, parts, strict=True) for item in items},
    }
    return record.sealed(f' {_escaped(entry_text)}",{json.dumps(rest, indent=0)[1:]}\n', record.INDEX, lead=0)


def _escaped(text: str) -> str:
    """Text, escaped as in a JSON string."""
    return json.dumps(text)[1:-1]


class _TiedCopies:
    """Tied names that are written as copies, for readers that need them. Each gets the bytes that were written for the
    array it is tied to, read back from the file: memory may have changed since."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        names = {item.name for item in checkpoint.items}
        self._of = {name: (of, op) for name, of, op in checkpoint.ties if name in names}
        self._needed = {of for of, _ in self._of.values()}
        self._places: dict[str, tuple[Output, int, Item]] = {}

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


def _write_tensors(
    output: Output, checkpoint: Checkpoint, copies: _TiedCopies, streaming: Streaming, progress: Progress
) -> str:
    """Writes a file, and returns its seal: the checksum of the header, which contains the checksums of all arrays."""
    # The widest elements first, so that the offset of every array is a multiple of its element size.
    laid_out = sorted(checkpoint.items, key=lambda item: (-ITEM_BYTES[item.dtype], copies.holds(item)))
    rows = rows_of((item.name, item.dtype, item.shape, item.nbytes) for item in laid_out)
    sums = sum(count(item.nbytes, CHUNK) for item in laid_out)
    in_order = {item.name: rows[item.name] for item in checkpoint.items}
    blank = "0" * (sums * DIGITS)
    entry_text = record.text_of(
        chunk=CHUNK,
        sums=blank,
        kinds="".join(item.kind for item in laid_out),
        roles=[item.role for item in laid_out],
        ties=checkpoint.ties,
        tie_roles=checkpoint.tie_roles,
        scalars=checkpoint.scalars,
        nodes=checkpoint.nodes,
        orders=checkpoint.orders,
    )
    extra_metadata = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in checkpoint.metadata.items())
    text = json.dumps(in_order, separators=(",", ":"), ensure_ascii=False)[1:]
    before, after = _escaped(entry_text).split(blank, 1) if blank else (_escaped(entry_text), "")
    after += '"' + extra_metadata + "}" + ("," if in_order else "") + text

    def header(digits: str) -> bytes:
        return record.sealed(f" {before}{digits}{after}", record.TENSORS, lead=8, multiple=8)

    output.skip(len(header(blank)))
    if any(item.live is not None for item in laid_out):
        output.expect(output.at + sum(item.nbytes for item in laid_out))
    ways: dict[str, Callable[[Output, list[Item], _TiedCopies, Progress], list[str]]] = {
        "streamed": partial(_stream_items, streaming),
        "live": _write_live,
        "pieces": _write_items,
    }
    digits: list[str] = []
    for way, group in groupby(laid_out, lambda item: _way(item, copies)):
        digits += ways[way](output, list(group), copies, progress)
    final = header("".join(digits))
    output.fill(final, 0)
    return checksum(final)


def _way(item: Item, copies: _TiedCopies) -> str:
    """How an item is written."""
    if item.array is not None:
        return "streamed"
    return "live" if item.live is not None and not copies.holds(item) else "pieces"


def _write_live(output: Output, items: list[Item], copies: _TiedCopies, progress: Progress) -> list[str]:
    """Writes arrays of a live model, in several threads; returns the checksums of their chunks."""
    placed, start = [], output.at
    for item in items:
        assert item.live is not None
        placed.append(PlacedLive(item.live, item.dtype, item.nbytes, start))
        copies.wrote(item, output, start)
        start += item.nbytes
    output.skip(start - output.at)
    return live_arrays.write(output, placed, progress)


def _stream_items(
    streaming: Streaming, output: Output, items: list[Item], copies: _TiedCopies, progress: Progress
) -> list[str]:
    """Writes arrays from files, in several threads; returns the checksums of their chunks."""
    placed, start = [], output.at
    for item in items:
        assert item.array is not None
        placed.append(PlacedArray(item.name, item.array, start))
        copies.wrote(item, output, start)
        start += item.nbytes
    output.skip(start - output.at)
    return streaming.write(output, placed, progress)


def _write_items(output: Output, items: list[Item], copies: _TiedCopies, progress: Progress) -> list[str]:
    """Writes arrays in pieces, one after another; returns the checksums of their chunks."""
    hasher = ChunkHasher()
    staging = _Staging(output, progress)
    for item in items:
        written = 0
        start = staging.at
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
                view = view[len(copied) :]
        hasher.end()
        if written != item.nbytes:
            raise FileError(
                f"cannot save {item.name!r}: it should have {item.nbytes:,} bytes but has {written:,}; "
                "nothing was saved"
            )
        copies.wrote(item, output, start)
    staging.flush()
    return hasher.checksums


class _Staging:
    """Copies bytes into a buffer, and writes the buffer when it is full."""

    def __init__(self, output: Output, progress: Progress) -> None:
        self._output, self._progress = output, progress
        self._memory = memoryview(bytearray(_PIECE))
        self._filled = 0

    @property
    def at(self) -> int:
        """The offset in the file of the next bytes that are added."""
        return self._output.at + self._filled

    def take(self, view: memoryview) -> memoryview:
        """Copies as many bytes as there is room for; returns the copy, which is valid until the next call."""
        if self._filled == _PIECE:
            self.flush()
        start = self._filled
        self._filled = min(start + len(view), _PIECE)
        copy = self._memory[start : self._filled]
        copy[:] = view[: len(copy)]
        return copy

    def flush(self) -> None:
        if self._filled:
            self._output.write(self._memory[: self._filled])
            self._progress(self._filled)
            self._filled = 0


# -- leftovers of earlier saves ------------------------------------------------------------------------------


def _remove_earlier(path: str, in_shards: bool) -> None:
    """Removes an earlier checkpoint at this path in the other layout, and shards that no index refers to."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        if in_shards or _is_index(path + INDEX):
            local.disk.remove(os.path.join(folder, name if in_shards else name + INDEX))
    former = "-".join(_stem_and_digits(name))  # the prefix that shards had before characters were replaced
    is_left = re.compile(f"({re.escape(_own_front(name))}|{re.escape(former)}){_OWN_BACK}").fullmatch
    remove_abandoned(folder, lambda file_name: is_left(file_name) is not None, lambda: _in_use(folder))


_OWN_BACK = r"[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors"  # follows `_own_front` in the names of shards


def _in_use(folder: str) -> set[str]:
    """The shards that any index in the folder refers to; somebody may have copied an index."""
    names = local.disk.names_in(folder)
    used: set[str] = set()
    for index in names:
        if index.endswith(INDEX):
            text = _index_text(os.path.join(folder, index))
            try:
                used.update(json.loads(text)["weight_map"].values())
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                # A damaged index, or another program's. Everything that looks like the name of one of our shards
                # counts; only the end is compared, because the rest may be escaped in several ways.
                ends = {end.decode() for end in re.findall(rb"[0-9a-f]{8}" + _OWN_BACK.encode(), text)}
                used.update(name for name in names if name[-len(_SHARD) + 1 :] in ends)
    return used


def _is_index(path: str) -> bool:
    """Whether a file is an index of shards, ours or another program's, or the remains of a damaged one."""
    text = _index_text(path)
    return not text.strip() or b'"weight_map"' in text or text.startswith(record.INDEX.encode())


def _index_text(path: str) -> bytes:
    """The content of a file that has the name of an index; empty if it is missing or not a regular file. Raises if it
    cannot be read or is too large, because then the shards that it refers to are unknown."""
    try:
        file = local.disk.open(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO):
            return b""
        raise
    try:
        size = local.disk.stat(file).st_size
        if size > shards.MAX_INDEX:
            raise OSError(errno.EFBIG, "the index is too large")
        return local.disk.read(file, 0, size)
    finally:
        local.disk.close(file)
