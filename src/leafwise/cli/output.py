"""Printing results and errors."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from leafwise.core.path import escape, without_secrets

if TYPE_CHECKING:
    from leafwise.core.result import Result


def say(text: str, to: TextIO | None = None) -> None:
    """Prints one line to standard output, or to another stream, with control characters escaped."""
    print(escape(without_secrets(text)), file=to or sys.stdout)


def complain(text: str) -> None:
    """Prints an error or a warning to standard error."""
    say(f"leafwise: {text}", sys.stderr)


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
