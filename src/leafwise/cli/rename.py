"""What `--rename` and `--auto` mean on the command line."""

import argparse
import re
from typing import Any

from leafwise.errors import Error

_HELP = r"a regular expression and what takes its place, e.g. '^module\.='; may be given several times"


def add_rename(parser: argparse.ArgumentParser, front: str = "") -> None:
    """Adds `--rename` to a verb, with these words in front of its help."""
    parser.add_argument("--rename", metavar="PATTERN=TEXT", action="append", default=[], help=front + _HELP)


def add_auto(parser: argparse.ArgumentParser) -> None:
    """Adds `--auto` to a verb."""
    parser.add_argument("--auto", action="store_true", help="apply the renames that are certain, and say which")


def rename_argument(options: argparse.Namespace) -> Any:
    """What `--rename` and `--auto` are as the argument `rename=` of `lw.plan` and `lw.diff`."""
    if options.auto and options.rename:
        raise Error("give --rename or --auto, not both")
    return "auto" if options.auto else renames(options.rename) or None


def renames(texts: list[str]) -> list[tuple[re.Pattern[str], str]]:
    """The renames that are written as `PATTERN=TEXT`."""
    return [_rename(text) for text in texts]


def _rename(text: str) -> tuple[re.Pattern[str], str]:
    pattern, equals, replacement = text.partition("=")
    if not equals or not pattern:
        raise Error(f"--rename takes PATTERN=TEXT, not {text!r}")
    try:
        return re.compile(pattern), replacement
    except re.error as error:
        raise Error(f"--rename: {pattern!r} is not a regular expression: {error}") from error
