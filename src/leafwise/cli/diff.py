"""`leafwise diff`: compares two models or checkpoints."""

import argparse
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.rename import add_auto, add_rename, rename_argument
from leafwise.cli.workers import PATTERN, add_dask, for_each
from leafwise.errors import Error, QueryError

if TYPE_CHECKING:
    from leafwise.core.work.executor_tasks import Workers
    from leafwise.inspect.diff.difference import Diff


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "diff",
        help="compare two models or checkpoints, leaf by leaf",
        description="Compares names, shapes and dtypes, then every value. Shows which leaves are bitwise equal, "
        "changed (by how much), cast, transposed, renamed, tied, untied, added, removed or reshaped. Files are read "
        "in chunks. Exits with 0 if nothing differs, with 1 if something does, and with 2 on an error.",
        epilog="example: leafwise diff old.safetensors new.safetensors --where 'layers.**'",
    )
    parser.add_argument("a", metavar="A", help=target.HELP)
    parser.add_argument("b", metavar="B", help="what to compare it with; takes the same forms as A" + PATTERN)
    target.add_where(parser)
    add_rename(parser, "A")
    add_auto(parser)
    parser.add_argument(
        "--structure", action="store_true", help="compare only names, shapes and dtypes; reads only headers"
    )
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--depth", type=target.depth, metavar="N", help="show N levels of the outline")
    lines.add_argument("--full", action="store_true", help="print every leaf, including equal ones")
    lines.add_argument("--json", action="store_true", help="print every leaf as JSON")
    lines.add_argument("-q", "--quiet", action="store_true", help="print nothing; only set the exit status")
    add_dask(parser)
    parser.set_defaults(run=run, trouble=2)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.work.fleet import Fleet, refuse_pattern

    refuse_pattern(options.a, "diff A B")
    result = for_each(options, options.b, "diff", partial(_compared, options))
    if not options.quiet:
        show(result, options.json, depth=options.depth, full=options.full)
    if isinstance(result, Fleet):
        return 2 if result.errors else 0 if result.ok else 1
    return 0 if result.same else 1


def _compared(options: argparse.Namespace, b: str, workers: "Workers | None", progress: bool = False) -> "Diff":
    from leafwise.core.tree import tree
    from leafwise.inspect.diff.difference import RENAME_HINT, diff_of

    models = [target.resolve(name) for name in (options.a, b)]
    with ExitStack() as files:
        if options.where is not None:
            trees = [tree(model) for model in models]
            for whole in trees:
                files.callback(whole.close)
            models = [whole.select(options.where) for whole in trees]
            if not any(map(len, models)):
                raise Error(f"no leaf of {options.a} or {b} matches {options.where!r}")
        try:
            return diff_of(models[0], models[1], rename_argument(options), not options.structure, progress, workers)
        except QueryError as error:
            reason, hint, _ = str(error).partition(RENAME_HINT)
            if not hint:
                raise
            raise Error(f"{reason}give their names in B with --rename OLD=NEW, or try --auto") from error
