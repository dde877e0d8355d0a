"""Work that is cut into pieces, and that several threads share. Reading, hashing and copying release Python's lock."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = min(8, CORES)  # where each thread needs memory, or a connection
READERS = min(32, CORES)  # threads that read local files at a time
COPIERS = min(16, CORES)  # threads that copy memory at a time
CONNECTIONS = 8  # threads that wait for a server at a time, whatever the number of cores
WRITERS = min(8, CORES)  # threads that write to a file at a time; more of them wait for each other


class _Here(threading.local):
    is_alone = False  # whether this thread may not start others


_here = _Here()


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block, this thread does all work by itself: others like it use the other cores."""
    before, _here.is_alone = _here.is_alone, True
    try:
        yield
    finally:
        _here.is_alone = before


def is_alone() -> bool:
    """Whether this thread does all work by itself."""
    return _here.is_alone


def in_threads(work: Callable[[T], None], tasks: Sequence[T], threads: int = THREADS) -> None:
    """Calls `work` for each task, with several threads if that is faster; see `in_order`."""
    if len(tasks) < 2 or threads < 2 or is_alone():
        for task in tasks:
            work(task)
    else:
        in_order(lambda number, task: work(task), tasks, threads)


def in_order(work: Callable[[int, T], None], tasks: Sequence[T], threads: int) -> None:
    """Calls `work` for each task and its number, in several threads, which take the tasks in order. After an error, no
    task is begun; the error of the first task that failed is raised. All threads have ended by then, even after an
    interrupt: they write to files and memory that the caller may close or free."""
    if is_alone():
        for number, task in enumerate(tasks):
            work(number, task)
        return
    shared = _SharedWork(work, tasks)
    workers = [threading.Thread(target=shared.run, daemon=True) for _ in range(min(threads, len(tasks)))]
    is_started = is_done = False
    while not is_done:
        try:
            if not is_started:
                is_started = True  # also after an interrupt
                _start(workers)
            shared.wait()
            for worker in workers:  # so that no thread is left, though none has anything to do any more
                if worker.is_alive():
                    worker.join()
            is_done = True
        except BaseException as error:  # an interrupt, after which threads begin nothing new
            shared.errors[-1] = error
    if shared.errors:
        raise shared.errors[min(shared.errors)]


class _SharedWork(Generic[T]):
    """Tasks that threads take. Joining the threads is not enough to know that they have ended: if a signal interrupts
    `Thread.join`, versions of Python before 3.13 take the thread for dead."""

    def __init__(self, work: Callable[[int, T], None], tasks: Sequence[T]) -> None:
        self._work = work
        self._waiting = deque(enumerate(tasks))
        self._begun: list[threading.Event] = []  # of each thread that has begun, the event that it has ended
        self.errors: dict[int, BaseException] = {}  # by number of the task; -1 is an interrupt

    def run(self) -> None:
        ended = threading.Event()
        self._begun.append(ended)
        try:
            while not self.errors:  # asked after the thread is listed: one that begins after an interrupt does nothing
                try:
                    number, task = self._waiting.popleft()
                except IndexError:
                    return
                try:
                    self._work(number, task)
                except BaseException as error:
                    self.errors[number] = error
        finally:
            ended.set()

    def wait(self) -> None:
        """Waits until every thread that has begun has ended."""
        while True:
            if running := [ended for ended in self._begun if not ended.is_set()]:
                running[0].wait()
            elif self.errors or not self._waiting:
                return
            else:
                time.sleep(0.0001)  # the first thread has not begun yet


def _start(threads: list[threading.Thread]) -> None:
    """Starts as many of the threads as the system allows, but at least one."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            if not number:
                raise
            return


# -- pieces --------------------------------------------------------------------------------------------------


def ranges(total: int, unit: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover a total of bytes or elements, as start and stop. They are of about `most`, and each starts at a
    multiple of `unit`.

    >>> list(ranges(10, unit=2, most=5))
    [(0, 4), (4, 8), (8, 10)]
    """
    step = max(most // unit, 1) * unit
    return ((start, min(start + step, total)) for start in range(0, total, step))


def bundled(
    items: Iterable[T], size_of: Callable[[T], int], most: int, most_items: int = sys.maxsize
) -> Iterator[list[T]]:
    """Items in bundles whose sizes add up to at most `most`; a larger item is a bundle of its own.

    >>> list(bundled([3, 4, 9, 1, 1], lambda item: item, most=8))
    [[3, 4], [9], [1, 1]]
    """
    bundle: list[T] = []
    held = 0
    for item in items:
        size = size_of(item)
        if bundle and (held + size > most or len(bundle) == most_items):
            yield bundle
            bundle, held = [], 0
        bundle.append(item)
        held += size
    if bundle:
        yield bundle
