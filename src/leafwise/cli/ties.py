"""`leafwise ties`: lists the tied leaves of a model or checkpoint."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "ties",
        help="list tied leaves and their names",
        description="Lists every tied leaf: its names, how each name views it (such as transposed), and the "
        "bytes saved.",
        epilog="example: leafwise ties package.module:build --equal-untied",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_words(parser)
    target.add_where(parser)
    parser.add_argument(
        "--equal-untied", action="store_true", help="also list leaves that are bitwise equal but not tied"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.share.find import ties

    listing = ties(target.selected(options.target, options.where, options.words), equal_untied=options.equal_untied)
    show(listing, options.json)
    return 0
