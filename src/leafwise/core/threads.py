"""Work that several threads share. Reading, hashing and copying release Python's lock."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = min(8, CORES)  # where each thread needs memory, or a connection
READERS = min(32, CORES)  # threads that read local files at a time
COPIERS = min(16, CORES)  # threads that copy memory at a time
WRITERS = min(8, CORES)  # threads that write to a file at a time; more of them wait for each other


def in_threads(work: Callable[[T], None], tasks: Sequence[T], threads: int = THREADS) -> None:
    """Calls `work` for each task, with several threads if that is faster; see `in_order`."""
    if len(tasks) < 2 or threads < 2:
        for task in tasks:
            work(task)
    else:
        in_order(lambda number, task: work(task), tasks, threads)


def in_order(work: Callable[[int, T], None], tasks: Sequence[T], threads: int) -> None:
    """Calls `work` for each task and its number, in several threads, which take the tasks in order. After an error, no
    task is begun; the error of the first task that failed is raised. All threads have ended by then, even after an
    interrupt: they write to files and memory that the caller may close or free."""
    waiting = deque(enumerate(tasks))
    errors: dict[int, BaseException] = {}
    begun: list[threading.Event] = []  # of each thread that has begun, the event that it has ended

    def run() -> None:
        ended = threading.Event()
        begun.append(ended)
        try:
            while not errors:  # asked after the thread is listed: one that begins after an interrupt does nothing
                try:
                    number, task = waiting.popleft()
                except IndexError:
                    return
                try:
                    work(number, task)
                except BaseException as error:
                    errors[number] = error
        finally:
            ended.set()

    try:
        _start([threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(tasks)))])
    except BaseException as error:
        errors[-1] = error
    while True:
        try:
            if running := [ended for ended in begun if not ended.is_set()]:
                running[0].wait()
            elif errors or not waiting:
                break
            else:
                time.sleep(0.0001)  # the first thread has not begun yet
        except BaseException as error:
            errors[-1] = error
    if errors:
        raise errors[min(errors)]


def _start(threads: list[threading.Thread]) -> None:
    """Starts as many of the threads as the system allows, but at least one. They are not joined later: if a signal
    interrupts `Thread.join`, versions of Python before 3.13 take the thread for dead."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            if not number:
                raise
            return
