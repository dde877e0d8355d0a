"""Work in several threads ends completely, whatever happens."""

import signal
import threading
import time

import pytest

from leafwise.files.threads import in_threads


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_task_is_done_once(threads: int) -> None:
    done: list[int] = []
    in_threads(done.append, list(range(1000)), threads)
    assert sorted(done) == list(range(1000))


@pytest.mark.parametrize("threads", [1, 3])
def test_no_task_begins_after_an_error(threads: int) -> None:
    begun = []

    def work(task: int) -> None:
        begun.append(task)
        if task == 5:
            raise ValueError("task 5")
        time.sleep(0.001)

    with pytest.raises(ValueError, match=r"task 5"):
        in_threads(work, list(range(1000)), threads)
    assert len(begun) < 20


def test_of_several_errors_the_one_of_the_first_task_is_raised() -> None:
    barrier = threading.Barrier(3)

    def work(task: int) -> None:
        barrier.wait()
        raise ValueError(f"task {task}")

    with pytest.raises(ValueError, match=r"task 0"):
        in_threads(work, [0, 1, 2], 3)


def test_an_interrupt_waits_for_the_tasks_that_have_begun() -> None:
    begun, ended = [], []

    def work(task: int) -> None:
        begun.append(task)
        if len(begun) == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        ended.append(task)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, list(range(100)), 2)
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 10
