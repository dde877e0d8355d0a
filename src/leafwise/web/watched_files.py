"""Whether the files that are shown are still what they were when they were opened."""

import os
import time
from collections.abc import Sequence
from threading import Lock
from typing import Any

from leafwise.core.path import escape, shown_url
from leafwise.core.tree import Tree

_EVERY = 1.0  # seconds between two looks at the files
_MOST_NAMED = 3  # files in a warning


class WatchedFiles:
    """The files of the trees that are shown."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._roots: list[Any] = [t.columns.node_objects[0] for t in trees if t.is_file]
        self._lock = Lock()
        self._next = 0.0
        self._warning: str | None = None

    def warning(self) -> str | None:
        """What happened to the files since they were opened; None if nothing is known to have happened."""
        if not self._roots:
            return None
        with self._lock:
            if time.monotonic() >= self._next:
                self._warning = self._looked()
                self._next = time.monotonic() + _EVERY
            return self._warning

    def _looked(self) -> str | None:
        happened: dict[str, str] = {}
        for root in self._roots:
            try:
                happened |= root.changes()
            except OSError as error:
                return f"a file cannot be read any more: {escape(error.strerror or str(error))}"
        changed = [name for name, what in happened.items() if what == "changed"]
        if changed:
            return f"{_named(changed)} changed while it was shown: what you see may be wrong. Start the viewer again."
        if happened:
            gone = f"{_named(list(happened))} was removed or replaced by another file."
            return f"{gone} What you see is the file that was opened."
        return None


def _named(paths: list[str]) -> str:
    names = ", ".join(escape(os.path.basename(shown_url(path))) for path in paths[:_MOST_NAMED])
    return names + (f" and {len(paths) - _MOST_NAMED:,} more" if len(paths) > _MOST_NAMED else "")


def is_local(t: Tree) -> bool:
    """Whether the values of a tree can be read without a network."""
    return not t.is_file or bool(getattr(t.columns.node_objects[0], "is_local", True))
