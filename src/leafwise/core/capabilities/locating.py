"""Which file of a checkpoint contains an array."""

from typing import Any

from leafwise.core.capabilities import Capability


class Locating(Capability):
    """The names of files. An array in memory is in none."""

    has_defaults = True

    def files_of(self, values: list[Any]) -> list[str]:
        """For each array, the name of the file with its bytes, as it was opened; if its pieces are in several files,
        the first and the number of the others; empty if it is in none."""
        return [""] * len(values)
