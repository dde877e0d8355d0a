"""Writes files that contain nothing but arrays: npz, and MXNet's `.params`. Each array is written a chunk at a time."""

from collections.abc import Callable
from typing import Any

from leafwise.core.path import escape
from leafwise.core.work.progress import Count
from leafwise.errors import FileError, WriteError
from leafwise.files.reading import checked_reads
from leafwise.files.writing.destination import check_readable, destination
from leafwise.files.writing.item_writer import Item
from leafwise.files.writing.output import Output


def write_file(items: list[Item], path: str, progress: Count, fill: Callable[[Output, Count], None]) -> None:
    """Writes a file durably; `fill` writes its content. Values that have checksums are compared with them first, and
    the file is read back before it replaces the one that is there."""
    arrays = [(item.name, item.array) for item in items if item.array is not None]
    checked_reads.verify_arrays(arrays)
    place = destination(path)

    def check(staged: dict[str, Output]) -> None:
        check_readable(place.whole, staged, {item.name for item in items})

    # All of the file is needed to check it: what it contains is listed at its end.
    with place.transaction(None, check, reads_back=True) as transaction:
        output = transaction.open(path)
        fill(output, output.counted(progress))
        checked_reads.unchanged(storage.source for _, array in arrays for storage in array.storages())


def write_values(item: Item, write: Callable[[Any], Any], progress: Count) -> None:
    """Writes the bytes of an array, which must be as many as its shape and dtype say."""
    written = 0
    try:
        for chunk in item.pieces():
            view = memoryview(chunk).cast("B")
            write(view)
            progress(len(view))
            written += len(view)
    except WriteError as error:
        raise WriteError(f"cannot write {escape(item.name)}: {error}") from error
    if written != item.nbytes:
        raise FileError(
            f"cannot write {escape(item.name)}: it should have {item.nbytes:,} bytes but has {written:,}; "
            "nothing was written"
        )
