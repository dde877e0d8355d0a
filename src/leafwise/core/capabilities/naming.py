"""The names of leaves in the files of a model's own framework, if they are not the paths of the leaves."""

from collections.abc import Mapping
from typing import Any

from leafwise.core.capabilities import Capability


class Naming(Capability):
    """For homes whose framework names parameters in files otherwise than by their paths."""

    action = "tell the names of leaves in its own files"

    def stored_names(self, root: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """The path of the leaf for each name in a file that the framework gives another name, from the names and shapes
        of all arrays in the file. Empty if nothing has another name."""
        raise self.missing("tell the names of leaves in its own files")
