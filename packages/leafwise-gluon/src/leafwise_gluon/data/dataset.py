"""Datasets: anything with a length and an index, and new datasets made of it."""

from collections.abc import Callable
from typing import Any

from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.data.sampler import FilterSampler, Sampler, SequentialSampler


class Dataset:
    """The base class of datasets, which have `__getitem__` and `__len__`.

    >>> from leafwise_gluon.data import SimpleDataset
    >>> numbers = SimpleDataset(range(6))
    >>> list(numbers.filter(lambda number: number % 2).transform(lambda number: number * 10))
    [10, 30, 50]
    >>> list(numbers.shard(4, 0)), list(numbers.take(2))
    ([0, 1], [0, 1])
    """

    def __getitem__(self, idx: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def filter(self, fn: Callable[[Any], Any]) -> "Dataset":
        """The samples for which a function is true."""
        return SampledDataset(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """One of `num_shards` parts, of consecutive samples."""
        assert index < num_shards, f"Shard index of out bound: {index} out of {num_shards}"
        assert num_shards > 0, "Number of shards must be greater than 0"
        assert index >= 0, "Index must be non-negative"
        length, rest = divmod(len(self), num_shards)
        start = length * index + min(index, rest)
        return SampledDataset(self, SequentialSampler(length + (index < rest), start))

    def take(self, count: int | None) -> "Dataset":
        """The first `count` samples, or all if there are fewer."""
        length = len(self)
        return SampledDataset(self, SequentialSampler(length if count is None else min(count, length)))

    def sample(self, sampler: Sampler) -> "Dataset":
        """The samples whose indices a sampler gives. They are determined at once."""
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Invalid sampler type: {type(sampler)}. Expected gluon.data.Sampler instead.")
        return SampledDataset(self, sampler)

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> "Dataset":
        """A function of every sample, called whenever a sample is read; with `lazy=False`, once for all, now."""
        transformed = TransformedDataset(self, fn)
        return transformed if lazy else SimpleDataset([transformed[index] for index in range(len(transformed))])

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> "Dataset":
        """Like `transform`, but the function gets and replaces only the first element of a sample."""
        return self.transform(FirstOnly(fn), lazy)


class SimpleDataset(Dataset):
    """A list or an array as a dataset."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx]


class ArrayDataset(Dataset):
    """Several arrays, lists or datasets of one length. A sample is a tuple with one element of each.

    >>> from leafwise_gluon import np
    >>> from leafwise_gluon.data import ArrayDataset
    >>> ArrayDataset(np.ones((3, 2)), [7, 8, 9])[1]
    (array([1., 1.]), 8)
    """

    def __init__(self, *args: Any) -> None:
        assert len(args) > 0, "Needs at least 1 arrays"
        self._length = len(args[0])
        self._data = []
        for number, data in enumerate(args):
            assert len(data) == self._length, (
                f"All arrays must have the same length; array[0] has length {self._length} "
                f"while array[{number + 1}] has {len(data)}."
            )
            is_vector = isinstance(data, ArrayValues) and data.ndim == 1
            self._data.append(data.asnumpy() if is_vector else data)  # elements are NumPy's numbers then, as in MXNet

    def __getitem__(self, idx: Any) -> Any:
        return self._data[0][idx] if len(self._data) == 1 else tuple(data[idx] for data in self._data)

    def __len__(self) -> int:
        return self._length


class SampledDataset(Dataset):
    """The samples at the indices that a sampler gives."""

    def __init__(self, dataset: Dataset, sampler: Sampler) -> None:
        self._dataset, self._sampler, self._indices = dataset, sampler, list(sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getitem__(self, idx: Any) -> Any:
        return self._dataset[self._indices[idx]]


class TransformedDataset(Dataset):
    """A function of the samples of a dataset. A sample that is a tuple gives several arguments."""

    def __init__(self, data: Dataset, fn: Callable[..., Any]) -> None:
        self._data, self._fn = data, fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        item = self._data[idx]
        return self._fn(*item) if isinstance(item, tuple) else self._fn(item)


class FirstOnly:
    """A function of the first element of a sample. It is a class, so that it can be pickled."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, first: Any, *others: Any) -> Any:
        return (self._fn(first), *others) if others else self._fn(first)
