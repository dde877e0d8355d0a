"""`leafwise verify`: compares a checkpoint with its checksums."""

import argparse
import sys
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import print_json, say, show
from leafwise.cli.workers import PATTERN, add_dask, executor_of


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "verify",
        help="compare a checkpoint with its checksums",
        description="Reads all of FILE and compares it with its checksums: those that lw.save wrote, or the CRC-32 of "
        ".npz and .pt files. Exits with 0 if everything matches. Exits with 1 if anything is damaged, has no checksum, "
        "or is a shard that may be from another save.",
        epilog="example: leafwise verify model.safetensors",
    )
    parser.add_argument("file", metavar="FILE", help="a checkpoint: a file, a folder of files, or a URL" + PATTERN)
    parser.add_argument("--full", action="store_true", help="for a pattern, print every checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    add_dask(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.verifying import verify
    from leafwise.core.work.fleet import is_pattern
    from leafwise.errors import ChecksumError

    with executor_of(options, is_pattern(options.file)) as executor:
        if is_pattern(options.file):
            fleet = verify(options.file, progress=True, executor=executor)
            show(fleet, options.json, full=options.full)
            return 0 if fleet.ok else 1
        try:
            verified = verify(target.file(options.file), progress=True, executor=executor)
        except ChecksumError as error:
            if not options.json:
                raise
            print_json({"ok": False, "damaged": list(error.leaves), "message": str(error)})
            return 1
    if options.json:
        print_json(verified.json())
    else:
        nothing = not verified.leaves and verified.unchecked
        say(f"{options.file}: {'; '.join(verified.text().splitlines())}", sys.stderr if nothing else sys.stdout)
    return 0 if verified.ok else 1
