"""`mxnet.io`: the iterators of MXNet 1.x over arrays."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy
import torch

from leafwise_gluon.arrays.dtypes import numpy_dtype
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import refusal
from leafwise_gluon.data.conversion import array_by_mode


class _Description(NamedTuple):
    name: str
    shape: Any


class DataDesc(_Description):
    """The name, the shape, the dtype and the layout of the data or of the labels of a batch."""

    dtype: Any
    layout: str

    def __new__(cls, name: str, shape: Any, dtype: Any = numpy.float32, layout: str = "NCHW") -> "DataDesc":
        self = super().__new__(cls, name, shape)
        self.dtype, self.layout = dtype, layout
        return self

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        return 0 if layout is None else layout.find("N")


class DataBatch:
    """Lists of arrays, and how many of the last samples only fill up the batch."""

    def __init__(
        self,
        data: list[Any],
        label: list[Any] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ) -> None:
        for kind, given in (("Data", data), ("Label", label)):
            assert given is None or isinstance(given, list | tuple), f"{kind} must be list of NDArrays"
        self.data, self.label, self.pad, self.index = data, label, pad, index
        self.bucket_key, self.provide_data, self.provide_label = bucket_key, provide_data, provide_label

    def __str__(self) -> str:
        labels = [array.shape for array in self.label] if self.label else None
        return f"{type(self).__name__}: data shapes: {[array.shape for array in self.data]} label shapes: {labels}"


class DataIter:
    """The base class of iterators over batches."""

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def reset(self) -> None:
        """Starts again."""

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        return DataBatch(data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=self.getindex())

    def __next__(self) -> DataBatch:
        return self.next()

    def iter_next(self) -> bool:
        """Moves to the next batch, if there is one."""
        raise NotImplementedError

    def getdata(self) -> Any:
        raise NotImplementedError

    def getlabel(self) -> Any:
        raise NotImplementedError

    def getindex(self) -> Any:
        return None

    def getpad(self) -> int | None:
        raise NotImplementedError


def _named(data: Any, default: str) -> list[tuple[str, torch.Tensor]]:
    if data is None:
        return []
    if isinstance(data, ArrayValues | numpy.ndarray):
        data = [data]
    if not isinstance(data, Mapping):
        names = [default] if len(data) == 1 else [f"_{number}_{default}" for number in range(len(data))]
        data = dict(zip(names, data, strict=True))
    return [
        (name, plain(array) if isinstance(array, ArrayValues) else plain(array_by_mode(array, dtype="float32")))
        for name, array in data.items()
    ]


class NDArrayIter(DataIter):
    """Batches of `nd.NDArray`. `last_batch_handle='pad'` fills the last one up with the first samples, 'discard' leaves
    it out.

    >>> import numpy
    >>> from leafwise_gluon.io import NDArrayIter
    >>> [(batch.data[0].shape, batch.pad) for batch in NDArrayIter(numpy.zeros((5, 2)), numpy.zeros(5), batch_size=2)]
    [((2, 2), 0), ((2, 2), 0), ((2, 2), 1)]
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        super().__init__(batch_size)
        if last_batch_handle not in ("pad", "discard"):
            raise refusal(f"NDArrayIter with last_batch_handle={last_batch_handle!r}", "use 'pad' or 'discard'")
        self._data, self._label = _named(data, data_name), _named(label, label_name)
        self._indices = numpy.arange(len(self._data[0][1]))
        self.num_data = len(self._indices)
        if last_batch_handle == "discard":
            self.num_data -= self.num_data % batch_size
        self._shuffle = shuffle
        self.cursor = -batch_size
        self.reset()

    def _described(self, arrays: list[tuple[str, torch.Tensor]]) -> list[DataDesc]:
        size = self.batch_size
        return [DataDesc(name, (size, *values.shape[1:]), numpy_dtype(values.dtype).type) for name, values in arrays]

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._described(self._data)

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._described(self._label)

    def reset(self) -> None:
        if self._shuffle:
            numpy.random.shuffle(self._indices)
        self.cursor = -self.batch_size

    def hard_reset(self) -> None:
        self.reset()

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        return self.cursor < self.num_data

    def _batch(self, arrays: list[tuple[str, torch.Tensor]]) -> list[Any]:
        places = numpy.arange(self.cursor, self.cursor + self.batch_size) % len(self._indices)
        chosen = torch.from_numpy(self._indices[places])
        return [wrap_legacy(values[chosen]) for _, values in arrays]

    def getdata(self) -> list[Any]:
        return self._batch(self._data)

    def getlabel(self) -> list[Any]:
        return self._batch(self._label)

    def getpad(self) -> int:
        return max(0, self.cursor + self.batch_size - self.num_data)
