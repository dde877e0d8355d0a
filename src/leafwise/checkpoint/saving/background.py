"""Saves that run in a background thread."""

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from leafwise.core.path import escape, shown_file
from leafwise.errors import FileError


class BackgroundSave:
    """A save that runs in the background, as `lw.save(..., background=True)` returns it.

    `wait()` waits until the file is written and returns its path; if saving failed, it raises the error.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saving = lw.save(torch.nn.Linear(4, 2), f"{folder}/model.safetensors", background=True)
    ...     saving.wait().endswith("model.safetensors"), saving.done
    (True, True)
    """

    def __init__(self, path: str, work: Callable[[], str]) -> None:
        self.path = path
        self._process = os.getpid()
        self._result = path
        self._error: BaseException | None = None
        # Not the end of the thread: after an interrupt of its `join`, Python 3.11 and 3.12 think that it has ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), name="leafwise save")
        _wait_before_exit()
        with _unfinished_lock:  # list the save only once its thread has started
            self._thread.start()
            _unfinished.append(self)

    def _run(self, work: Callable[[], str]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error
        else:
            _forget(self)
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether the save has finished, successfully or not."""
        return self._ended.is_set() and self._process == os.getpid()

    def wait(self) -> str:
        """Waits until the save is done; returns the path that was written, or raises the error."""
        if self._process != os.getpid():
            raise FileError(
                f"cannot wait for {shown_file(self.path)}: it is being saved by process {self._process}, from which "
                "this process was forked; call wait() there"
            )
        self._ended.wait()
        _forget(self)
        if self._error is not None:
            raise self._error
        return self._result

    def __repr__(self) -> str:
        state = "saving" if not self.done else "failed" if self._error is not None else "saved"
        return escape(f"<Saving {shown_file(self.path)}: {state}>")


_unfinished: list[BackgroundSave] = []  # still running, or failed without anyone having seen the error
_unfinished_lock = threading.Lock()


def _forget(saving: BackgroundSave) -> None:
    with _unfinished_lock:
        if saving in _unfinished:
            _unfinished.remove(saving)


def finish_saves() -> None:
    """Waits for saves that are still running, so that saves keep their order, and raises their errors."""
    with _unfinished_lock:
        waiting = list(_unfinished)
    for saving in waiting:
        saving.wait()


@cache
def _wait_before_exit() -> None:
    """Lets the interpreter wait for saves before it stops the pools of `concurrent.futures`, which it does before it
    waits for threads: uploads resolve host names in such a pool. Without this function of `threading`, which is not
    documented, an upload that needs a pool fails at that moment, and says so."""
    importlib.import_module("concurrent.futures.thread")  # what is registered last is called first
    register: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the interpreter is about to exit
            register(_wait_for_threads)


def _wait_for_threads() -> None:
    with _unfinished_lock:
        waiting = list(_unfinished)
    for saving in waiting:
        saving._ended.wait()


@atexit.register
def _report_at_exit() -> None:
    # The interpreter has already waited for the threads.
    for saving in _unfinished:
        if saving._error is not None:
            print(escape(f"leafwise: {shown_file(saving.path)} was not saved: {saving._error}"), file=sys.stderr)


def _after_fork() -> None:
    # A forked process has none of the threads, and one of them may have held the lock.
    global _unfinished_lock
    _unfinished.clear()
    _unfinished_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
