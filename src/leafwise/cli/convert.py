"""`leafwise convert`: the simplest edit, which writes any checkpoint in another format."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import caution, say
from leafwise.cli.rename import add_rename, renames
from leafwise.core.path import plural, shown_file, shown_url
from leafwise.errors import EditError, Error


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "convert",
        help="write a checkpoint as safetensors, npz, MXNet params, DCP or Orbax",
        description="Converts a checkpoint of any supported format to safetensors, npz or MXNet's .params, "
        "depending on the name of DST, or with --format dcp or --format orbax to a folder that "
        "torch.distributed.checkpoint or Orbax loads. "
        "Reads and writes in chunks. "
        "DST is replaced only when everything is written. Ties, plain values and metadata are kept; "
        "npz and .params files contain only arrays, and each tied leaf under each of its names. For "
        "other changes, see leafwise edit.",
        epilog="example: leafwise convert a.pt b.safetensors --dtype bfloat16",
    )
    parser.add_argument("source", metavar="SRC", help="a file, a folder of files, or a URL")
    parser.add_argument(
        "destination", metavar="DST", help="the file or URL to write; its name ends in .safetensors, .npz or .params"
    )
    parser.add_argument("--format", choices=["dcp", "orbax"], help="what to write into DST, which is a folder")
    parser.add_argument(
        "--shard-size", metavar="SIZE", help="write several safetensors files of at most this size: 5GB"
    )
    target.add_where(parser)
    parser.add_argument("--dtype", metavar="DTYPE", help="cast floating-point leaves to float32, bfloat16, float16, …")
    parser.add_argument(
        "--cast",
        choices=["saturate"],
        help="clamp values that are out of range for --dtype; without this option they are an error",
    )
    parser.add_argument(
        "--ties", choices=["once", "copy"], default="once", help="store tied leaves once, or under each of their names"
    )
    add_rename(parser, "SRC")
    parser.set_defaults(run=run)


@contextmanager
def _own_options() -> Iterator[None]:
    """Spells the arguments of an edit in errors as the options of this verb."""
    try:
        yield
    except EditError as error:
        lines = [line.replace("keep= ", "--where ").replace("cast= ", "--dtype ") for line in str(error).split("\n")]
        raise EditError(lines, error.problems) from error


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.editing.planning import EditOptions, prepared
    from leafwise.files.formats.format import SAFETENSORS, all_formats, format_of_suffix, suffixes_of
    from leafwise.render.phrases import bytes_text

    named = format_of_suffix(options.destination)
    if options.format is None and (named is None or (named.write is None and named is not SAFETENSORS)):
        suffixes = suffixes_of(known for known in all_formats() if known.write is not None)
        raise Error(
            f"cannot write {shown_file(options.destination)}: unknown format; use a name that ends in .safetensors, "
            f"{', '.join(suffixes[:-1])} or {suffixes[-1]}, --format dcp, or --format orbax"
        )
    if options.cast is not None and options.dtype is None:
        raise Error(f"--cast {options.cast} needs --dtype")
    edit_options = EditOptions(
        keep=options.where,
        rename=renames(options.rename) or None,
        cast=None if options.dtype is None else {"**": options.dtype},
        saturate=options.cast is not None,
        allow=("objects",),
        ties=options.ties,
        shard_size=options.shard_size,
        format=options.format,
    )
    with _own_options(), prepared(target.file(options.source), options.destination, edit_options) as job:
        job.advice = "--cast saturate uses the nearest value that fits"
        for note in job.result.notes:
            caution(note)
        job.write(progress=True)
        after = job.result.after
    leaves = plural(after.leaves, "array", "arrays")
    names = f" under {after.names:,} names" if after.names > after.leaves else ""
    values = f", {plural(after.values, 'plain value', 'plain values')}" if after.values else ""
    say(f"{leaves}{names}, {bytes_text(after.nbytes) or '0 B'}{values} → {shown_url(options.destination)}", sys.stderr)
    return 0
