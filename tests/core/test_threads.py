"""Tasks that several threads share."""

import threading
import time

import pytest

from leafwise.core.threads import in_order


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

    def work(number: int, task: int) -> None:
        begun.append(number)
        if number == 3:
            time.sleep(0.05)  # a later task fails before it
        if number >= 3:
            raise ValueError(number)

    for _ in range(5):
        begun.clear()
        with pytest.raises(ValueError, match=r"^3$"):
            in_order(work, range(100), threads=4)
        assert len(begun) < 20


def test_an_interrupt_is_raised_once_all_threads_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    join = threading.Thread.join
    interrupts = [KeyboardInterrupt()]

    def joining(self: threading.Thread, timeout: float | None = None) -> None:
        if interrupts:
            raise interrupts.pop()
        join(self, timeout)

    begun: list[int] = []

    def work(number: int, task: int) -> None:
        begun.append(number)
        time.sleep(0.02)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", joining)
        with pytest.raises(KeyboardInterrupt):
            in_order(work, range(1000), threads=3)
    assert threading.active_count() == before
    assert len(begun) < 100
