"""Arrays that behave like MXNet's `nd.NDArray`, the arrays of MXNet 1.x, which 2.x has, too."""

import functools
import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.differentiable import DifferentiableArray
from leafwise_gluon.arrays.dtypes import numpy_dtype, torch_dtype
from leafwise_gluon.arrays.legacy_calls import check_no_graph_enters, check_not_in_graph, exposed, write_whole
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.overlap import check_overlap
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.context import Context, as_context
from leafwise_gluon.modes import is_np_shape
from leafwise_gluon.ops import indexing
from leafwise_gluon.ops.legacy import elementwise, pictures, reductions, shaping, sorting
from leafwise_gluon.ops.legacy.binary import binary, is_number


def _operator(name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return self._combined(name, other, reflected)

    return operate


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        title = f"nd.{name} in place"
        check_not_in_graph(title, self)
        check_no_graph_enters(title, other)
        check_overlap(title, self, other)
        write_whole(title, self, self._combined(name, other, False).tensor)
        return self

    return operate


class NDArray(DifferentiableArray, metaclass=ABCMeta):
    """An array like `mxnet.nd.NDArray`. `tensor` is the underlying `torch.Tensor`.

    Unlike an `np.ndarray`, a comparison gives 0 and 1 in the dtype of the array, `reshape` gives a view, and a sum over
    all axes has the shape (1,).

    >>> from leafwise_gluon import nd
    >>> x = nd.array([[1, 2], [3, 4]])
    >>> x > 2
    <BLANKLINE>
    [[0. 0.]
     [1. 1.]]
    <NDArray 2x2 @cpu(0)>
    >>> print(x.sum().asscalar())
    10.0
    """

    __slots__ = ()
    __array_priority__ = 1000.0  # numpy.float32(2) * x calls x.__rmul__

    def __getattr__(self, name: str) -> Any:
        if name in _SINCE_2 and not dialect.is_v1():
            return functools.partial(exposed(_SINCE_2[name]), self)
        if name in ("softmax", "log_softmax", "softmin"):
            from leafwise_gluon import nd

            return functools.partial(getattr(nd, name), self)
        if name.startswith("__"):
            raise AttributeError(f"'NDArray' object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(f"'NDArray' object has no attribute {name!r}; {_instead_of(name)}", name=name, obj=self)

    def _new(self, tensor: torch.Tensor) -> "NDArray":
        """An array in the same context."""
        return wrap_legacy(tensor, self.ctx)

    # -- values ----------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> Any:
        """A type, such as `numpy.float32`."""
        return numpy_dtype(self.tensor.dtype).type

    @property
    def device(self) -> Context:
        """The context, as MXNet 2.x calls it."""
        if dialect.is_v1():
            raise AttributeError("'NDArray' object has no attribute 'device'; use x.context")
        return self.ctx

    @property
    def writable(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"\n{self.asnumpy()}\n<NDArray {'x'.join(map(str, self.shape))} @{self.ctx}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if spec:
            raise TypeError(f"unsupported format string passed to NDArray.__format__: {spec!r}; use x.asscalar()")
        return str(self)

    def __bool__(self) -> bool:
        if not self.size:
            return False
        if self.size > 1:
            raise ValueError("The truth value of an NDArray with multiple elements is ambiguous.")
        return bool(self.asscalar())

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def asscalar(self) -> Any:
        """The only element, as a NumPy scalar."""
        if self.size != 1:
            raise ValueError("The current array is not a scalar")
        return self.asnumpy().reshape(-1)[0]

    def wait_to_read(self) -> None:
        """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""

    def _refuse_conversion(self) -> Any:
        raise TypeError("an NDArray is not a number; use x.asscalar()")

    __int__ = __float__ = __complex__ = __index__ = _refuse_conversion

    @property
    def item(self) -> Any:
        raise AttributeError("'NDArray' object has no attribute 'item'; use x.asscalar()")

    @property
    def tolist(self) -> Any:
        raise AttributeError("'NDArray' object has no attribute 'tolist'; use x.asnumpy().tolist()")

    # -- copies and conversions --------------------------------------------------------------------------------

    def astype(self, dtype: Any, copy: bool = True) -> "NDArray":
        if not copy and torch_dtype(dtype) == self.tensor.dtype:
            return self
        return self._new(elementwise.cast(plain(self), dtype))

    def copy(self) -> "NDArray":
        return self._new(plain(self).clone())

    def copyto(self, other: Any) -> Any:
        """Copies the values into another array, or to a device, and returns the copy."""
        if isinstance(other, Context):
            return wrap_legacy(plain(self).to(other.torch_device, copy=True), other)
        if not isinstance(other, NDArray):
            raise TypeError(f"copyto does not support type {type(other)}")
        if other is self:
            warnings.warn("You are attempting to copy an array to itself", RuntimeWarning, stacklevel=2)
            return False
        write_whole("nd.copyto", other, elementwise.cast(plain(self), other.dtype))
        return other

    def as_in_context(self, context: Any) -> "NDArray":
        """The array itself if it is on that device already, otherwise a copy on that device."""
        target = as_context(context)
        return self if target == self.ctx else wrap_legacy(plain(self).to(target.torch_device, copy=True), target)

    def as_nd_ndarray(self) -> "NDArray":
        return self

    def as_np_ndarray(self) -> ndarray:
        """An `np.ndarray` over the same memory, in the same graph."""
        return wrapped(ndarray, self.tensor, self.ctx)  # type: ignore[no-any-return]

    def tostype(self, stype: str) -> "NDArray":
        if stype != "default":
            raise refusal(f"NDArray.tostype({stype!r})", "arrays are dense")
        return self.copy()

    def to_dlpack_for_read(self) -> Any:
        return self.tensor.detach().__dlpack__()

    to_dlpack_for_write = to_dlpack_for_read

    def __copy__(self) -> "NDArray":
        return self._new(plain(self).detach().clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> "NDArray":
        copied: NDArray = memo.setdefault(id(self), self.__copy__())
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _from_numpy, (self.asnumpy(),)

    # -- indices -----------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        part = indexing.read(plain(self), _key(key))
        if part is None:
            return self
        is_scalar = is_np_shape() and not (isinstance(key, tuple) and any(entry is Ellipsis for entry in key))
        return self._new(part if part.ndim or is_scalar else part.reshape(1))

    def __setitem__(self, key: Any, value: Any) -> None:
        check_not_in_graph("nd[key] =", self)
        tensor, source = self.tensor.detach(), plain(value)
        if _is_whole(key) and isinstance(source, torch.Tensor) and source.requires_grad and differentiating():
            return write_whole("nd[:] =", self, elementwise.cast(source, self.dtype).broadcast_to(self.shape))
        check_no_graph_enters("nd[key] =", value)
        with torch.no_grad():
            try:
                indexing.write(tensor, () if _is_whole(key) else _key(key), source, reads_while_writing=True)
            except indexing.AssignedShapeError as error:
                raise ValueError(str(error)) from error
        return None

    # -- shapes ------------------------------------------------------------------------------------------------

    @property
    def T(self) -> "NDArray":  # noqa: N802
        return self._new(shaping.transpose(plain(self))) if self.ndim > 1 else self

    def reshape(self, *shape: Any, **kwargs: Any) -> "NDArray":
        """A view in another shape, which may have MXNet's codes."""
        reverse = kwargs.pop("reverse", False)
        codes: Any = kwargs.pop("shape", None)
        if kwargs:
            raise TypeError(f"Got unknown keywords in reshape: {', '.join(kwargs)}. Accepted: 'shape' and 'reverse'.")
        if codes is None:
            codes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        try:
            return self._new(shaping.reshaped_view(plain(self), shaping.as_tuple(codes), reverse))
        except shaping.ShapeSizeError as error:
            raise ValueError(str(error)) if dialect.is_v1() else error  # noqa: B904

    def transpose(self, axes: Any = None) -> "NDArray":
        return self._new(shaping.transpose(plain(self), axes))

    def flatten(self, inplace: bool = False) -> "NDArray":
        """The array with two axes, as a copy, or, with `inplace`, as a view."""
        return self.reshape((0, -1)) if inplace else self._new(shaping.flatten(plain(self)))

    def expand_dims(self, axis: int, inplace: bool = False) -> "NDArray":
        """The array with one axis more, as a copy, or, with `inplace`, as a view."""
        return self._new(shaping.expand_dims(plain(self), axis, view=inplace))

    def squeeze(self, axis: Any = None, inplace: bool = False) -> "NDArray":
        """The array without axes of size one, as a copy, or, with `inplace`, as a view."""
        return self._new(shaping.squeeze(plain(self), axis, view=inplace))

    def broadcast_to(self, shape: Any) -> "NDArray":
        """A copy with axes of size one repeated, and with new axes in front."""
        sizes = shaping.as_tuple(shape)
        lengthened = plain(self).reshape([1] * (len(sizes) - self.ndim) + list(self.shape))
        return self._new(shaping.broadcast_to(lengthened, sizes))

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _combined(self, name: str, other: Any, reflected: bool) -> Any:
        if isinstance(other, ndarray) and not dialect.is_v1():
            return _combined_with_np(name, self, other, reflected)
        if isinstance(other, ndarray) or not (isinstance(other, ArrayValues | torch.Tensor) or is_number(other)):
            raise TypeError(f"nd.{name}: type {type(other)} not supported")
        sides = plain(self), plain(other)
        try:
            return self._new(binary(name, *(reversed(sides) if reflected else sides)))
        except (MXNetError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:  # PyTorch's message does not name the operation
            raise MXNetError(f"nd.{name}: {error}") from error

    __add__, __radd__, __iadd__ = _operator("add"), _operator("add", reflected=True), _in_place("add")
    __sub__, __rsub__, __isub__ = _operator("subtract"), _operator("subtract", reflected=True), _in_place("subtract")
    __mul__, __rmul__, __imul__ = _operator("multiply"), _operator("multiply", reflected=True), _in_place("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("divide"), _operator("divide", True), _in_place("divide")
    __div__, __rdiv__, __idiv__ = __truediv__, __rtruediv__, __itruediv__
    __mod__, __rmod__, __imod__ = _operator("modulo"), _operator("modulo", reflected=True), _in_place("modulo")
    __pow__, __rpow__ = _operator("power"), _operator("power", reflected=True)
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")
    __lt__, __le__ = _operator("lesser"), _operator("lesser_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __hash__ = object.__hash__

    def __neg__(self) -> "NDArray":
        return self._new(elementwise.negative(plain(self)))

    def __abs__(self) -> "NDArray":
        return self._new(elementwise.abs(plain(self)))


for _operation in (
    shaping.broadcast_like,
    *(elementwise.abs, elementwise.arccos, elementwise.arccosh, elementwise.arcsin, elementwise.arcsinh),
    *(elementwise.arctan, elementwise.arctanh, elementwise.cbrt, elementwise.ceil, elementwise.clip),
    *(elementwise.cos, elementwise.cosh, elementwise.degrees, elementwise.exp, elementwise.expm1),
    *(elementwise.fix, elementwise.floor, elementwise.log, elementwise.log10, elementwise.log1p),
    *(elementwise.log2, elementwise.ones_like, elementwise.radians, elementwise.rcbrt, elementwise.reciprocal),
    *(elementwise.relu, elementwise.rint, elementwise.round, elementwise.rsqrt, elementwise.shape_array),
    *(elementwise.sigmoid, elementwise.sign, elementwise.sin, elementwise.sinh, elementwise.size_array),
    *(elementwise.sqrt, elementwise.square, elementwise.tan, elementwise.tanh, elementwise.trunc),
    *(elementwise.zeros_like,),
    *(reductions.argmax, reductions.argmax_channel, reductions.argmin, reductions.max, reductions.mean),
    *(reductions.min, reductions.nanprod, reductions.nansum, reductions.norm, reductions.prod, reductions.sum),
    *(pictures.depth_to_space, shaping.diag, shaping.flip, shaping.pad),
    *(shaping.repeat, shaping.reshape_like),
    *(shaping.slice_axis, shaping.slice_like, pictures.space_to_depth, shaping.split, shaping.split_v2),
    *(shaping.swapaxes, shaping.tile),
    *(sorting.argsort, sorting.one_hot, sorting.pick, sorting.sort, sorting.take, sorting.topk),
):
    setattr(NDArray, _operation.__name__, exposed(_operation))
NDArray.slice = exposed(shaping.crop, "slice")  # type: ignore[attr-defined]
NDArray.broadcast_axes = exposed(shaping.broadcast_axis, "broadcast_axes")  # type: ignore[attr-defined]

NDArray.register(ndarray)  # as in MXNet, an np.ndarray is an NDArray; but it does not inherit its methods


_SINCE_2 = {"log_sigmoid": elementwise.log_sigmoid, "mish": elementwise.mish}


def wrap_legacy(tensor: torch.Tensor, ctx: Context | None = None) -> NDArray:
    """The same tensor as an NDArray, in the same graph."""
    return wrapped(NDArray, tensor, ctx)  # type: ignore[no-any-return]


def _combined_with_np(name: str, array: NDArray, other: ndarray, reflected: bool) -> Any:
    """In MXNet 2.x, an operator of both kinds of arrays gives an `np.ndarray`."""
    signs = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%", "power": "**"}
    if name not in signs:
        raise refusal(f"nd.{name} of an NDArray and an np.ndarray", "use x.as_np_ndarray()")
    from leafwise_gluon.ops import arithmetic

    sides = plain(array), plain(other)
    return wrapped(ndarray, arithmetic.binary(signs[name], *(reversed(sides) if reflected else sides)))


def _key(key: Any) -> Any:
    """A key with tensors in place of arrays. A step in it may give a view, as it may not for np arrays."""
    parts = tuple(plain(part) for part in key) if isinstance(key, tuple) else (plain(key),)
    for part in parts:
        if isinstance(part, torch.Tensor) and not part.ndim:
            raise IndexError("NDArray[array of shape ()] is not defined; use x[int(index.asscalar())]")
        if (isinstance(part, torch.Tensor) and part.dtype == torch.bool) or (
            isinstance(part, list | numpy.ndarray) and numpy.asarray(part).dtype == bool
        ):
            raise refusal("NDArray[mask]", "use nd.contrib.boolean_mask(x, mask), or nd.where(mask, x, y)")
    is_alone = not isinstance(key, tuple) and not (isinstance(key, slice) and key.step not in (None, 1))
    return parts[0] if is_alone else parts


def _is_whole(key: Any) -> bool:
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None)) or (isinstance(key, tuple) and not key)


def _from_numpy(values: numpy.ndarray[Any, Any]) -> NDArray:
    return wrap_legacy(torch.from_numpy(values))


def _instead_of(name: str) -> str:
    instead = {"dot": "use nd.dot(x, y)", "as_in_ctx": "use x.as_in_context(ctx)"}
    is_torch = hasattr(torch.Tensor, name)
    otherwise = f"use x.tensor.{name} for PyTorch's" if is_torch else "x.tensor is the underlying torch.Tensor"
    return instead.get(name, otherwise)
