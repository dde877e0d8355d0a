"""Executors for tests, and checkpoints that executors read."""

import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import leafwise as lw
from leafwise.core.work import executor_tasks


class Shuffled(Executor):
    """Runs what was submitted in a random order, in one thread, and counts what waits."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._changed = threading.Condition()
        self._is_open = True
        self.most = self.submitted = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            self.submitted += 1
            self.most = max(self.most, len(self._waiting))
            self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if not self._is_open:
                        return
                    self._changed.wait()
                future, call = self._waiting.pop(self._random.randrange(len(self._waiting)))
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join()


def processes(count: int = 2) -> ProcessPoolExecutor:
    """A pool of processes that share nothing with this one."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def tasks_of(nbytes: int) -> Iterator[None]:
    """Cuts work into tasks of so many bytes."""
    before, executor_tasks.TASK_BYTES = executor_tasks.TASK_BYTES, nbytes
    try:
        yield
    finally:
        executor_tasks.TASK_BYTES = before


def state(seed: int = 0) -> dict[str, Any]:
    """Arrays of several chunks, dtypes and layouts."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(700, 700, generator=generator)
    weight[1, 2], weight[600, 4] = float("nan"), float("inf")
    copied = torch.randn(600, 600, generator=generator)
    copied[3], copied[5] = 0, copied[6]
    return {
        "layers.0.weight": weight,
        "layers.1.weight": copied,
        "layers.2.weight": torch.randn(900_000, generator=generator).to(torch.bfloat16).reshape(1000, 900),
        "layers.3.weight": torch.randn(300, 500, generator=generator).t(),
        "half": torch.randn(300_000, generator=generator).half(),
        "double": torch.randn(70_000, generator=generator).double() * 1e300,
        "count": torch.arange(600_000),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.5),
        "epoch": 3,
    }


def changed(seed: int = 0) -> dict[str, Any]:
    """The same arrays: changed, cast, transposed, renamed, reshaped, added and removed."""
    arrays = state(seed)
    arrays["layers.0.weight"][650:] += 1
    arrays["layers.1.weight"] = arrays["layers.1.weight"].t().contiguous()
    arrays["half"] = arrays["half"].float()
    arrays["moved"] = arrays.pop("layers.2.weight")
    arrays["layers.3.weight"] = arrays["layers.3.weight"].contiguous().reshape(250, 600)
    arrays["double"][69_999] = 1e-300
    arrays["new"] = arrays.pop("scalar") + 1
    return arrays


def saved_pair(folder: Path) -> tuple[str, str]:
    """Two checkpoints: one in shards by leafwise, and a changed one by PyTorch."""
    first, second = str(folder / "first.safetensors"), str(folder / "second.pt")
    lw.save(state(), first, shard_size="3MB")
    torch.save(changed(), second)
    return first, second
