"""`leafwise diff`: what differs between two models or files."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.rename import add_auto, add_rename, rename_argument
from leafwise.errors import Error, QueryError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "diff",
        help="what differs between two models or files, leaf by leaf",
        description="Compares names, shapes and dtypes, then every value: what is the same in every bit, changed and "
        "by how much, cast, transposed, renamed, tied or untied, added, removed or reshaped. Files are read in pieces. "
        "Exits with 0 if nothing differs, with 1 if something does, and with 2 if there was trouble.",
        epilog="example: leafwise diff before.safetensors after.safetensors --where 'layers.**'",
    )
    parser.add_argument("a", metavar="A", help=target.HELP)
    parser.add_argument("b", metavar="B", help="what it is compared with: the same")
    target.add_where(parser)
    add_rename(parser, "of names of A: ")
    add_auto(parser)
    parser.add_argument("--structure", action="store_true", help="only names, shapes and dtypes, from headers")
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--depth", type=target.depth, metavar="N", help="open so many levels of the outline")
    lines.add_argument("--full", action="store_true", help="a line for every leaf, also those that are the same")
    lines.add_argument("--json", action="store_true", help="print JSON instead of an outline: every leaf")
    lines.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit status says it")
    parser.set_defaults(run=run, trouble=2)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.tree import tree
    from leafwise.inspect.diff.difference import RENAME_HINT, diff

    rename = rename_argument(options)
    models = [target.resolve(name) for name in (options.a, options.b)]
    if options.where is not None:
        models = [tree(model).select(options.where) for model in models]
        if not any(map(len, models)):
            raise Error(f"no leaf of {options.a} or {options.b} matches {options.where!r}")
    try:
        differences = diff(*models, rename=rename, values=not options.structure, progress=True)
    except QueryError as error:
        reason, hint, _ = str(error).partition(RENAME_HINT)
        if not hint:
            raise
        raise Error(f"{reason}say what they are called in b with --rename OLD=NEW, or try --auto") from error
    if not options.quiet:
        show(differences, options.json, depth=options.depth, full=options.full)
    return 0 if differences.same else 1
