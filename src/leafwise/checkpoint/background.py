"""Saves that go on in a thread of their own."""

import atexit
import os
import sys
import threading
from collections.abc import Callable

from leafwise.core.path import escape
from leafwise.errors import FileError


class BackgroundSave:
    """A save that goes on while you do: `wait()` returns the path when it is written, or raises what went wrong.

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
        self._thread = threading.Thread(target=self._run, args=(work,), name="leafwise save")
        with _unfinished_lock:  # nobody waits for a thread that has not begun, and one that cannot begin is not listed
            self._thread.start()
            _unfinished.append(self)

    def _run(self, work: Callable[[], str]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error
        else:
            _forget(self)

    @property
    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return not self._thread.is_alive() and self._process == os.getpid()

    def wait(self) -> str:
        """Waits for the end; returns the path that was written, or raises what went wrong."""
        if self._process != os.getpid():
            raise FileError(
                f"{self.path!r} is saved by process {self._process}, from which this one was forked; wait there"
            )
        self._thread.join()
        _forget(self)
        if self._error is not None:
            raise self._error
        return self._result

    def __repr__(self) -> str:
        state = "saving" if not self.done else "failed" if self._error is not None else "saved"
        return escape(f"<Saving {self.path!r}: {state}>")


_unfinished: list[BackgroundSave] = []  # what is being written, or went wrong without anybody having been told
_unfinished_lock = threading.Lock()


def _forget(saving: BackgroundSave) -> None:
    with _unfinished_lock:
        if saving in _unfinished:
            _unfinished.remove(saving)


def finish_saves() -> None:
    """Waits for what is still being written, so that saves keep their order, and raises what went wrong there."""
    with _unfinished_lock:
        waiting = list(_unfinished)
    for saving in waiting:
        saving.wait()


@atexit.register
def _tell_at_exit() -> None:
    # The interpreter has waited for the threads.
    for saving in _unfinished:
        if saving._error is not None:
            print(escape(f"leafwise: {saving.path!r} was not saved: {saving._error}"), file=sys.stderr)


def _after_fork() -> None:
    # The threads are not there, and the lock may have been held by one.
    global _unfinished_lock
    _unfinished.clear()
    _unfinished_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
