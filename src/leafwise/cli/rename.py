"""The options `--rename` and `--auto`."""

import argparse
import re
from typing import Any

from leafwise.errors import Error

_HELP = r"in names of {}, replace the regular expression PATTERN with TEXT, e.g. '^module\.='; repeatable"


def add_rename(parser: Any, argument: str) -> None:
    """Adds `--rename` to a verb. It renames the leaves of this argument."""
    help_text = _HELP.format(argument)
    parser.add_argument("--rename", metavar="PATTERN=TEXT", action="append", default=[], help=help_text)


def add_auto(parser: argparse.ArgumentParser) -> None:
    """Adds `--auto` to a verb."""
    parser.add_argument("--auto", action="store_true", help="apply the renames that are certain, and list them")


def rename_argument(options: argparse.Namespace) -> Any:
    """The argument `rename=` of `lw.plan` and `lw.diff` that these options stand for."""
    if options.auto and options.rename:
        raise Error("--rename and --auto exclude each other; give one of them")
    return "auto" if options.auto else renames(options.rename) or None


def renames(texts: list[str]) -> list[tuple[re.Pattern[str], str]]:
    """Parses renames of the form `PATTERN=TEXT`."""
    parsed = []
    for pattern, replacement in (pair(text, "--rename", "PATTERN=TEXT") for text in texts):
        try:
            parsed.append((re.compile(pattern), replacement))
        except re.error as error:
            raise Error(f"--rename: {pattern!r} is not a regular expression: {error}") from error
    return parsed


def pair(text: str, option: str, form: str) -> tuple[str, str]:
    """Parses `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Error(f"{option} takes {form}, not {text!r}")
    return name, value
