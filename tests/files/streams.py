"""Streams arrays of files into new checkpoints, as editing does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import leafwise as lw
from leafwise.files.arrays.stored import Stored
from leafwise.files.writing.checkpoint_writer import Checkpoint, Item, write


def item_of(name: str, array: Stored) -> Item:
    return Item(name, array.spec.shape or (), array.spec.dtype, "p", (None, None), array=array)


def checkpoint_of(arrays: Mapping[str, Stored], **more: Any) -> Checkpoint:
    items = [item_of(name, array) for name, array in arrays.items()]
    return Checkpoint(items, [], [], {}, {}, {}, {"format": "pt"})._replace(**more)


def stream(
    arrays: Mapping[str, Stored],
    path: Path,
    shard_size: int | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> str:
    return write(checkpoint_of(arrays), str(path), shard_size, progress)


def stored(tree: lw.Tree) -> dict[str, Any]:
    """The arrays of an open file, by name."""
    columns = tree.columns
    return {".".join(columns.row_path(row).names): columns.row_values[row] for row in tree.rows}
