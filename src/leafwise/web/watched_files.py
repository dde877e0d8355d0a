"""Whether the files and models that are shown are still what they were when they were opened."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

from leafwise.core.parts import node_numbers
from leafwise.core.path import escape, shown_url
from leafwise.core.tree import Tree

_EVERY = 1.0  # seconds between two looks at the files
_MOST_NAMED = 3  # files in a warning


class WatchedFiles:
    """The files of the trees that are shown, and the parts of models: values are read again, but the tree is not."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._roots: list[Any] = [t.columns.node_objects[0] for t in trees if t.is_file]
        self._parts = [part for t in trees if not t.is_file for part in _parts(t)]
        self._lock = Lock()
        self._next = 0.0
        self._warning: str | None = None

    def warning(self) -> str | None:
        """What happened to the files since they were opened; None if nothing is known to have happened."""
        if not self._roots and not self._parts:
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
        for path, part, name, siblings in self._parts:
            if siblings.get(name) is not part:
                shown = escape(str(path()))
                return f"{shown} was replaced or removed. What you see is the old one. Start the viewer again."
        return None


def _parts(t: Tree) -> Iterator[tuple[Callable[[], Any], Any, str, dict[str, Any]]]:
    """The modules of a PyTorch model: how to get the path of each, itself, and its name among which others."""
    columns = t.columns
    for node in node_numbers(t):
        if node > 0:
            part, name = columns.node_objects[node], columns.node_names[node]
            siblings = getattr(columns.node_objects[columns.node_parents[node]], "_modules", None)
            if isinstance(siblings, dict) and siblings.get(name) is part:
                yield partial(columns.node_path, node), part, name, siblings


def _named(paths: list[str]) -> str:
    names = ", ".join(escape(os.path.basename(shown_url(path))) for path in paths[:_MOST_NAMED])
    return names + (f" and {len(paths) - _MOST_NAMED:,} more" if len(paths) > _MOST_NAMED else "")


def is_local(t: Tree) -> bool:
    """Whether the values of a tree can be read without a network."""
    return not t.is_file or bool(getattr(t.columns.node_objects[0], "is_local", True))
