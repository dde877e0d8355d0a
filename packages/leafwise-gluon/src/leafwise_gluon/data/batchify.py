"""Functions that make one batch of a list of samples."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.context import Context
from leafwise_gluon.data.conversion import array_by_mode
from leafwise_gluon.dialect import is_v1


def _context(use_shared_mem: bool) -> Context | None:
    return Context("cpu_shared", 0) if use_shared_mem else None


class Stack:
    """Stacks the samples along a new first axis. Samples that are tuples give a list with one batch for each element.

    >>> from leafwise_gluon.data import batchify
    >>> batchify.Stack()([[1, 2], [3, 4]])
    [array([1, 3], dtype=int64), array([2, 4], dtype=int64)]
    """

    def __init__(self, use_shared_mem: bool = False) -> None:
        self._use_shared_mem = use_shared_mem

    def __call__(self, data: Any) -> Any:
        first = data[0]
        if isinstance(first, ArrayValues):
            return wrap_by_mode(torch.stack([plain(sample) for sample in data]), _context(self._use_shared_mem))
        if isinstance(first, tuple) or (isinstance(first, list) and not is_v1()):
            return [self([*elements]) for elements in zip(*data, strict=False)]
        return array_by_mode(data, ctx=_context(self._use_shared_mem))


class Pad:
    """Pads the samples with `val` to a common shape, and stacks them.

    >>> from leafwise_gluon.data import batchify
    >>> batchify.Pad(val=-1)([[1, 2, 3], [4]])
    array([[ 1,  2,  3],
           [ 4, -1, -1]], dtype=int64)
    """

    def __init__(
        self, val: Any = None, dtype: Any = None, round_to: int | None = None, use_shared_mem: bool = False
    ) -> None:
        self._val, self._dtype, self._round_to = 0 if val is None else val, dtype, round_to
        self._use_shared_mem, self._warned = use_shared_mem, False

    def __call__(self, data: Any) -> Any:
        if not isinstance(data[0], ArrayValues | numpy.ndarray | list):
            raise NotImplementedError("Pad() does not support multiple items, use Group(Pad(), Pad(), ...) instead")
        if isinstance(data[0], ArrayValues) and not self._warned:
            self._warned = True
            warnings.warn("Using Pad with NDArrays is discouraged for speed reasons.", stacklevel=2)
        arrays = [sample.asnumpy() if isinstance(sample, ArrayValues) else numpy.asarray(sample) for sample in data]
        unit = self._round_to or 1
        shape = [unit * math.ceil(max(sizes) / unit) for sizes in zip(*(array.shape for array in arrays), strict=True)]
        padded = numpy.full((len(arrays), *shape), self._val, dtype=self._dtype or arrays[0].dtype)
        for number, array in enumerate(arrays):
            place: Any = (number, *map(slice, array.shape))
            padded[place] = array
        return array_by_mode(padded, ctx=_context(self._use_shared_mem))


class Append:
    """The samples as a list of arrays, each with a batch axis of one."""

    def __init__(self, expand: bool = True, batch_axis: int = 0, use_shared_mem: bool = False) -> None:
        self._expand, self._batch_axis, self._use_shared_mem = expand, batch_axis, use_shared_mem

    def __call__(self, data: Any) -> list[Any]:
        context = _context(self._use_shared_mem)
        arrays = []
        for sample in data:
            is_list = not isinstance(sample, ArrayValues | numpy.ndarray)  # numbers of lists are float32
            values = plain(sample) if isinstance(sample, ArrayValues) else None
            if values is None:
                values = plain(array_by_mode(sample, dtype="float32" if is_list else None))
            arrays.append(wrap_by_mode(values.unsqueeze(self._batch_axis) if self._expand else values, context))
        return arrays


class Group:
    """A function for each element of the samples. Gives a tuple with one batch for each.

    >>> from leafwise_gluon.data import batchify
    >>> batchify.Group(batchify.Pad(), batchify.Stack())([([1, 2], 0), ([3], 1)])[1]
    array([0, 1], dtype=int64)
    """

    def __init__(self, fn: Any, *args: Callable[[Any], Any]) -> None:
        assert not (isinstance(fn, list | tuple) and args), (
            "Input pattern not understood. The input of Group can be Group(A, B, C) or Group([A, B, C]) or "
            f"Group((A, B, C)). Received fn={fn}, args={args}"
        )
        self._functions = tuple(fn) if isinstance(fn, list | tuple) else (fn, *args)
        for number, function in enumerate(self._functions):
            assert callable(function), f"Batchify functions must be callable! type(fn[{number}]) = {type(function)}"

    def __call__(self, data: Any) -> tuple[Any, ...]:
        assert len(data[0]) == len(self._functions), (
            f"The number of attributes in each data sample should contains {len(self._functions)} elements"
        )
        return tuple(function([sample[i] for sample in data]) for i, function in enumerate(self._functions))


class AsList:
    """The samples themselves, as a list."""

    def __call__(self, data: Any) -> list[Any]:
        return list(data)
