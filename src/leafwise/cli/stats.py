"""`leafwise stats`: measures every value of a model or checkpoint."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "stats",
        help="measure every value: mean, std, min, max, NaN, zeros, magnitudes",
        description="Reads every value once and prints a table: mean, standard deviation, minimum, maximum, zeros, NaN "
        "and infinite values, and a small histogram of magnitudes by powers of two. Files are read in chunks.",
        epilog="example: leafwise stats model.safetensors --where '**.weight'",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_words(parser)
    target.add_where(parser)
    parser.add_argument("--no-histogram", action="store_true", help="omit the magnitudes; this is faster")
    lines = parser.add_mutually_exclusive_group()
    same = "print one line for all leaves whose paths share the first N entries"
    lines.add_argument("--depth", type=target.depth, metavar="N", help=same)
    lines.add_argument("--full", action="store_true", help="print every leaf, however many there are")
    parser.add_argument("--json", action="store_true", help="print every leaf and the total as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.inspect.stats.statistics import stats

    selection = target.selected(options.target, options.where, options.words)
    measured = stats(selection, histogram=not options.no_histogram, progress=True)
    show(measured, options.json, depth=options.depth, full=options.full)
    return 0
