"""Samplers: the order in which a dataset is read. Random ones draw from NumPy's global generator, as in MXNet."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy


class Sampler:
    """The base class of samplers, which have `__iter__` and `__len__`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class SequentialSampler(Sampler):
    """The indices from `start` on, `length` of them."""

    def __init__(self, length: int, start: int = 0) -> None:
        self._range = range(start, start + length)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range)

    def __len__(self) -> int:
        return len(self._range)


class RandomSampler(Sampler):
    """The indices below `length`, each once, in the order of `numpy.random.shuffle`."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        indices = numpy.arange(self._length)
        numpy.random.shuffle(indices)
        return iter(indices)

    def __len__(self) -> int:
        return self._length


class FilterSampler(Sampler):
    """The indices of the samples for which a function is true. They are determined at once."""

    def __init__(self, fn: Callable[[Any], Any], dataset: Any) -> None:
        self._indices = [index for index, sample in enumerate(_samples(dataset)) if fn(sample)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


def _samples(dataset: Any) -> Iterator[Any]:
    return (dataset[index] for index in range(len(dataset)))


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler. `last_batch` says what happens to an incomplete last one:
    'keep' gives it, 'discard' leaves it out, 'rollover' puts it at the beginning of the next iteration.

    >>> from leafwise_gluon.data import BatchSampler, SequentialSampler
    >>> list(BatchSampler(SequentialSampler(5), 2, "keep"))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Sampler, batch_size: int, last_batch: str = "keep") -> None:
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._left_over: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._left_over = self._left_over, []
        for index in self._sampler:
            batch.append(index)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch:
            self._check()
            if self._last_batch == "keep":
                yield batch
            elif self._last_batch == "rollover":
                self._left_over = batch

    def __len__(self) -> int:
        self._check()
        if self._last_batch == "keep":
            return (len(self._sampler) + self._batch_size - 1) // self._batch_size
        return (len(self._left_over) + len(self._sampler)) // self._batch_size

    def _check(self) -> None:
        if self._last_batch not in ("keep", "discard", "rollover"):
            raise ValueError(f"last_batch must be one of 'keep', 'discard', or 'rollover', but got {self._last_batch}")


class IntervalSampler(Sampler):
    """Every `interval`-th index below `length`; with `rollover`, then those that were skipped, from the first on.

    >>> from leafwise_gluon.data import IntervalSampler
    >>> list(IntervalSampler(5, interval=2)), list(IntervalSampler(5, interval=2, rollover=False))
    ([0, 2, 4, 1, 3], [0, 2, 4])
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        assert interval <= length, f"Interval {interval} must be smaller than or equal to length {length}"
        self._length, self._interval, self._rollover = length, interval, rollover

    def __iter__(self) -> Iterator[int]:
        for first in range(self._interval if self._rollover else 1):
            yield from range(first, self._length, self._interval)

    def __len__(self) -> int:
        return self._length
