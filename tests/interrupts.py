"""Interrupts of the main thread, which tests send from other threads when it has got somewhere."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupting() -> Iterator[Callable[..., None]]:
    """A function that interrupts the main thread once, and returns when the interrupt was raised there; with `inside`,
    it waits until the main thread runs that function.

    A signal that arrives just before the main thread waits for a lock does not end that wait, so it is sent until it
    is seen. Of the signals of one call, only the first raises an interrupt.
    """
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    lock, is_open = threading.Lock(), True
    asked = raised = 0

    def handle(*_: object) -> None:
        nonlocal raised
        if raised < asked:
            raised += 1
            raise KeyboardInterrupt

    def interrupt(inside: Callable[..., Any] | None = None) -> None:
        nonlocal asked
        while inside is not None and threading.get_ident() != main_thread and not _runs(main_thread, inside):
            time.sleep(0.01)
        asked += 1
        while True:
            with lock:  # no signal may be sent after the handler was restored
                if raised == asked or not is_open:
                    return
                signal.pthread_kill(main_thread, signal.SIGINT)
            time.sleep(0.01)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        with lock:
            is_open = False
        signal.signal(signal.SIGINT, before)


def _runs(thread: int, function: Callable[..., Any]) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
