"""`leafwise diff`: what differs between two models or files."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.printing import show
from leafwise.cli.rename import HELP as RENAME_HELP
from leafwise.cli.rename import renames
from leafwise.errors import Error, QueryError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "diff",
        help="what differs between two models or files, leaf by leaf",
        description="Compares names, shapes and dtypes, then every value: what is the same in every bit, changed and "
        "by how much, cast, transposed, renamed, tied or untied, added, removed or reshaped. Files are read in pieces. "
        "Exits with 0 if nothing differs, with 1 if something does, and with 2 if there was trouble.",
        epilog="example: leafwise diff before.safetensors after.safetensors --query 'layers.**'",
    )
    parser.add_argument("a", metavar="A", help=target.HELP)
    parser.add_argument("b", metavar="B", help="what it is compared with: the same")
    parser.add_argument("--query", metavar="GLOB", help="only the leaves whose path matches, such as '**.weight'")
    parser.add_argument(
        "--rename", metavar="PATTERN=TEXT", action="append", default=[], help=f"of names of A: {RENAME_HELP}"
    )
    parser.add_argument("--auto", action="store_true", help="apply the renames that are certain, and say which")
    parser.add_argument("--structure", action="store_true", help="only names, shapes and dtypes, from headers")
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--depth", type=target.depth, metavar="N", help="open so many levels of the outline")
    lines.add_argument("--full", action="store_true", help="a line for every leaf, also those that are the same")
    lines.add_argument("--json", action="store_true", help="print JSON instead of an outline: every leaf")
    lines.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit status says it")
    parser.set_defaults(run=run, trouble=2)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.tree import tree
    from leafwise.inspect.diff import RENAME_HINT, diff

    if options.auto and options.rename:
        raise Error("give --rename or --auto, not both")
    rename: Any = "auto" if options.auto else renames(options.rename) or None
    given = [target.resolve(one) for one in (options.a, options.b)]
    if options.query is not None:
        given = [tree(one).select(options.query) for one in given]
        if not any(map(len, given)):
            raise Error(f"no leaf of {options.a} or {options.b} matches {options.query!r}")
    try:
        found = diff(*given, rename=rename, values=not options.structure, progress=True)
    except QueryError as error:
        told, hint, _ = str(error).partition(RENAME_HINT)
        if not hint:
            raise
        raise Error(f"{told}say what they are called in b with --rename OLD=NEW, or try --auto") from error
    if not options.quiet:
        show(found, options.json, depth=options.depth, full=options.full)
    return 0 if found.same else 1
