"""Tasks that several threads share."""

import threading

import pytest
from tests.interrupts import interrupting

from leafwise.core.work.threads import _SharedWork, in_order


def test_every_task_is_done_once_and_begun_in_order() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def work(number: int, task: str) -> None:
        assert task == f"task {number}"
        with lock:
            begun.append(number)

    in_order(work, [f"task {number}" for number in range(200)], threads=4)
    assert sorted(begun) == list(range(200))
    in_order(work, [], threads=4)


def test_the_error_of_the_first_task_that_failed_is_raised() -> None:
    begun: list[int] = []
    later_failed = threading.Event()

    def work(number: int, task: int) -> None:
        begun.append(number)
        if number == 3:
            assert later_failed.wait(120)
        if number > 3:
            later_failed.set()
        if number >= 3:
            raise ValueError(number)

    for _ in range(5):
        begun.clear()
        later_failed.clear()
        with pytest.raises(ValueError, match=r"^3$"):
            in_order(work, range(100), threads=4)
        assert len(begun) < 20


def test_an_interrupt_is_raised_once_all_threads_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    begun: list[int] = []
    waits = threading.Semaphore(0)  # released each time that the main thread begins to wait
    waited_out = threading.Event()
    wait = _SharedWork.wait

    def waiting(self: _SharedWork[int]) -> None:
        waits.release()
        wait(self)

    monkeypatch.setattr(_SharedWork, "wait", waiting)

    def work(number: int, task: int) -> None:
        begun.append(number)
        if number == 1:
            for _ in range(2):  # the second interrupt comes while the first is waited out
                assert waits.acquire(timeout=120)
                interrupt()
            assert waits.acquire(timeout=120)
            waited_out.set()
        # The other threads are still at work when the interrupts come: an interrupted join would take one for dead.
        assert waited_out.wait(120)
        ended.append(number)

    with interrupting() as interrupt, pytest.raises(KeyboardInterrupt):
        in_order(work, range(1000), threads=3)
    assert sorted(ended) == sorted(begun)
    assert len(begun) <= 3


def test_a_system_without_more_threads_uses_those_that_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    allowed = [1, 1]

    def starting(self: threading.Thread) -> None:
        if not allowed:
            raise RuntimeError("can't start new thread")
        allowed.pop()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", starting)
    done: list[int] = []
    in_order(lambda number, task: done.append(number), range(50), threads=8)
    assert sorted(done) == list(range(50))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        in_order(lambda number, task: done.append(number), range(50), threads=8)
