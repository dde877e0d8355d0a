"""Printing results and errors."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from leafwise.core.path import escape, without_secrets

if TYPE_CHECKING:
    from leafwise.core.results.result import Result


def say(text: str, to: TextIO | None = None) -> None:
    """Prints one line to standard output, or to another stream, with control characters escaped."""
    print(escape(without_secrets(text)), file=to or sys.stdout)


def complain(text: str) -> None:
    """Prints an error to standard error, in red if that is a terminal."""
    _report(text, 31)


def caution(text: str) -> None:
    """Prints a warning to standard error, in yellow if that is a terminal."""
    _report(text, 33)


def _report(text: str, color: int) -> None:
    from leafwise.render.terminal import Terminal

    colored = Terminal.of(sys.stderr).color
    for line in without_secrets(f"leafwise: {text}").split("\n"):  # some errors list several problems
        if colored:
            print(f"\x1b[{color:d}m{escape(line)}\x1b[0m", file=sys.stderr)
        else:
            print(escape(line), file=sys.stderr)


def show(result: "Result", as_json: bool, **options: Any) -> None:
    """Prints a result as text that fits the terminal, or as JSON."""
    if as_json:
        print_json(result.json())
        return
    from leafwise.render import for_stdout

    print(for_stdout(result, shell=True, **options))


def print_json(data: dict[str, Any]) -> None:
    """Prints data as indented JSON."""
    import json

    json.dump(data, sys.stdout, indent=2)
    print()
