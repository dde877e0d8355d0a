"""`leafwise diff`: compares two models or checkpoints."""

import argparse
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import show
from leafwise.cli.rename import add_auto, add_rename, rename_argument
from leafwise.errors import Error, QueryError


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
    parser.add_argument("b", metavar="B", help="what to compare it with; takes the same forms as A")
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
        raise Error(f"{reason}give their names in B with --rename OLD=NEW, or try --auto") from error
    if not options.quiet:
        show(differences, options.json, depth=options.depth, full=options.full)
    return 0 if differences.same else 1
