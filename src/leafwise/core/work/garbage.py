"""Fewer searches for garbage while a verb makes millions of small objects, none of which is garbage."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 1_000_000  # new objects between two searches
_lock = threading.Lock()
_blocks = 0
_usual: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Inside the block, Python looks for cycles of objects less often, in all threads. For a hundred thousand leaves,
    that would take more time than the work itself."""
    global _blocks, _usual
    with _lock:
        if not _blocks:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < _RARELY:
                gc.set_threshold(_RARELY, *_usual[1:])
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and gc.get_threshold()[0] == _RARELY:
                gc.set_threshold(*_usual)
