"""Work in several threads. Reading, hashing and copying release Python's lock."""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = min(8, CORES)  # where each thread needs memory, or a connection
READERS = min(32, CORES)  # for local files


def in_threads(work: Callable[[Any], None], tasks: list[Any], threads: int = THREADS) -> None:
    """Calls `work` for each task, with several threads if that is faster. After an error or an interrupt, no task is
    begun; those that have begun are finished before this raises."""
    if len(tasks) < 2 or threads < 2:
        for task in tasks:
            work(task)
        return
    waiting = deque(enumerate(tasks))
    errors: dict[int, BaseException] = {}

    def run() -> None:
        while not errors:
            try:
                number, task = waiting.popleft()
            except IndexError:
                return
            try:
                work(task)
            except BaseException as error:
                errors[number] = error

    _run_all([threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(tasks)))], errors)
    if errors:
        raise errors[min(errors)]


def _run_all(threads: list[threading.Thread], errors: dict[int, BaseException]) -> None:
    """Runs threads to their end. An interrupt becomes the first error, after which they begin nothing new."""
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except BaseException as error:
        errors[-1] = error
    for thread in started:
        while thread.is_alive():  # even after an interrupt: the threads use memory that the caller may free
            try:
                thread.join()
            except BaseException as error:
                errors[-1] = error
