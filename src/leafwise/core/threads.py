"""Work that several threads share."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COPIERS = min(16, os.cpu_count() or 1)  # threads that copy memory at a time
WRITERS = min(8, os.cpu_count() or 1)  # threads that write to a file at a time; more of them wait for each other


def in_order(work: Callable[[int, T], None], tasks: Sequence[T], threads: int) -> None:
    """Calls `work` for each task and its number, in several threads, which take the tasks in order. After an error, no
    task is begun; the error of the first task that failed is raised. All threads have ended by then, even after an
    interrupt: they write to files and memory that the caller may close or free."""
    numbered = iter(enumerate(tasks))
    lock = threading.Lock()
    errors: dict[int, BaseException] = {}

    def run() -> None:
        while not errors:
            with lock:
                number, task = next(numbered, (-1, None))
            if task is None:
                return
            try:
                work(number, task)
            except BaseException as error:
                errors[number] = error

    workers = [threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(tasks)))]
    interrupt: BaseException | None = None
    try:
        for worker in workers:
            worker.start()
    except BaseException as error:
        interrupt = errors[-1] = error
    for worker in workers:
        while worker.is_alive():
            try:
                worker.join()
            except BaseException as error:
                interrupt = errors[-1] = error
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[min(errors)]
