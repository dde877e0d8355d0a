"""`leafwise stats`: one look at every value of a model or a file."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "stats",
        help="look at every value: moments, extremes, NaN, zeros, magnitudes",
        description="Reads every value once and prints a table: mean, standard deviation, extremes, zeros, what is not "
        "finite, and a small picture of the magnitudes by powers of two. Files are read in pieces.",
        epilog="example: leafwise stats model.safetensors --where '**.weight'",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    target.add_where(parser)
    parser.add_argument("--no-histogram", action="store_true", help="leave out the magnitudes, which is faster")
    lines = parser.add_mutually_exclusive_group()
    same = "a line for all leaves whose paths begin with the same N steps"
    lines.add_argument("--depth", type=target.depth, metavar="N", help=same)
    lines.add_argument("--full", action="store_true", help="a line for every leaf, however many there are")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table: every leaf, and the total")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.inspect.stats.statistics import stats

    selection = target.selected(options.target, options.where)
    measured = stats(selection, histogram=not options.no_histogram, progress=True)
    show(measured, options.json, depth=options.depth, full=options.full)
    return 0
