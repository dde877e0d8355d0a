"""`leafwise groups`: which leaves an optimizer would decay, and how fast each would learn."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "groups",
        help="account for what an optimizer would be given, by the ready-made rules",
        description="Puts every trainable leaf into a group by lw.no_decay(), and with --layer-decay by "
        "lw.layer_decay(), and prints which rule did what.",
        epilog="example: leafwise groups package.module:build --layer-decay 0.75",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_where(parser)
    parser.add_argument("--lr", type=float, default=3e-4, help="the learning rate (default: %(default)g)")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="the weight decay (default: %(default)g)")
    parser.add_argument(
        "--layer-decay", type=float, metavar="FACTOR", help="by how much each block learns more slowly than the next"
    )
    parser.add_argument("--blocks", metavar="GLOB", help="what the blocks are, where they are not found")
    parser.add_argument(
        "--wins", metavar="PATH", action="append", default=[], help="the name that decides for a leaf with several"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.errors import Error
    from leafwise.iterate.groups import groups
    from leafwise.iterate.presets import layer_decay, no_decay
    from leafwise.iterate.rules import Rule

    rules = [no_decay()]
    if options.layer_decay is not None:
        rules.append(layer_decay(options.layer_decay, blocks=options.blocks))
    elif options.blocks is not None:
        raise Error("--blocks belongs to --layer-decay")
    rules += [Rule(path, wins=True) for path in options.wins]
    grouped = groups(
        target.selected(options.target, options.where), rules, lr=options.lr, weight_decay=options.weight_decay
    )
    show(grouped, options.json)
    return 0
