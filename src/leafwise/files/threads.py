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

    running: list[threading.Thread] = []
    interrupt: BaseException | None = None
    try:
        for _ in range(min(threads, len(tasks))):
            running.append(threading.Thread(target=run, daemon=True))
            running[-1].start()
    except BaseException as error:
        interrupt = errors[-1] = error
    for thread in running:
        while thread.is_alive():  # even after an interrupt: the threads use memory that the caller may free
            try:
                thread.join()
            except BaseException as error:
                interrupt = errors[-1] = error
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[min(errors)]
