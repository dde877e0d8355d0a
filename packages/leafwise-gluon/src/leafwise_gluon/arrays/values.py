"""The shape and dtype of an array, its text, and its elements as Python values. No method here makes a new array."""

from collections.abc import Iterator
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.dtypes import numpy_dtype
from leafwise_gluon.arrays.released import is_released
from leafwise_gluon.context import CPU0, Context, context_of
from leafwise_gluon.dialect import is_v1


class ArrayValues:
    """What the arrays of `mxnet.np` and `mxnet.nd` have in common. An array holds a tensor, which it shares with views.

    `tensor` is the underlying `torch.Tensor`, with all of PyTorch's methods. Functions compute with `plain(array)`, and
    make arrays of their results with `wrap`.
    """

    __slots__ = ("__weakref__", "own_context", "tensor")
    tensor: torch.Tensor
    own_context: Context | None  # None: the device of the tensor; a tensor cannot say that it is on cpu(1)

    # -- shape and dtype -------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Any:
        return numpy_dtype(self.tensor.dtype)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def ndim(self) -> int:
        return int(self.tensor.dim())

    @property
    def stype(self) -> str:
        return "default"

    @property
    def ctx(self) -> Context:
        return context_of(self.tensor) if self.own_context is None else self.own_context

    context = device = ctx

    @property
    def writable(self) -> bool:
        return True

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    # -- as text and as Python values --------------------------------------------------------------------

    def __repr__(self) -> str:
        values = self.asnumpy()
        text = numpy.array2string(values, separator=", ", prefix="array(", suffix=")")
        if not values.size and values.shape != (0,):
            text += f", shape={values.shape}"
        has_usual_dtype = values.dtype.name == "float32" or (values.dtype.name == "bool" and values.size)
        if not has_usual_dtype:
            text += f",{_space_before_dtype(text, values.dtype)}dtype={values.dtype}"
        if self.ctx.device_type != "cpu":
            text += f", {'ctx' if is_v1() else 'device'}={self.ctx}"
        return f"array({text})"

    def __str__(self) -> str:
        text = str(self.asnumpy())
        return text if self.ctx.device_type == "cpu" or not self.ndim else f"{text} @{self.ctx}"

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.asnumpy()[()], spec)
        if spec:
            raise TypeError(f"Cannot format mxnet.numpy.ndarray with format_spec {spec!r}")
        return str(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("the Gluon front end does not support iteration over a 0-d array; use .item()")
        array: Any = self
        return (array[index] for index in range(self.shape[0]))

    def __reversed__(self) -> Iterator[Any]:
        array: Any = self
        return (array[index] for index in reversed(range(len(self))))

    def __contains__(self, item: Any) -> bool:
        return any(entry is item or bool(entry == item) for entry in self)

    def __bool__(self) -> bool:
        if self.size == 1:
            return bool(self.item())
        if not self.size:
            return False
        raise ValueError("The truth value of an ndarray with multiple elements is ambiguous; use x.any() or x.all()")

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        if self.size != 1 or self.dtype.kind not in "iu":
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return int(self.item())

    def _scalar(self) -> Any:
        if self.size != 1:
            raise TypeError("only size-1 arrays can be converted to Python scalars")
        return self.item()

    def item(self, *args: Any) -> Any:
        """One element as a Python number: the only one, or the one at a position."""
        return self.asnumpy().item(*args)

    def tolist(self) -> Any:
        return self.asnumpy().tolist()

    def asnumpy(self) -> Any:
        """A copy as a NumPy array."""
        return self.tensor.detach().cpu().numpy().copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if copy is False:
            raise ValueError("cannot convert an ndarray to a NumPy array without a copy; leave out copy=False")
        return self.asnumpy() if dtype is None else self.asnumpy().astype(dtype)


def _space_before_dtype(text: str, dtype: Any) -> str:
    """A space, or a new line where NumPy starts one. There is none for its default dtypes, which NumPy leaves out."""
    last_line = f"array({text},".rpartition("\n")[2]
    is_long = len(last_line) + len(f" dtype={dtype})") > numpy.get_printoptions()["linewidth"]
    return "\n      " if is_long and dtype.name not in ("int64", "float64") else " "


def plain(value: Any) -> Any:
    """The tensor of an array, detached from its graph unless operations are being recorded; anything else unchanged.

    It is detached, too, if backward has released its graph.
    """
    if not isinstance(value, ArrayValues):
        return value
    tensor = value.tensor
    if not tensor.requires_grad:
        return tensor
    return tensor if differentiating() and not is_released(tensor) else tensor.detach()


def wrapped(cls: type, tensor: torch.Tensor, ctx: Context | None = None) -> Any:
    """An array of a class over a tensor, in the same graph."""
    array: Any = object.__new__(cls)
    array.tensor = tensor
    array.own_context = None if ctx is None or ctx is CPU0 else ctx
    return array
