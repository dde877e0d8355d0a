"""What `--rename` means on the command line."""

import re

from leafwise.errors import Error

HELP = r"a regular expression and what takes its place, e.g. '^module\.='; may be given several times"


def renames(given: list[str]) -> list[tuple[re.Pattern[str], str]]:
    """The rules that are given as `PATTERN=TEXT`."""
    return [_rename(text) for text in given]


def _rename(text: str) -> tuple[re.Pattern[str], str]:
    pattern, found, replacement = text.partition("=")
    if not found or not pattern:
        raise Error(f"--rename takes PATTERN=TEXT, not {text!r}")
    try:
        return re.compile(pattern), replacement
    except re.error as error:
        raise Error(f"--rename: {pattern!r} is not a regular expression: {error}") from error
