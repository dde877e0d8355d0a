"""`leafwise groups`: the weight decay and learning rate of every leaf."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "groups",
        help="show optimizer groups, with weight decay and learning rates",
        description="Groups the trainable leaves for an optimizer by the rules lw.no_decay() and, if --layer-decay is "
        "given, lw.layer_decay(). Prints the groups, and what each rule did.",
        epilog="example: leafwise groups package.module:build --layer-decay 0.75",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_words(parser)
    target.add_where(parser)
    parser.add_argument("--lr", type=float, default=3e-4, help="the learning rate (default: %(default)g)")
    parser.add_argument(
        "--weight-decay", type=float, metavar="WD", default=0.1, help="the weight decay (default: %(default)g)"
    )
    parser.add_argument(
        "--layer-decay",
        type=float,
        metavar="FACTOR",
        help="the learning rate of each block is FACTOR times that of the next",
    )
    parser.add_argument("--blocks", metavar="GLOB", help="which nodes are blocks, if leafwise does not find them")
    parser.add_argument(
        "--wins",
        metavar="PATH",
        action="append",
        default=[],
        help="for a tied leaf, the name whose rules apply; repeatable",
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
        raise Error("--blocks needs --layer-decay")
    rules += [Rule(path, wins=True) for path in options.wins]
    grouped = groups(
        target.selected(options.target, options.where, options.words),
        rules,
        lr=options.lr,
        weight_decay=options.weight_decay,
    )
    show(grouped, options.json)
    return 0
