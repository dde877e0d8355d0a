"""Arrays that behave like MXNet's `np.ndarray`.

They print like NumPy's, default to float32, and are differentiated only inside `autograd.record()`. Their methods are
MXNet's, with its dtypes, results and copies. PyTorch's functions accept arrays and return arrays.
"""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon import dialect, modes
from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.differentiable import DifferentiableArray
from leafwise_gluon.arrays.dtypes import asked, dtype_name, torch_dtype
from leafwise_gluon.arrays.overlap import check_overlap
from leafwise_gluon.arrays.refused import refusal_of
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.context import Context, as_context, current_context
from leafwise_gluon.ops import arithmetic, elementwise, indexing, reductions, shaping


def _operand(value: Any, sign: str) -> Any:
    if dialect.is_v1() and isinstance(value, ArrayValues) and not isinstance(value, ndarray):
        raise TypeError(f"ndarray {sign} of an NDArray is not defined in MXNet 1.x; use x.as_np_ndarray()")
    return arithmetic.operand(plain(value), sign)


def _operator(sign: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return self._like(arithmetic.binary(sign, plain(self), _operand(other, sign)))

    return operate


def _reflected(sign: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return self._like(arithmetic.binary(sign, _operand(other, sign), plain(self)))

    return operate


def _in_place(sign: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        if dialect.is_v1() and sign == "**":  # it has no form in place there: x **= 2 makes a new array
            return self._like(arithmetic.binary(sign, plain(self), _operand(other, sign)))
        self._check_write(f"{sign}=", other)
        check_overlap(f"ndarray {sign}=", self, other)
        target = plain(self)
        result = arithmetic.binary(sign, target, _operand(other, f"{sign}="))
        if result.dtype != target.dtype:
            dtypes = f"a result of dtype {dtype_name(result.dtype)} into an array of dtype {dtype_name(target.dtype)}"
            raise MXNetError(f"ndarray {sign}=: cannot write {dtypes}; write x = x {sign} y")
        if result.shape != target.shape:
            shapes = f"a result of shape {tuple(result.shape)} into an array of shape {tuple(target.shape)}"
            raise MXNetError(f"ndarray {sign}=: cannot write {shapes}; write x = x {sign} y")
        with torch.no_grad():
            target.copy_(result)
        return self

    return operate


class ndarray(DifferentiableArray):  # noqa: N801
    """An array like `mxnet.np.ndarray`. `tensor` is the underlying `torch.Tensor`.

    >>> from leafwise_gluon import np
    >>> x = np.array([[1, 2], [3, 4]])
    >>> print(x @ x)
    [[ 7. 10.]
     [15. 22.]]
    >>> x.shape, x.dtype
    ((2, 2), dtype('float32'))
    """

    __slots__ = ()
    __array_priority__ = 1000.0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal_of(name), name=name, obj=self)

    def _like(self, tensor: torch.Tensor) -> "ndarray":
        return wrapped(ndarray, tensor, self.own_context)  # type: ignore[no-any-return]

    # -- NumPy's functions -------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from leafwise_gluon.np.dispatch import of_ufunc

        return of_ufunc(ufunc, inputs, kwargs) if method == "__call__" else NotImplemented

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from leafwise_gluon.np.dispatch import of_function

        return of_function(func, args, kwargs)

    # -- copies and conversions ----------------------------------------------------------------------------

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> "ndarray":
        target = torch_dtype(dtype)
        if (order, casting, subok) != ("K", "unsafe", True):
            raise refusal("ndarray.astype with order, casting or subok", "leave them out")
        if not copy and target == self.tensor.dtype:
            return self
        return self._like(plain(self).to(target, copy=True))

    def copy(self) -> "ndarray":
        return self._like(plain(self).clone())

    def copyto(self, other: Any) -> "ndarray":
        """Copies the values into another array, and returns that array; or makes a copy in another context."""
        if isinstance(other, Context):
            return wrap(plain(self).to(other.torch_device, copy=True), other)
        if not isinstance(other, ndarray) or other.shape != self.shape or other.dtype != self.dtype:
            raise refusal("ndarray.copyto to another shape, dtype or device", "use other[:] = x")
        other[() if not other.ndim else slice(None)] = self
        return other

    def __copy__(self) -> "ndarray":
        return self._like(plain(self).detach().clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> "ndarray":
        context = current_context()  # as in MXNet, where a deep copy does not keep its context
        copied: ndarray = memo.setdefault(
            id(self), wrap(self.tensor.detach().clone().to(context.torch_device), context)
        )
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _from_numpy, (self.asnumpy(),)

    def as_in_ctx(self, ctx: Any) -> "ndarray":
        """The array itself if it is on that device already, otherwise a copy on that device."""
        target = as_context(ctx)
        return self if target == self.ctx else wrap(plain(self).to(target.torch_device, copy=True), target)

    to_device = as_in_ctx

    def as_in_context(self, context: Any) -> "ndarray":
        """Like `to_device`, but always a new object."""
        return wrap(plain(self.to_device(context)), as_context(context))

    def as_np_ndarray(self) -> "ndarray":
        return self

    def as_nd_ndarray(self) -> Any:
        """An `nd.NDArray` over the same memory, in the same graph."""
        from leafwise_gluon.arrays.legacy import wrap_legacy

        return wrap_legacy(self.tensor, self.ctx)

    def wait_to_read(self) -> None:
        """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""

    def _result(self, tensor: torch.Tensor, out: Any) -> "ndarray":
        """A result as an array, or written into `out`."""
        if out is None:
            return self._like(tensor)
        from leafwise_gluon.np.results import result

        return result("ndarray", tensor, self, out)

    # -- indices -------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        part = indexing.read(plain(self), _plain_key(key))
        if part is None:
            return self
        if not part.ndim and not modes.is_np_shape() and dialect.is_v1():
            part = part.reshape(1)  # shapes of () exist there only after set_np()
        return self._like(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        if differentiating() and _is_whole(key) and not self.tensor.requires_grad and plain(value) is not value:
            # The whole array is computed anew, so that it becomes part of the graph.
            computed = plain(value)
            if computed.requires_grad and computed.shape == self.tensor.shape and computed.dtype == self.tensor.dtype:
                target = self.tensor.detach()
                self.tensor = target.copy_(computed)
                return
        self._check_write("[key] =", value)
        with torch.no_grad():
            indexing.write(plain(self), _plain_key(key), plain(value))

    def __delitem__(self, key: Any) -> None:
        raise AttributeError("__delitem__")

    def _check_write(self, operation: str, value: Any) -> None:
        tensors = [plain(array) for array in (self, value) if isinstance(array, ArrayValues | torch.Tensor)]
        if differentiating() and any(tensor.requires_grad for tensor in tensors):
            raise MXNetError(
                f"the Gluon front end does not support ndarray {operation} under autograd.record() on arrays that need "
                "a gradient; compute a new array, or write under autograd.pause()"
            )

    # -- shapes: each method copies -------------------------------------------------------------------------

    @property
    def T(self) -> "ndarray":  # noqa: N802
        return self._like(shaping.transposed(plain(self)))

    @property
    def mT(self) -> "ndarray":  # noqa: N802
        if self.ndim < 2:
            raise MXNetError(f"ndarray.mT needs an array of at least 2 dimensions, not {self.ndim}")
        return self._like(shaping.swapped(plain(self), -1, -2))

    def transpose(self, *axes: Any) -> "ndarray":
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return self._like(shaping.transposed(plain(self), order))

    def swapaxes(self, axis1: int, axis2: int) -> "ndarray":
        return self._like(shaping.swapped(plain(self), axis1, axis2))

    def reshape(self, *shape: Any, order: str = "C") -> "ndarray":
        return self._like(shaping.reshaped("ndarray.reshape", plain(self), _shape(shape), order))

    def reshape_view(self, *shape: Any, order: str = "C") -> "ndarray":
        """Like `reshape`, but over the same memory."""
        return self._like(shaping.viewed("ndarray.reshape_view", plain(self), _shape(shape), order))

    def flatten(self, order: str = "C") -> "ndarray":
        return self._like(shaping.reshaped("ndarray.flatten", plain(self), -1, order))

    def squeeze(self, axis: Any = None) -> "ndarray":
        return self._like(shaping.squeezed(plain(self), axis))

    def broadcast_to(self, shape: Any) -> "ndarray":
        return self._like(shaping.broadcast(plain(self), shape))

    def repeat(self, repeats: Any, axis: int | None = None) -> "ndarray":
        return self._like(shaping.repeated(plain(self), repeats, axis))

    def tile(self, reps: Any) -> "ndarray":
        return self._like(shaping.tiled(plain(self), reps))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> "ndarray":
        return self._like(shaping.diagonal(plain(self), offset, axis1, axis2))

    # -- reductions ------------------------------------------------------------------------------------------

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.sum(plain(self), axis, asked(dtype), keepdims), out)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.mean(plain(self), axis, asked(dtype), keepdims), out)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.extremum("max", plain(self), axis, keepdims), out)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.extremum("min", plain(self), axis, keepdims), out)

    def std(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
    ) -> "ndarray":
        return self._result(reductions.moment("std", plain(self), axis, asked(dtype), ddof, keepdims), out)

    def var(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
    ) -> "ndarray":
        return self._result(reductions.moment("var", plain(self), axis, asked(dtype), ddof, keepdims), out)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.truth("all", plain(self), axis, keepdims), out)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.truth("any", plain(self), axis, keepdims), out)

    def argmax(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.position("argmax", plain(self), axis, keepdims), out)

    def argmin(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> "ndarray":
        return self._result(reductions.position("argmin", plain(self), axis, keepdims), out)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> "ndarray":
        return self._result(reductions.cumsum(plain(self), axis, asked(dtype)), out)

    # -- sorting and searching -------------------------------------------------------------------------------

    def sort(self, axis: Any = -1, descending: bool = False) -> "ndarray":
        return self._like(reductions.sort(plain(self), axis, descending, positions=False))

    def argsort(self, axis: Any = -1, descending: bool | str = False) -> "ndarray":
        if descending and dialect.is_v1():  # the second argument is `kind` in MXNet 1.x, which changes nothing
            if not isinstance(descending, str):
                raise refusal("ndarray.argsort with descending in MXNet 1.x", "use np.argsort(-x)")
            descending = False
        return self._like(reductions.sort(plain(self), axis, descending, positions=True))

    def nonzero(self) -> tuple["ndarray", ...]:
        return tuple(self._like(positions) for positions in reductions.nonzero(plain(self)))

    def take(self, indices: Any, axis: int | None = None, mode: str | None = "raise") -> "ndarray":
        return self._like(reductions.take(plain(self), plain(indices), axis, mode))

    # -- arithmetic ------------------------------------------------------------------------------------------

    __add__, __radd__, __iadd__ = _operator("+"), _reflected("+"), _in_place("+")
    __sub__, __rsub__, __isub__ = _operator("-"), _reflected("-"), _in_place("-")
    __mul__, __rmul__, __imul__ = _operator("*"), _reflected("*"), _in_place("*")
    __truediv__, __rtruediv__, __itruediv__ = _operator("/"), _reflected("/"), _in_place("/")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operator("//"), _reflected("//"), _in_place("//")
    __mod__, __rmod__, __imod__ = _operator("%"), _reflected("%"), _in_place("%")
    __pow__, __ipow__ = _operator("**"), _in_place("**")
    __rpow__ = _reflected("**")
    __matmul__, __rmatmul__ = _operator("@"), _reflected("@")
    __and__, __rand__, __iand__ = _operator("&"), _reflected("&"), _in_place("&")
    __or__, __ror__, __ior__ = _operator("|"), _reflected("|"), _in_place("|")
    __xor__, __rxor__, __ixor__ = _operator("^"), _reflected("^"), _in_place("^")
    __lshift__, __rlshift__, __ilshift__ = _operator("<<"), _reflected("<<"), _in_place("<<")
    __rshift__, __rrshift__, __irshift__ = _operator(">>"), _reflected(">>"), _in_place(">>")
    __eq__, __ne__ = _operator("=="), _operator("!=")
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")

    def __imatmul__(self, other: Any) -> Any:
        raise refusal("ndarray @=", "write x = x @ y")

    def __neg__(self) -> "ndarray":
        return self._like(elementwise.elementwise("negative", plain(self)))

    def __pos__(self) -> "ndarray":
        return self.copy()

    def __invert__(self) -> "ndarray":
        return self._like(torch.bitwise_not(plain(self)))

    def __abs__(self) -> "ndarray":
        return self._like(elementwise.elementwise("abs", plain(self)))

    def __round__(self, ndigits: int = 0) -> "ndarray":
        return self.round(ndigits)

    def __floor__(self) -> "ndarray":
        return self._rounded("floor")

    def __ceil__(self) -> "ndarray":
        return self._rounded("ceil")

    def __trunc__(self) -> "ndarray":
        return self._rounded("trunc")

    def _rounded(self, name: str) -> "ndarray":
        is_same = self.dtype.kind in "iu" and not dialect.is_v1()
        return self if is_same else self._like(elementwise.elementwise(name, plain(self)))

    def dot(self, b: Any) -> "ndarray":
        return self._like(arithmetic.dot(plain(self), plain(b)))

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> "ndarray":
        return self._result(elementwise.clipped(plain(self), min, max), out)

    def round(self, decimals: int = 0, out: Any = None) -> "ndarray":
        return self._result(elementwise.rounded(plain(self), decimals), out)


# -- arrays and tensors -------------------------------------------------------------------------------------------


def wrap(tensor: torch.Tensor, ctx: Context | None = None) -> ndarray:
    """The same tensor as an ndarray, in the same graph."""
    return wrapped(ndarray, tensor, ctx)  # type: ignore[no-any-return]


def _is_whole(key: Any) -> bool:
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))


def _plain_key(key: Any) -> Any:
    return tuple(plain(part) for part in key) if isinstance(key, tuple) else plain(key)


def _shape(args: tuple[Any, ...]) -> Any:
    """A shape from the arguments of `reshape`: integers, or one tuple of them."""
    return args[0] if len(args) == 1 and isinstance(args[0], int | tuple) else args


def _from_numpy(values: Any) -> ndarray:
    return wrap(torch.from_numpy(values))
