"""`DataLoader`: a dataset in batches, read here or by worker processes or threads."""

import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy
import torch

from leafwise_gluon import modes
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, wrapped
from leafwise_gluon.base import refusal
from leafwise_gluon.context import Context, cpu_pinned
from leafwise_gluon.data.batchify import Stack
from leafwise_gluon.data.sampler import BatchSampler, RandomSampler, SequentialSampler

default_batchify_fn = Stack()
default_mp_batchify_fn = Stack(use_shared_mem=True)


class DataLoader:
    """Batches of a dataset. With `num_workers`, processes (or threads, with `thread_pool`) read samples ahead.

    >>> from leafwise_gluon import np
    >>> from leafwise_gluon.data import ArrayDataset, DataLoader
    >>> for x, y in DataLoader(ArrayDataset(np.zeros((3, 2)), np.arange(3)), batch_size=2):
    ...     print(x.shape, y)
    (2, 2) [0. 1.]
    (1, 2) [2.]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        try_nopython: bool | None = None,
        auto_reload: bool = False,
    ) -> None:
        assert timeout > 0, f"timeout must be positive, given {timeout}"
        if try_nopython:
            raise refusal("DataLoader with try_nopython=True", "leave it out: the loader is written in Python")
        self._dataset, self._timeout = dataset, timeout
        self._pinned = cpu_pinned(pin_device_id) if pin_memory else None
        self._batch_sampler = _batches(dataset, batch_size, shuffle, sampler, last_batch, batch_sampler)
        self._num_workers = max(num_workers, 0)
        self._prefetch = max(0, 2 * self._num_workers if prefetch is None else int(prefetch))
        self._batchify_fn = batchify_fn or (default_mp_batchify_fn if num_workers > 0 else default_batchify_fn)
        self._thread_pool = thread_pool
        self._pool = self._workers() if self._num_workers else None

    def _workers(self) -> Executor:
        active = modes.is_np_shape(), modes.is_np_array()
        if self._thread_pool:
            return ThreadPoolExecutor(self._num_workers, initializer=_start_thread, initargs=active)
        context = multiprocessing.get_context("fork")  # so that they have the dataset, and the replaced `mxnet`
        given = (self._dataset, *active)
        pool = ProcessPoolExecutor(self._num_workers, context, initializer=_start_process, initargs=given)
        with warnings.catch_warnings():
            # Python warns of locks that other threads may hold. Workers use one thread, and no lock of PyTorch's.
            warnings.simplefilter("ignore")
            pool.submit(os.getpid)  # makes the processes now, with the dataset as it is now
        return pool

    def __iter__(self) -> Iterator[Any]:
        batches = self._here() if self._pool is None else self._by_workers()
        return batches if self._pinned is None else (_moved(batch, self._pinned) for batch in batches)

    def _here(self) -> Iterator[Any]:
        for indices in self._batch_sampler:
            yield self._batchify_fn([self._dataset[index] for index in indices])

    def _by_workers(self) -> Iterator[Any]:
        indices, pool = iter(self._batch_sampler), self._pool
        assert pool is not None
        waiting: deque[Future[Any]] = deque()

        def ask() -> None:
            batch = next(indices, None)
            if batch is not None:
                dataset = (self._dataset,) if self._thread_pool else ()
                work = _read if self._thread_pool else _read_in_process
                waiting.append(pool.submit(work, batch, self._batchify_fn, *dataset))

        for _ in range(self._prefetch):
            ask()
        while True:
            ask()
            if not waiting:
                return
            yield self._received(waiting.popleft())

    def _received(self, result: "Future[Any]") -> Any:
        try:
            return _unpacked(result.result(self._timeout))
        except TimeoutError:
            if result.done():  # the error of a dataset, not of waiting
                raise
            raise multiprocessing.TimeoutError(
                f"a worker of the DataLoader gave no batch for {self._timeout} seconds; "
                "if reading a batch takes that long, pass a larger timeout="
            ) from None

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _batches(
    dataset: Any, batch_size: int | None, shuffle: bool, sampler: Any, last_batch: str | None, batch_sampler: Any
) -> Any:
    """The sampler of batches that the arguments of a DataLoader ask for."""
    if batch_sampler is not None:
        if batch_size is not None or shuffle or sampler is not None or last_batch is not None:
            raise ValueError(
                "batch_size, shuffle, sampler and last_batch must not be specified if batch_sampler is specified."
            )
        return batch_sampler
    if batch_size is None:
        raise ValueError("batch_size must be specified unless batch_sampler is specified")
    if sampler is None:
        sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
    elif shuffle:
        raise ValueError("shuffle must not be specified if sampler is specified")
    return BatchSampler(sampler, batch_size, last_batch or "keep")


# -- workers -------------------------------------------------------------------------------------------


class _Worker:
    dataset: Any = None  # in a worker process: the dataset as it was when the loader was made


def _start_thread(shape: bool, array: bool) -> None:
    modes.set_np(shape=shape, array=array)


def _start_process(dataset: Any, shape: bool, array: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    torch.set_num_threads(1)  # the threads of the main process do not exist here
    modes.set_np(shape=shape, array=array)
    _Worker.dataset = dataset


def _read(indices: list[Any], batchify_fn: Callable[[list[Any]], Any], dataset: Any) -> Any:
    return batchify_fn([dataset[index] for index in indices])


def _read_in_process(indices: list[Any], batchify_fn: Callable[[list[Any]], Any]) -> Any:
    return _packed(_read(indices, batchify_fn, _Worker.dataset))


class _Packed:
    """An array on its way between processes."""

    def __init__(self, array: ArrayValues) -> None:
        self.is_legacy, self.ctx = not isinstance(array, ndarray), array.ctx
        self.values: numpy.ndarray[Any, Any] = array.asnumpy()

    def array(self) -> Any:
        return wrapped(NDArray if self.is_legacy else ndarray, torch.from_numpy(self.values), self.ctx)


def _packed(batch: Any) -> Any:
    return _changed(batch, ArrayValues, _Packed)


def _unpacked(batch: Any) -> Any:
    return _changed(batch, _Packed, _Packed.array)


def _moved(batch: Any, context: Context) -> Any:
    """MXNet gives a list in place of a tuple, too."""
    if isinstance(batch, list | tuple):
        return [_moved(item, context) for item in batch]
    return batch.as_in_context(context) if isinstance(batch, ndarray | NDArray) else batch


def _changed(batch: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if type(batch) in (list, tuple):
        return type(batch)(_changed(item, kind, change) for item in batch)
    if type(batch) is dict:
        return {name: _changed(item, kind, change) for name, item in batch.items()}
    return change(batch) if isinstance(batch, kind) else batch
