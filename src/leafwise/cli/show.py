"""`leafwise show`: draws the tree of a model or checkpoint."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.core.tree import BY
from leafwise.errors import Error


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "show",
        help="draw the tree of a model or checkpoint",
        description="Draws nodes and leaves with their shapes, dtypes, sizes and ties. From a file, only "
        "the header is read.",
        epilog="examples: leafwise show model.safetensors q_proj --depth 2; leafwise show model.safetensors --top 10; "
        "leafwise show model.safetensors --by dtype. The word show may be left out.",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_words(parser)
    target.add_where(parser)
    parser.add_argument("--depth", type=target.depth, metavar="N", help="draw N levels")
    parser.add_argument("--top", type=target.count, metavar="N", help="list the N largest leaves, or groups of --by")
    parser.add_argument(
        "--by",
        choices=BY,
        metavar="WHAT",
        help=f"print totals by one of {', '.join(BY)}; --depth is the number of entries of the path of a module",
    )
    parser.add_argument("--full", action="store_true", help="draw everything; do not fold or omit anything")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a picture")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    selection = target.selected(options.target, options.where, options.words)
    if options.by is not None:
        show(selection.by(options.by, depth=options.depth, top=options.top), options.json, full=options.full)
    elif options.top is not None:
        if options.depth is not None:
            raise Error("--top lists leaves, to which --depth does not apply; add --by module")
        show(selection.top(options.top), options.json, full=options.full)
    else:
        show(selection, options.json, depth=options.depth, full=options.full)
    return 0
