"""`leafwise verify`: every checksum of a file."""

import argparse
import sys
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import say


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "verify",
        help="compare every checksum of a checkpoint",
        description="Reads all of FILE and compares it with its checksums: those that lw.save wrote, or the CRC-32 of "
        ".npz and .pt files. Exits with 0 if all are right; with 1 if anything is damaged, has no checksum, or is a "
        "shard that is not bound to an index.",
        epilog="example: leafwise verify model.safetensors",
    )
    parser.add_argument("file", metavar="FILE", help="a checkpoint: a file, a folder of files, or a URL")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.verifying import verify
    from leafwise.errors import ChecksumError
    from leafwise.render.phrases import bytes_text, plural

    try:
        found = verify(target.file(options.file), progress=True)
    except ChecksumError as error:
        if not options.json:
            raise
        _print_json({"ok": False, "damaged": list(error.leaves), "message": str(error)})
        return 1
    ok = not found.unchecked and not found.unbound
    if options.json:
        _print_json({"ok": ok, **found._asdict()})
        return 0 if ok else 1
    which = f" ({', '.join(found.without_checksums)})" if found.without_checksums else ""
    if not found.leaves and found.unchecked:
        say(f"{options.file}: no checksums to compare with{which}; lw.save writes them", sys.stderr)
    else:
        also = f"; {plural(found.unchecked, 'leaf has', 'leaves have')} no checksum{which}" if found.unchecked else ""
        if found.unbound:
            unbound = plural(found.unbound, "shard is", "shards are")
            also += f"; {unbound} not bound to an index, and may be of another save"
        bound = f"{plural(found.bound, 'shard', 'shards')} bound to the index, " if found.bound else ""
        said = f"{plural(found.leaves, 'leaf', 'leaves')}, {bytes_text(found.bytes) or '0 B'}, {bound}ok{also}"
        say(f"{options.file}: {said}")
    return 0 if ok else 1


def _print_json(data: dict[str, Any]) -> None:
    import json

    json.dump(data, sys.stdout, indent=2)
    print()
