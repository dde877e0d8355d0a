"""An optional progress bar for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def bar(total: int | None, label: str, shown: bool) -> Iterator[Callable[[int], None]]:
    """Counts bytes. With `shown`, and on a terminal, shows a bar and removes it at the end. If the total is not known,
    it shows only what is done."""
    if not shown:
        yield lambda count: None
        return
    progress = import_module("leafwise.render.progress").Progress(total, label)
    try:
        yield progress
    finally:
        progress.done()
