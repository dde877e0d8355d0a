"""Work that other processes do, through an executor with the interface of `concurrent.futures`.

A verb cuts its work into tasks: small objects that can be pickled, each with the places of the bytes that it reads
and what to compute. A worker opens the files by itself, and returns partial results, such as the statistics of each
chunk. The verb combines these in the order of the tasks, so that the result does not depend on the executor, on the
number of workers, or on how the work was cut.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from importlib import import_module
from queue import SimpleQueue
from threading import Lock
from typing import Any, Protocol, TypeVar

from leafwise import __version__
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled, one_thread
from leafwise.errors import Error, QueryError, WorkerError

SENDING = "leafwise.files.reading.sending"  # imported when there is work to send, because core may not import files
TASK_BYTES = 64 << 20  # bytes that a task reads
_ITEMS_AT_ONCE = 1_000  # arrays, or parts of arrays, in a task; the tasks that an executor has at a time
_OPEN_AT_ONCE = 16  # checkpoints or shards that are open at a time

T = TypeVar("T")
R = TypeVar("R")


class Task(Protocol):
    """Some work. It is called in a worker, and returns the partial result."""

    @property
    def nbytes(self) -> int:
        """How many bytes it reads, for the progress bar."""

    def __call__(self) -> Any: ...


class Workers:
    """The workers behind an executor. `count` is called with the number of bytes that were processed."""

    def __init__(self, executor: Any, count: Count = lambda nbytes: None) -> None:
        if type(executor).__name__ == "Client" and hasattr(executor, "get_executor"):
            raise QueryError("executor= takes an executor, not a Dask client; pass client.get_executor()")
        if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
            raise QueryError(
                f"executor= takes an object like concurrent.futures.ProcessPoolExecutor(), not {executor!r}"
            )
        self._executor, self._count = executor, count
        self._lock = Lock()
        self._running: list[_Running] = []
        self._is_stopped = False

    def run(self, tasks: Iterable[Task], count: Count = lambda nbytes: None) -> list[Any]:
        """The results of tasks, in their order. After an error or an interrupt, tasks that wait are canceled."""
        running = _Running()
        with self._lock:
            self._running.append(running)
        try:
            for number, task in enumerate(tasks):
                # The threads that call this share the tasks that an executor has at a time.
                while len(running.waiting) >= max(_ITEMS_AT_ONCE // len(self._running), 1):
                    self._take(running, count)
                self._begin(running, number, task, count)
            while running.waiting:
                self._take(running, count)
            return [running.results[number] for number in range(len(running.results))]
        finally:
            with self._lock:
                self._running.remove(running)
            running.cancel()

    def _begin(self, running: "_Running", number: int, task: Task, count: Count) -> None:
        data: bytes | None = import_module(SENDING).dumps(task)
        if data is None:  # it reads bytes that only this process has, such as those that came with a header
            running.results[number] = task()
            self._done(task.nbytes, count)
            return
        if self._is_stopped:
            raise KeyboardInterrupt
        try:
            future = self._executor.submit(run_task, __version__, data)
        except Exception as error:
            raise _explained(error) from error
        running.waiting[future] = number, task.nbytes
        future.add_done_callback(running.ended.put)

    def _take(self, running: "_Running", count: Count) -> None:
        """Waits for the next result."""
        future = running.ended.get()
        if future is None or self._is_stopped:
            raise KeyboardInterrupt
        number, nbytes = running.waiting.pop(future)
        try:
            running.results[number] = future.result()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # canceled tasks of asyncio are not an Exception
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error
        self._done(nbytes, count)

    def _done(self, nbytes: int, count: Count) -> None:
        with self._lock:
            self._count(nbytes)
            count(nbytes)

    def concurrently(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Calls `work`, which calls `run`, for several items at a time, in the order of the items, and returns the
        results in their order. After an error or an interrupt, everything is canceled."""
        from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait  # late: it imports logging

        results: dict[int, R] = {}
        running: dict[Future[R], int] = {}
        left = iter(enumerate(items))
        with ThreadPoolExecutor(min(max(len(items), 1), _OPEN_AT_ONCE)) as threads:
            try:
                while True:
                    while len(running) < _OPEN_AT_ONCE and (item := next(left, None)) is not None:
                        # With what is set for this thread, such as the limits of the command line.
                        running[threads.submit(copy_context().run, work, item[1])] = item[0]
                    if not running:
                        return [results[number] for number in range(len(items))]
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        results[running.pop(done)] = done.result()
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        """Cancels everything, for all threads that call `run`."""
        with self._lock:
            self._is_stopped = True
            for running in self._running:
                running.cancel()
                running.ended.put(None)


class _Running:
    """The tasks of one call of `Workers.run`."""

    def __init__(self) -> None:
        self.waiting: dict[Any, tuple[int, int]] = {}  # futures, each with the number of the task and its bytes
        self.results: dict[int, Any] = {}
        self.ended: SimpleQueue[Any] = SimpleQueue()

    def cancel(self) -> None:
        for future in list(self.waiting):
            future.cancel()


def task_bundles(items: Iterable[T], nbytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in bundles for one task each."""
    return bundled(items, nbytes_of, TASK_BYTES, _ITEMS_AT_ONCE)


class ForEach:
    """A task that calls a function of a module for each of several items, and returns a list of results."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], nbytes: int) -> None:
        self.function, self.items, self.nbytes = function, items, nbytes

    def __call__(self) -> list[Any]:
        return [self.function(item) for item in self.items]


def run_each(
    workers: Workers, function: Callable[[T], Any], items: Sequence[T], nbytes_of: Callable[[T], int], count: Count
) -> list[Any]:
    """The results of a function of a module for each item, in order."""
    bundles = task_bundles(items, nbytes_of)
    tasks = (ForEach(function, bundle, sum(map(nbytes_of, bundle))) for bundle in bundles)
    return [result for results in workers.run(tasks, count) for result in results]


# -- in a worker -----------------------------------------------------------------------------------------------------


def run_task(version: str, data: bytes) -> Any:
    """Runs a task in a worker, with one thread: the executor already uses as many workers as there are cores."""
    if version != __version__:
        raise WorkerError(
            f"{place()} has leafwise {__version__}, and this program has leafwise {version}; install the same version"
        )
    with one_thread():
        return import_module(SENDING).run(data)


def place() -> str:
    """The name of this worker, for errors."""
    import socket

    return f"the worker {socket.gethostname()}:{os.getpid()}"


# -- errors ----------------------------------------------------------------------------------------------------------


def _explained(error: BaseException) -> BaseException:
    """The error to raise for an error of an executor or of a worker."""
    from concurrent.futures import BrokenExecutor, CancelledError  # late: it imports logging

    if isinstance(error, Error):
        return error
    name = type(error).__name__
    reason = (f"{name}: {error}".splitlines() or [name])[0].removesuffix(": ")
    if isinstance(error, BrokenExecutor):
        return WorkerError(
            f"a worker ended unexpectedly, and the executor cannot continue ({reason}); was it killed, or out of "
            "memory? Make a new executor, and run it again"
        )
    if isinstance(error, CancelledError) or name == "CancelledError":
        return WorkerError("the executor canceled a task; was it shut down?")
    if name == "KilledWorker":  # of Dask
        return WorkerError(f"a task was given to several workers, and each of them ended ({reason}); was memory short?")
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("leafwise"):
        return WorkerError(f"leafwise {__version__} is not installed where the workers run ({reason})")
    return WorkerError(f"a worker failed: {reason}")
