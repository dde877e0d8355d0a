"""`leafwise stats`: measures every value of a model or checkpoint."""

import argparse
from typing import TYPE_CHECKING, Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.workers import PATTERN, add_dask, for_each

if TYPE_CHECKING:
    from leafwise.core.work.executor_tasks import Workers


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "stats",
        help="measure every value: mean, std, min, max, NaN, zeros, magnitudes",
        description="Reads every value once and prints a table: mean, standard deviation, minimum, maximum, zeros, NaN "
        "and infinite values, and a small histogram of magnitudes by powers of two. Files are read in chunks.",
        epilog="examples: leafwise stats model.safetensors --where '**.weight'; "
        "leafwise stats 's3://bucket/runs/**' --dask tcp://host:8786",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP + PATTERN)
    target.add_words(parser)
    target.add_where(parser)
    parser.add_argument("--no-histogram", action="store_true", help="omit the magnitudes; this is faster")
    lines = parser.add_mutually_exclusive_group()
    same = "print one line for all leaves whose paths share the first N entries"
    lines.add_argument("--depth", type=target.depth, metavar="N", help=same)
    lines.add_argument("--full", action="store_true", help="print every leaf, however many there are")
    parser.add_argument("--json", action="store_true", help="print every leaf and the total as JSON")
    add_dask(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.work.fleet import Fleet
    from leafwise.inspect.stats.statistics import Stats, stats_of

    def measured(name: str, workers: "Workers | None", progress: bool = False) -> Stats:
        with target.selected(name, options.where, options.words) as selection:
            return stats_of(selection, "value", not options.no_histogram, progress, workers)

    result = for_each(options, options.target, "stats", measured)
    show(result, options.json, depth=options.depth, full=options.full)
    return int(isinstance(result, Fleet) and bool(result.errors))
