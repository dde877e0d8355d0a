"""`leafwise plan`: what loading a file into a model would do, leaf by leaf."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.rename import add_auto, add_rename, rename_argument


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "plan",
        help="what loading a file into a model would do",
        description="Tells, from headers alone, where every leaf of TARGET would get its values from, which would get "
        "none, which of FILE would not be used, and what does not fit. Exits with 0 if a load would go through, or 1.",
        epilog="example: leafwise plan model.safetensors package.module:build --allow missing",
    )
    parser.add_argument("source", metavar="FILE", help="a checkpoint: a file, a folder of files, or a URL")
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    add_rename(parser)
    add_auto(parser)
    parser.add_argument(
        "--allow",
        metavar="KIND",
        action="append",
        default=[],
        choices=["missing", "unexpected", "shape"],
        help="missing, unexpected or shape; may be given several times",
    )
    parser.add_argument("--cast", action="store_true", help="allow other precisions")
    parser.add_argument("--full", action="store_true", help="leave nothing out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.checkpoint.planner import plan

    rename = rename_argument(options)
    source = target.file(options.source)
    planned = plan(target.resolve(options.target), source, rename=rename, allow=options.allow, cast=options.cast)
    show(planned, options.json, full=options.full)
    return 0 if planned.holds else 1
