"""Work in other processes: in order, bounded, canceled, and with errors that say what happened."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.executors import Shuffled, processes, tasks_of
from tests.interrupts import interrupting

import leafwise as lw
from leafwise.core.work import executor_tasks
from leafwise.core.work.executor_tasks import Workers, run_each, run_task
from leafwise.core.work.threads import bundled, in_order, in_threads, is_alone, one_thread, ranges


class Answer:
    """A task that returns a number."""

    nbytes = 10

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> int:
        return self.number


class Stuck(Answer):
    """A task that ends only once the test allows it; until then, its worker does nothing else."""

    begun: ClassVar[list[int]] = []
    may_end: ClassVar[threading.Event] = threading.Event()

    def __call__(self) -> int:
        self.begun.append(self.number)
        assert self.may_end.wait(120)
        return self.number


class Interrupting(Stuck):
    """The first task that is begun interrupts the main thread, once all tasks have been sent."""

    all_sent: ClassVar[threading.Event] = threading.Event()
    interrupt: ClassVar[Callable[[], None]]

    def __call__(self) -> int:
        if self.begun:
            return super().__call__()
        self.begun.append(self.number)
        assert self.all_sent.wait(120)
        Interrupting.interrupt()
        return self.number


class Failing(Answer):
    def __call__(self) -> int:
        raise lw.FileError(f"number {self.number} is damaged")


class Wrong(Answer):
    def __call__(self) -> int:
        return [][self.number]


class Dying(Answer):
    def __call__(self) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


class Unsendable(Answer):
    """A task that only this process can do."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.lock = threading.Lock()


def double(number: int) -> tuple[int, bool]:
    return 2 * number, is_alone()


@pytest.fixture
def begun() -> Iterator[list[int]]:
    """The numbers of the tasks of `Stuck` that have begun."""
    Stuck.begun.clear()
    Stuck.may_end.clear()
    Interrupting.all_sent.clear()
    with interrupting() as Interrupting.interrupt:
        yield Stuck.begun
    Stuck.may_end.set()


@pytest.fixture
def shuffled() -> Iterator[Shuffled]:
    with Shuffled() as executor:
        yield executor


def test_results_are_in_the_order_of_the_tasks(shuffled: Shuffled) -> None:
    counts: list[int] = []
    assert Workers(shuffled).run(map(Answer, range(100)), counts.append) == list(range(100))
    assert sum(counts) == 1000


def test_few_tasks_wait_at_a_time_however_many_there_are(shuffled: Shuffled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_tasks, "_ITEMS_AT_ONCE", 7)
    assert Workers(shuffled).run(map(Answer, range(200))) == list(range(200))
    assert shuffled.submitted == 200
    assert shuffled.most <= 7


def test_items_are_bundled_by_size_and_by_number() -> None:
    assert list(bundled([3, 4, 9, 1, 1], lambda item: item, 8)) == [[3, 4], [9], [1, 1]]
    assert list(bundled([1, 1, 1], lambda item: item, 8, most_items=2)) == [[1, 1], [1]]
    assert list(bundled([], lambda item: item, 8)) == []


def test_ranges_start_at_multiples_of_the_unit_and_cover_everything() -> None:
    assert list(ranges(10, 4, 3)) == [(0, 4), (4, 8), (8, 10)]
    assert list(ranges(10, 2, 5)) == [(0, 4), (4, 8), (8, 10)]
    assert list(ranges(0, 4, 8)) == []


def test_workers_use_one_thread(shuffled: Shuffled) -> None:
    with tasks_of(20):
        results = run_each(Workers(shuffled), double, [1, 2, 3], lambda item: 8, lambda nbytes: None)
    assert results == [(2, True), (4, True), (6, True)]
    assert shuffled.submitted == 2
    assert not is_alone()


def test_a_thread_that_works_alone_starts_no_others() -> None:
    seen: list[threading.Thread] = []
    with one_thread():
        in_threads(lambda task: seen.append(threading.current_thread()), range(4), 4)
        in_order(lambda number, task: seen.append(threading.current_thread()), range(4), 4)
    assert seen == [threading.current_thread()] * 8


def test_a_task_that_cannot_be_sent_is_done_here(shuffled: Shuffled) -> None:
    assert Workers(shuffled).run([Answer(0), Unsendable(1), Answer(2)]) == [0, 1, 2]
    assert shuffled.submitted == 2


def test_an_error_of_a_worker_is_raised_and_the_rest_is_canceled(begun: list[int]) -> None:
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(lw.FileError, match="number 1 is damaged"):
            Workers(executor).run([Answer(0), Failing(1), *map(Stuck, range(200))])
        Stuck.may_end.set()
    assert len(begun) <= 1  # the worker may begin one before the error is seen


def test_an_unexpected_error_of_a_worker_says_what_it_was(shuffled: Shuffled) -> None:
    with pytest.raises(lw.WorkerError, match="a worker failed: IndexError: list index out of range") as caught:
        Workers(shuffled).run([Wrong(1)])
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error() -> None:
    with processes(1) as executor:
        with pytest.raises(lw.WorkerError, match=r"a worker ended unexpectedly.*BrokenProcessPool"):
            Workers(executor).run([Dying(1)])
        with pytest.raises(lw.WorkerError, match="Make a new executor"):  # it stays broken
            Workers(executor).run([Answer(1)])


class Canceling(Executor):
    """Cancels everything, as a cluster does that is shut down."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        return future


def test_a_canceled_task_is_an_error() -> None:
    with pytest.raises(lw.WorkerError, match="the executor canceled a task; was it shut down"):
        Workers(Canceling()).run([Answer(1)])


def test_an_executor_that_was_shut_down_is_an_error() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(lw.WorkerError, match="cannot schedule new futures after shutdown"):
        Workers(executor).run([Answer(1)])


def test_an_interrupt_cancels_what_waits(begun: list[int]) -> None:
    def tasks() -> Iterator[Answer]:
        yield from map(Interrupting, range(400))
        Interrupting.all_sent.set()

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            Workers(executor).run(tasks())
        Stuck.may_end.set()
    assert len(begun) <= 2  # the worker may begin another before the interrupt is seen


def test_an_interrupt_cancels_the_work_of_all_threads(begun: list[int]) -> None:
    all_sent = threading.Barrier(6, Interrupting.all_sent.set)

    def tasks() -> Iterator[Answer]:
        yield from map(Interrupting, range(100))
        all_sent.wait(120)

    with ThreadPoolExecutor(1) as executor:
        workers = Workers(executor)
        with pytest.raises(KeyboardInterrupt):
            workers.concurrently(lambda item: workers.run(tasks()), range(6))
        Stuck.may_end.set()
    assert len(begun) <= 2


def test_several_threads_get_their_own_results(shuffled: Shuffled) -> None:
    workers = Workers(shuffled)
    results = workers.concurrently(lambda base: workers.run(map(Answer, range(base, base + 50))), range(0, 2000, 50))
    assert results == [list(range(base, base + 50)) for base in range(0, 2000, 50)]


def test_another_version_is_an_error_that_names_both() -> None:
    with pytest.raises(lw.WorkerError, match=rf"has leafwise {lw.__version__}, and this program has leafwise 9\.9"):
        run_task("9.9", b"")


@pytest.mark.parametrize("wrong", [4, "processes", ProcessPoolExecutor])
def test_what_is_not_an_executor_is_refused(wrong: Any, tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    for call in (
        lambda: lw.stats(path, executor=wrong),
        lambda: lw.verify(path, executor=wrong),
        lambda: lw.check(path, executor=wrong),
        lambda: lw.diff(path, path, executor=wrong),
        lambda: lw.edit(path, tmp_path / "b.safetensors", executor=wrong),
        lambda: lw.stats(f"{tmp_path}/*", executor=wrong),
    ):
        with pytest.raises(lw.QueryError, match="executor= takes an object like"):
            call()


def test_models_in_memory_are_refused_by_name(shuffled: Shuffled, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    path = lw.save(model, tmp_path / "a.safetensors")
    for call in (
        lambda: lw.stats(model, executor=shuffled),
        lambda: lw.check(model, executor=shuffled),
        lambda: lw.check(path, against=model, executor=shuffled),
        lambda: lw.diff(path, model, executor=shuffled),
        lambda: lw.diff(model, f"{tmp_path}/*", executor=shuffled),
        lambda: lw.edit(model, tmp_path / "b.safetensors", executor=shuffled),
    ):
        with pytest.raises(lw.WalkError, match="needs a checkpoint, not Linear: workers cannot reach values in memory"):
            call()
    with pytest.raises(lw.FileError, match="not Linear"):
        lw.verify(model, executor=shuffled)  # type: ignore[call-overload]
