"""How verbs print what they found."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leafwise.core.doc import Shown


def show(result: "Shown", as_json: bool, **options: Any) -> None:
    """Prints a result: as a picture fitted to the terminal, or as JSON."""
    if as_json:
        import json

        json.dump(result.json(), sys.stdout, indent=2)
        print()
        return
    from leafwise.render import for_stdout

    print(for_stdout(result, **options))
