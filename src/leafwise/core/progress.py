"""A progress bar for long work, where it is asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def bar(total: int, label: str, shown: bool) -> Iterator[Callable[[int], None]]:
    """Counts bytes, on a terminal with a bar if `shown`, and takes it away at the end."""
    if not shown:
        yield lambda count: None
        return
    progress = import_module("leafwise.render.progress").Progress(total, label)
    try:
        yield progress
    finally:
        progress.done()
