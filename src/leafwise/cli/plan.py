"""`leafwise plan`: what loading a checkpoint into a model would do."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.rename import add_auto, add_rename, rename_argument
from leafwise.errors import Error


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "plan",
        help="show what loading a checkpoint into a model would do",
        description="Shows where each leaf of TARGET would get its values from, which leaves are missing in FILE, "
        "which are unexpected, and which do not fit. Reads only headers. Exits with 0 if the load would succeed, else "
        "with 1.",
        epilog="example: leafwise plan a.safetensors package.module:build --allow missing",
    )
    parser.add_argument("source", metavar="FILE", help="a checkpoint: a file, a folder of files, or a URL")
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    add_rename(parser, "FILE")
    add_auto(parser)
    parser.add_argument(
        "--allow",
        metavar="KIND",
        action="append",
        default=[],
        choices=["missing", "unexpected", "shape"],
        help="allow this kind of mismatch: missing, unexpected or shape; repeatable",
    )
    parser.add_argument(
        "--flatten",
        metavar="LEAF[=CHANNELS]",
        action="append",
        default=[],
        help="between frameworks, reorder the inputs of a leaf of TARGET, which are the flattened output of a "
        "convolution; repeatable",
    )
    parser.add_argument("--cast", action="store_true", help="cast values to the dtypes of TARGET")
    parser.add_argument("--full", action="store_true", help="print every leaf")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def flattened(texts: list[str]) -> dict[str, int | None] | None:
    """Parses `LEAF[=CHANNELS]`."""
    asked: dict[str, int | None] = {}
    for text in texts:
        name, _, channels = text.partition("=")
        if channels and not channels.isdecimal():
            raise Error(f"--flatten takes LEAF or LEAF=CHANNELS, not {text!r}")
        asked[name] = int(channels) if channels else None
    return asked or None


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.planning.planner import plan

    rename = rename_argument(options)
    source = target.file(options.source)
    planned = plan(
        target.resolve(options.target),
        source,
        rename=rename,
        allow=options.allow,
        cast=options.cast,
        flatten=flattened(options.flatten),
    )
    show(planned, options.json, full=options.full)
    return 0 if planned.holds else 1
