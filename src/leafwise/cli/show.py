"""`leafwise show`: draws the tree of a model or checkpoint."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "show",
        help="draw the tree of a model or checkpoint",
        description="Draws nodes and leaves with their shapes, dtypes, sizes and ties. From a file, only "
        "the header is read.",
        epilog="example: leafwise show model.safetensors --where '**.weight' --depth 2",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_where(parser)
    parser.add_argument("--depth", type=target.depth, metavar="N", help="draw N levels")
    parser.add_argument("--full", action="store_true", help="draw everything; do not fold or omit anything")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a picture")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    selection = target.selected(options.target, options.where)
    show(selection, options.json, depth=options.depth, full=options.full)
    return 0
