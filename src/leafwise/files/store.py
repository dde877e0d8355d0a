"""Writes a checkpoint: plain safetensors with leafwise's entry in the metadata, in one file or in shards.

Checksums stand in the header, which comes first, and are known last: room is left for it, the arrays are written and
summed up in one pass, and the header is filled in before the file is made to last.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from leafwise.errors import FileError
from leafwise.files import disk as local
from leafwise.files import record
from leafwise.files.arrays import ITEM_BYTES
from leafwise.files.checksums import CHUNK, DIGITS, Summing, checksum, count
from leafwise.files.folder import INDEX
from leafwise.files.record import NodeType, Role, TieRow
from leafwise.files.safetensors import rows_of
from leafwise.files.writer import Output, Writing, remove_abandoned

MAX_HEADER = 90_000_000  # others refuse 100 MB
_PIECE = 8 << 20  # how much is summed up and written at a time
_SMALL = 1 << 18  # less than this is gathered before it is written


class Item(NamedTuple):
    """An array on its way to a file: what it is called, what it is, and its bytes, in pieces of any size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    role: Role
    pieces: Callable[[], Iterable[Any]]

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for axis in self.shape:
            size *= axis
        return size


class Checkpoint(NamedTuple):
    """All that goes into a file."""

    items: list[Item]
    ties: list[TieRow]
    tie_roles: list[Role]
    scalars: dict[str, Any]
    nodes: dict[str, NodeType]
    orders: dict[str, tuple[int, ...]]
    metadata: dict[str, str]


Progress = Callable[[int], None]


def write(checkpoint: Checkpoint, path: str, shard_size: int | None, progress: Progress) -> str:
    """Writes it durably; gives the path of the file, or of the index of the shards. What was saved there before in the
    other way, in shards or in one file, goes when the new one is in its place."""
    shards = _shards(checkpoint.items, shard_size)
    if len(shards) == 1:
        with Writing(lambda: _remove_earlier(path, in_shards=False)) as writing:
            _write_tensors(writing.open(path, like=path + INDEX), checkpoint, progress)
        return path
    whole = os.path.realpath(path)
    folder, name = os.path.split(whole)
    like = whole + INDEX if os.path.exists(whole + INDEX) else whole
    front = f"{_own_front(name)}{secrets.token_hex(4)}"
    names = [f"{front}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    with Writing(lambda: _remove_earlier(path, in_shards=True)) as writing:
        for its_name, items in zip(names, shards, strict=True):
            part = Checkpoint(items, [], [], {}, {}, {}, checkpoint.metadata)
            _write_tensors(writing.open(os.path.join(folder, its_name), like), part, progress)
        writing.open(whole + INDEX, like).write(_index(checkpoint, names, shards))
    return whole + INDEX if os.path.islink(path) else path + INDEX


def _own_front(name: str) -> str:
    """What the names of a checkpoint's shards begin with, and those of no other: `m` and `m.safetensors` differ."""
    return f"{name.removesuffix('.safetensors')}-{checksum(name.encode())[:8]}"


def _shards(items: list[Item], shard_size: int | None) -> list[list[Item]]:
    """The arrays of each file: as many as fit the size that was asked for, and the longest header."""
    shards: list[list[Item]] = [[]]
    size = header = 0
    for item in items:
        nbytes = item.nbytes
        row = len(json.dumps(item.name)) + 100 + 22 * len(item.shape) + DIGITS * count(nbytes, CHUNK)
        too_large = shard_size is not None and size + nbytes > shard_size
        if shards[-1] and (too_large or header + row > MAX_HEADER):
            shards.append([])
            size = header = 0
        shards[-1].append(item)
        size, header = size + nbytes, header + row
    return shards


def _index(checkpoint: Checkpoint, names: list[str], shards: list[list[Item]]) -> bytes:
    said = record.text_of(
        ties=checkpoint.ties,
        tie_roles=checkpoint.tie_roles,
        scalars=checkpoint.scalars,
        nodes=checkpoint.nodes,
        orders=checkpoint.orders,
    )
    rest = {
        "metadata": {"total_size": sum(item.nbytes for item in checkpoint.items)},
        "weight_map": {item.name: name for name, items in zip(names, shards, strict=True) for item in items},
    }
    return record.sealed(f' {_escaped(said)}",{json.dumps(rest, indent=0)[1:]}\n', record.INDEX, lead=0)


def _escaped(text: str) -> str:
    """Text as it stands in a JSON string."""
    return json.dumps(text)[1:-1]


def _write_tensors(output: Output, checkpoint: Checkpoint, progress: Progress) -> None:
    # The widest elements first, so that every array lies at a multiple of its own.
    laid_out = sorted(checkpoint.items, key=lambda item: -ITEM_BYTES[item.dtype])
    rows = rows_of((item.name, item.dtype, item.shape, item.nbytes) for item in laid_out)
    sums = sum(count(item.nbytes, CHUNK) for item in laid_out)
    in_order = {item.name: rows[item.name] for item in checkpoint.items}
    blank = "0" * (sums * DIGITS)
    said = record.text_of(
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
    more = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in checkpoint.metadata.items())
    text = json.dumps(in_order, separators=(",", ":"), ensure_ascii=False)[1:]
    before, after = _escaped(said).split(blank, 1) if blank else (_escaped(said), "")
    after += '"' + more + "}" + ("," if in_order else "") + text

    def header(digits: str) -> bytes:
        return record.sealed(f" {before}{digits}{after}", record.TENSORS, lead=8, multiple=8)

    output.skip(len(header(blank)))
    summing = Summing()
    gathered = bytearray()
    for item in laid_out:
        written = 0
        for piece in item.pieces():
            view = memoryview(piece).cast("B")
            written += len(view)
            for start in range(0, len(view), _PIECE):
                part = view[start : start + _PIECE]
                summing.add(part)
                if gathered or len(part) < _SMALL:
                    gathered += part
                    if len(gathered) < _SMALL:
                        continue
                    part = memoryview(gathered)
                output.write(part)
                progress(len(part))
                gathered = bytearray()
        summing.end()
        if written != item.nbytes:
            raise FileError(f"{item.name!r} should give {item.nbytes:,} bytes and gave {written:,}; nothing was saved")
    if gathered:
        output.write(gathered)
        progress(len(gathered))
    output.fill(header("".join(summing.found)), 0)


# -- what is left of earlier saves -------------------------------------------------------------------------


def _remove_earlier(path: str, in_shards: bool) -> None:
    """Removes what an earlier save to this path left in the other way of saving, and shards that no index names."""
    folder, name = os.path.split(os.path.realpath(path))
    with suppress(OSError):
        local.disk.remove(os.path.join(folder, name if in_shards else name + INDEX))
    shard = re.escape(_own_front(name)) + r"[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors"
    staged = rf"\.({shard}|{re.escape(name)}({re.escape(INDEX)})?)\.\d+-[0-9a-f]+\.part"
    is_left = re.compile(rf"{shard}|{staged}").fullmatch
    remove_abandoned(folder, lambda found: is_left(found) is not None, lambda: _in_use(folder))


def _in_use(folder: str) -> set[str]:
    """The files that any index in the folder names now; somebody may have copied one."""
    used: set[str] = set()
    for name in local.disk.names_in(folder):
        if name.endswith(INDEX):
            file = local.disk.open(os.path.join(folder, name))
            try:
                said = json.loads(local.disk.read(file, 0, local.disk.stat(file).st_size))
                used.update(said["weight_map"].values())
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise OSError("an index that cannot be read: what it names is not known") from error
            finally:
                local.disk.close(file)
    return used
