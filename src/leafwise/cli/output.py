"""How verbs print their results."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from leafwise.core.path import escape, without_secrets

if TYPE_CHECKING:
    from leafwise.core.result import Result


def say(text: str, to: TextIO | None = None) -> None:
    """Prints one line, to standard output unless another stream is given, with the names in it escaped."""
    print(escape(without_secrets(text)), file=to or sys.stdout)


def complain(text: str) -> None:
    """Prints what is wrong, the way everything is printed that goes to standard error."""
    say(f"leafwise: {text}", sys.stderr)


def show(result: "Result", as_json: bool, **options: Any) -> None:
    """Prints a result: as a picture fitted to the terminal, or as JSON."""
    if as_json:
        print_json(result.json())
        return
    from leafwise.render import for_stdout

    print(for_stdout(result, **options))


def print_json(data: dict[str, Any]) -> None:
    """Prints plain data, to be read by a program or a person."""
    import json

    json.dump(data, sys.stdout, indent=2)
    print()
