"""Writes a checkpoint: plain safetensors with leafwise's entry in the metadata, in one file or in shards.

The header comes first in the file, but contains the checksums, which are known last. So a gap is left for it, the
arrays are written and hashed in one pass, and the header is filled in before the file is made durable.
"""

import json
import secrets

from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import Count
from leafwise.files import record
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.checksums import CHUNK, DIGITS, checksum, count
from leafwise.files.folders.shard_names import own_prefix
from leafwise.files.formats.safetensors import rows_of
from leafwise.files.sources.folder import INDEX
from leafwise.files.writing.destination import check_readable, destination
from leafwise.files.writing.item_writer import Checkpoint, Item, PlacedItem, TiedCopies, stored_arrays, write_items
from leafwise.files.writing.output import Output
from leafwise.files.writing.streaming import Streaming

MAX_HEADER = 90_000_000  # bytes; other readers refuse 100 MB


def write(
    checkpoint: Checkpoint, path: str, shard_size: int | None, progress: Count, workers: Workers | None = None
) -> str:
    """Writes a checkpoint durably; returns the path of the file, or of the index of the shards. If it replaces a
    checkpoint in the other layout (shards instead of one file, or one file instead of shards), the old files are
    removed once the new ones are in place. If there are workers, they write arrays of files; the path must then be
    one that they reach."""
    copies = TiedCopies(checkpoint)
    streaming = stored_arrays(checkpoint.items, workers)
    parts = _parts(sorted(checkpoint.items, key=copies.holds), shard_size)
    place = destination(path)

    def check_staged(staged: dict[str, Output]) -> None:
        check_readable(place.whole, staged, checkpoint.names, checkpoint.scalars.keys())

    in_shards = len(parts) > 1
    prefix = f"{own_prefix(place.name)}{secrets.token_hex(4)}"
    names = [f"{prefix}-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
    if in_shards:
        place.check_shards(names)
    like = place.like(in_shards)

    def write_shard(shard: tuple[Output, list[Item]]) -> str:
        part = Checkpoint(shard[1], [], [], {}, {}, {}, checkpoint.metadata)
        return _write_tensors(shard[0], part, copies, streaming, progress)

    with place.transaction(in_shards, check_staged, reads_back=copies.any) as transaction:
        if in_shards:
            paths = map(place.joined, names)
            outputs = ((transaction.open(shard, like), items) for shard, items in zip(paths, parts, strict=True))
            seals = (
                list(map(write_shard, outputs)) if workers is None else workers.concurrently(write_shard, list(outputs))
            )
            streaming.check_sources()
            index = _index(checkpoint, dict(zip(names, seals, strict=True)), parts)
            transaction.open(place.whole + INDEX, like).write(index)
        else:
            _write_tensors(transaction.open(path, like), checkpoint, copies, streaming, progress)
            streaming.check_sources()
    return place.written(in_shards)


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
    rest = {
        "metadata": {"total_size": sum(item.nbytes for item in checkpoint.items)},
        "weight_map": {item.name: name for name, items in zip(seals, parts, strict=True) for item in items},
    }
    return record.sealed(
        f' {_escaped(checkpoint.entry(shards=seals))}",{json.dumps(rest, indent=0)[1:]}\n', record.INDEX, lead=0
    )


def _escaped(text: str) -> str:
    """Text, escaped as in a JSON string."""
    return json.dumps(text)[1:-1]


def _write_tensors(
    output: Output, checkpoint: Checkpoint, copies: TiedCopies, streaming: Streaming, progress: Count
) -> str:
    """Writes a file, and returns its seal: the checksum of the header, which contains the checksums of all arrays."""
    # The widest elements first, so that the offset of every array is a multiple of its element size.
    laid_out = sorted(checkpoint.items, key=lambda item: (-ITEM_BYTES[item.dtype], copies.holds(item)))
    rows = rows_of((item.name, item.dtype, item.shape, item.nbytes) for item in laid_out)
    sums = sum(count(item.nbytes, CHUNK) for item in laid_out)
    in_order = {item.name: rows[item.name] for item in checkpoint.items}
    blank = "0" * (sums * DIGITS)
    kinds, roles = "".join(item.kind for item in laid_out), [item.role for item in laid_out]
    entry_text = checkpoint.entry(chunk=CHUNK, sums=blank, kinds=kinds, roles=roles)
    extra_metadata = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in checkpoint.metadata.items())
    text = json.dumps(in_order, separators=(",", ":"), ensure_ascii=False)[1:]
    before, after = _escaped(entry_text).split(blank, 1) if blank else (_escaped(entry_text), "")
    after += '"' + extra_metadata + "}" + ("," if in_order else "") + text

    def header(digits: str) -> bytes:
        return record.sealed(f" {before}{digits}{after}", record.TENSORS, lead=8, multiple=8)

    output.skip(len(header(blank)))
    sums_of_items = write_items(output, [PlacedItem(item) for item in laid_out], copies, streaming, progress)
    final = header("".join(digits for sums_of_item in sums_of_items for digits in sums_of_item))
    output.fill(final, 0)
    return checksum(final)
