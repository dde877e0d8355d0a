"""An optional progress bar for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module

Count = Callable[[int], None]  # called with the number of bytes that were done since the last call

# Called with the number of bytes that were done, and the total, instead of showing a bar.
_LISTENER: ContextVar[Callable[[int, int | None], None] | None] = ContextVar("listener", default=None)


@contextmanager
def reported_to(listener: Callable[[int, int | None], None]) -> Iterator[None]:
    """Within this context, progress is reported to a function, whether a bar was asked for or not: with the bytes since
    the last call, and the total. What it raises stops the work."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def bar(total: int | None, label: str, shown: bool) -> Iterator[Count]:
    """Counts bytes. With `shown`, and on a terminal, shows a bar and removes it at the end. If the total is not known,
    it shows only what is done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(0, total)
        yield lambda count: listener(count, total)
        return
    if not shown:
        yield lambda count: None
        return
    progress = import_module("leafwise.render.progress").Progress(total, label)
    try:
        yield progress
    finally:
        progress.done()
