"""How verbs print what they found."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafwise.iterate.grouping import Groups
    from leafwise.share.find import Ties


def show(result: "Ties | Groups", as_json: bool) -> None:
    """Prints a result: as a table fitted to the terminal, or as JSON."""
    if not as_json:
        print(result)
        return
    import json

    json.dump(result.json(), sys.stdout, indent=2)
    print()
