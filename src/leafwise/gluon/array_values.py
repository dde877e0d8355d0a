"""The shape and dtype of an array, its text, and its elements as Python values. No method here makes a new array."""

from collections.abc import Iterator
from typing import Any

import numpy
import torch

from leafwise.gluon.autograd_state import differentiating
from leafwise.gluon.dtypes import numpy_dtype

_TENSOR: Any = torch.Tensor  # for PyTorch's own properties, which an array overrides


class ArrayValues(torch.Tensor):
    """The base class of `leafwise.gluon.array.ndarray`, which adds the methods that compute new arrays."""

    # -- shape and dtype -------------------------------------------------------------------------------

    @property
    def tensor(self) -> torch.Tensor:
        """The same memory as a plain `torch.Tensor`, with all of PyTorch's methods."""
        beneath: torch.Tensor = plain(self)
        return beneath

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(_TENSOR.shape.__get__(self))

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return numpy_dtype(_TENSOR.dtype.__get__(self))

    @property
    def size(self) -> int:  # type: ignore[override]
        return int(_TENSOR.numel(self))

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return int(_TENSOR.dim(self))

    @property
    def stype(self) -> str:
        return "default"

    @property
    def ctx(self) -> str:
        return str(_TENSOR.device.__get__(self))

    context = ctx

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    # -- as text and as Python values --------------------------------------------------------------------

    def __repr__(self) -> str:  # type: ignore[override]
        values = self.asnumpy()
        text = numpy.array2string(values, separator=", ", prefix="array(")
        if not values.size and values.shape != (0,):
            text += f", shape={values.shape}"
        return f"array({text})" if values.dtype.name in ("float32", "bool") else f"array({text}, dtype={values.dtype})"

    def __str__(self) -> str:
        return str(self.asnumpy())

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.asnumpy()[()], spec)
        if spec:
            raise TypeError(f"Cannot format mxnet.numpy.ndarray with format_spec {spec!r}")
        return str(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("the Gluon front end does not support iteration over a 0-d array; use .item()")
        return (self[index] for index in range(self.shape[0]))

    def __reversed__(self) -> Iterator[Any]:
        return (self[index] for index in reversed(range(len(self))))

    def __contains__(self, item: Any) -> bool:
        return any(entry is item or bool(entry == item) for entry in self)

    def __bool__(self) -> bool:
        if self.size == 1:
            return bool(self.item())
        if not self.size:
            raise ValueError("the Gluon front end does not support bool() of an empty array; use x.size > 0")
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
        return plain(self).detach().cpu().numpy().copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if copy is False:
            raise ValueError("cannot convert an ndarray to a NumPy array without a copy; leave out copy=False")
        return self.asnumpy() if dtype is None else self.asnumpy().astype(dtype)


def plain(value: Any) -> Any:
    """An array as a plain tensor, in the same graph; anything else unchanged."""
    if not isinstance(value, ArrayValues):
        return value
    with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(differentiating()):
        return _TENSOR.as_subclass(value, torch.Tensor)
