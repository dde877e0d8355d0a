"""How verbs print what they found."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from leafwise.core.path import escape, without_secrets

if TYPE_CHECKING:
    from leafwise.core.outline import Shown


def say(text: str, to: TextIO | None = None) -> None:
    """Prints one line, to standard output unless told otherwise, with whatever names are in it spelled out."""
    print(escape(without_secrets(text)), file=to or sys.stdout)


def complain(text: str) -> None:
    """Tells what is wrong, as everything that leafwise writes to standard error."""
    say(f"leafwise: {text}", sys.stderr)


def show(result: "Shown", as_json: bool, **options: Any) -> None:
    """Prints a result: as a picture fitted to the terminal, or as JSON."""
    if as_json:
        import json

        json.dump(result.json(), sys.stdout, indent=2)
        print()
        return
    from leafwise.render import for_stdout

    print(for_stdout(result, **options))
