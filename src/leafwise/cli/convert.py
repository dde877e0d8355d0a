"""`leafwise convert`: writes a checkpoint of any supported format as safetensors or npz."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from leafwise.cli import target
from leafwise.cli.output import say
from leafwise.cli.rename import add_rename, renames
from leafwise.errors import Error

if TYPE_CHECKING:
    from leafwise.core.tree import Tree


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "convert",
        help="write a checkpoint as safetensors or npz",
        description="Converts a checkpoint of any supported format to safetensors or npz, depending on the name of "
        "DST. Reads and writes in chunks. DST is replaced only when everything is written. A tied leaf is written once "
        "for each of its names.",
        epilog="example: leafwise convert a.pt b.safetensors --dtype bfloat16",
    )
    parser.add_argument("source", metavar="SRC", help="a file, a folder of files, or a URL")
    parser.add_argument("destination", metavar="DST", help="the file to write; its name ends in .safetensors or .npz")
    target.add_where(parser)
    parser.add_argument("--dtype", metavar="DTYPE", help="cast floating-point leaves to float32, bfloat16, float16, …")
    parser.add_argument(
        "--cast",
        choices=["saturate"],
        help="clamp values that are out of range for --dtype; without this option they are an error",
    )
    add_rename(parser, "SRC")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.match import Renaming
    from leafwise.core.query import Query
    from leafwise.core.tree import open as open_checkpoint
    from leafwise.files.arrays import ITEM_BYTES, Stored, Unreadable
    from leafwise.files.casts import checked_dtype
    from leafwise.files.convert import ConvertedArray, dtype_for, write_npz, write_safetensors
    from leafwise.render.phrases import bytes_text, plural
    from leafwise.render.progress import Progress

    writers = {".safetensors": write_safetensors, ".npz": write_npz}
    write = next((writer for suffix, writer in writers.items() if options.destination.endswith(suffix)), None)
    if write is None:
        raise Error(
            f"cannot write {options.destination!r}: unknown format; use a name that ends in .safetensors or .npz"
        )
    dtype = checked_dtype(options.dtype, ITEM_BYTES)
    if options.cast is not None and dtype is None:
        raise Error(f"--cast {options.cast} needs --dtype")
    new_name = Renaming(renames(options.rename))
    with open_checkpoint(target.file(options.source)) as whole:
        columns = whole.columns
        rows = whole.rows if options.where is None else Query.of(options.where).names(columns, 0, whole.rows)
        entries: dict[str, ConvertedArray] = {}
        unsaved = [row for row in rows if columns.row_kinds[columns.ties.get(row, row)] == "transient"]
        for row in rows:
            array = columns.row_values[row]
            if not isinstance(array, Stored) or row in unsaved:
                continue
            path = columns.row_path(row)
            name = new_name(".".join(path.names)) or ""
            if isinstance(array, Unreadable):
                raise Error(f"cannot convert {path}: {array.why}; use --where to convert only other leaves")
            if name in entries:
                raise Error(
                    f"cannot convert {options.source}: two leaves would be called {name!r}; rename one with --rename"
                )
            _check_name(name, options.destination)
            entries[name] = ConvertedArray(name, array, dtype_for(array, dtype), options.cast is not None)
        if not entries:
            reason = "it has no arrays" if options.where is None else f"no leaf matches {options.where!r}"
            raise Error(f"cannot convert {options.source}: {reason}")
        total = sum(entry.nbytes for entry in entries.values())
        progress = Progress(total, "converting")
        try:
            write(list(entries.values()), options.destination, _metadata(whole), progress)
        finally:
            progress.done()
        what = "not part of a state dict"
        counts = [
            (len(whole.scalars), "plain value", "plain values"),
            (len(unsaved), f"array that is {what}", f"arrays that are {what}"),
        ]
        left_out = ", ".join(plural(*count) for count in counts if count[0])
    also = f"; {left_out} left out" if left_out else ""
    say(
        f"{plural(len(entries), 'array', 'arrays')}, {bytes_text(total) or '0 B'} → {options.destination}{also}",
        sys.stderr,
    )
    return 0


def _check_name(name: str, destination: str) -> None:
    """Refuses names that the format cannot store, or would misread."""
    reserved = destination.endswith(".safetensors") and name == "__metadata__"
    if reserved or not name or "\0" in name or any("\ud800" <= char <= "\udfff" for char in name):
        raise Error(f"cannot write {name!r} to {destination}: the format does not allow this name; use --rename")


def _metadata(whole: "Tree") -> dict[str, str]:
    """The metadata of a safetensors file, which is copied."""
    metadata = getattr(whole.columns.node_objects[0], "metadata", {})
    plain = {str(key): value for key, value in metadata.items() if isinstance(value, str)}
    return plain if all(len(value) < 100_000 for value in plain.values()) else {}
