"""Functions that make arrays from numbers."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import asked, check_finite, torch_dtype
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.np.results import placed, result, sizes, tensor_of
from leafwise_gluon.ops.ranges import arithmetic_range


def array(object: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    """An array of numbers, float32 unless `dtype` is given; ndarrays and NumPy scalars keep their dtype.

    In MXNet 1.x, NumPy arrays keep their dtype, too.

    >>> from leafwise_gluon import np
    >>> np.array([1, 2])
    array([1., 2.])
    """
    if isinstance(object, ArrayValues | torch.Tensor):
        tensor = plain(object)
        return placed(tensor.clone() if dtype is None else tensor.to(_float_is_32(dtype), copy=True), ctx, device)
    try:
        values = numpy.array(_unwrapped(object))
    except ValueError as error:  # lists of different lengths
        raise TypeError(f"np.array: {error}") from error
    if isinstance(object, numpy.generic) and dtype is None:
        dtype = values.dtype
    if isinstance(object, numpy.ndarray) and dtype is None and is_v1():
        dtype = values.dtype
    if values.dtype.kind not in "biuf":
        raise TypeError(f"np.array needs numbers, not {object!r}")
    target = _float_is_32(dtype)
    if not isinstance(object, numpy.ndarray):
        check_finite("np.array", values, target)
    return placed(torch.from_numpy(values).to(target), ctx, device)


def asarray(obj: Any, dtype: Any = None, device: Any = None, copy: Any = None) -> ndarray:
    """The array itself if it is one of that dtype already, otherwise a new array."""
    if isinstance(obj, ndarray) and (dtype is None or torch_dtype(dtype) == obj.tensor.dtype) and not copy:
        return obj
    return array(obj, dtype, device=device)


def _float_is_32(dtype: Any) -> torch.dtype:
    """A dtype for `np.array`, `np.eye` and `np.empty`, where in MXNet 2.x Python's `float` means float32."""
    return torch.float32 if dtype is float and not is_v1() else torch_dtype(dtype)


def _unwrapped(object: Any) -> Any:
    if isinstance(object, ArrayValues):
        return object.asnumpy()
    return [_unwrapped(item) for item in object] if isinstance(object, list | tuple) else object


def _check_order(name: str, order: str) -> None:
    if order != "C":
        raise NotImplementedError(f"the Gluon front end does not support np.{name} with order {order!r}; use order 'C'")


def zeros(shape: Any = (), dtype: Any = None, order: str = "C", ctx: Any = None, device: Any = None) -> ndarray:
    _check_order("zeros", order)
    return placed(torch.zeros(sizes(shape), dtype=torch_dtype(dtype)), ctx, device)


def ones(shape: Any = (), dtype: Any = None, order: str = "C", ctx: Any = None, device: Any = None) -> ndarray:
    _check_order("ones", order)
    return placed(torch.ones(sizes(shape), dtype=torch_dtype(dtype)), ctx, device)


def empty(shape: Any = (), dtype: Any = None, order: str = "C", ctx: Any = None, device: Any = None) -> ndarray:
    """An array whose values are not set yet; here they are zeros."""
    _check_order("empty", order)
    return placed(torch.zeros(sizes(shape), dtype=_float_is_32(dtype)), ctx, device)


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    ctx: Any = None,
    device: Any = None,
    out: Any = None,
) -> ndarray:
    """An array filled with one number. In MXNet 2.x its dtype follows the number, in 1.x it is float32."""
    _check_order("full", order)
    if dtype is float and not is_v1():
        raise refusal("np.full with dtype=float, which MXNet ignores", "use dtype='float32' or dtype='float64'")
    if isinstance(fill_value, ndarray):
        return fill_value.astype(fill_value.dtype if dtype is None else dtype).broadcast_to(shape)
    if isinstance(fill_value, numpy.generic):
        fill_value = fill_value.item()
    if not isinstance(fill_value, bool | int | float):
        raise MXNetError(f"np.full needs a number or an array, not {type(fill_value).__name__}")
    own = torch.bool if type(fill_value) is bool else torch.float32
    if type(fill_value) is int and not is_v1():
        own = torch.int64
    tensor = torch.full(sizes(shape), fill_value, dtype=own if dtype is None else torch_dtype(dtype))
    return placed(tensor, ctx, device) if out is None else result("full", tensor, out=out)


def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, ctx: Any = None, device: Any = None
) -> ndarray:
    """Numbers from `start` (0 if only one number is given) up to `stop`, float32 by default."""
    first, last = (0, start) if stop is None else (start, stop)
    first, last, step = (_number(value) for value in (first, last, step))
    kind = torch_dtype(dtype)
    if step == 0:
        raise ZeroDivisionError("np.arange: the step is 0")
    if kind is torch.bool:
        raise MXNetError("np.arange is not defined for bool")
    return placed(arithmetic_range(first, last, step, kind), ctx, device)


def _number(value: Any) -> float:
    """An argument of np.arange: a number, or in MXNet 1.x an array without dimensions."""
    if not isinstance(value, ArrayValues):
        return value  # type: ignore[no-any-return]
    if value.ndim or not is_v1():
        raise MXNetError("np.arange needs numbers, not arrays; use float(x) or int(x)")
    return value.item()  # type: ignore[no-any-return]


def eye(
    N: int,  # noqa: N803
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: Any = None,
    ctx: Any = None,
    device: Any = None,
) -> ndarray:
    return placed(torch.from_numpy(numpy.eye(N, M, k)).to(_float_is_32(dtype)), ctx, device)


def identity(n: int, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    return eye(n, dtype=dtype, ctx=ctx, device=device)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    """Ones at and below a diagonal, zeros above it."""
    return placed(torch.from_numpy(numpy.tri(N, M, k)).to(torch_dtype(dtype)), ctx, device)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    ctx: Any = None,
    device: Any = None,
) -> Any:
    """Evenly spaced numbers from `start` to `stop`, which is included unless `endpoint` is False."""
    if isinstance(start, list | tuple | numpy.ndarray | ArrayValues) or isinstance(
        stop, list | tuple | numpy.ndarray | ArrayValues
    ):
        raise NotImplementedError("np.linspace needs numbers as start and stop, not arrays")
    if axis != 0:
        raise NotImplementedError("np.linspace does not support an axis other than 0")
    values = numpy.linspace(start, stop, num, endpoint)
    made = placed(torch.from_numpy(values).to(torch_dtype(dtype)), ctx, device)
    return (made, (stop - start) / (num - 1 if endpoint else num)) if retstep else made


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
    ctx: Any = None,
    device: Any = None,
) -> ndarray:
    """Numbers spaced evenly on a logarithmic scale, from `base ** start` to `base ** stop`."""
    if axis != 0:
        raise NotImplementedError("np.logspace does not support an axis other than 0")
    values = numpy.logspace(start, stop, num, endpoint, base)
    return placed(torch.from_numpy(values).to(torch_dtype(dtype)), ctx, device)


def zeros_like(a: Any, dtype: Any = None, **options: Any) -> ndarray:
    return full_like(a, 0, dtype, name="zeros_like", **options)


def ones_like(a: Any, dtype: Any = None, **options: Any) -> ndarray:
    return full_like(a, 1, dtype, name="ones_like", **options)


def empty_like(prototype: Any, dtype: Any = None, order: str = "C", subok: bool = False, shape: Any = None) -> ndarray:
    """An array like another one, whose values are not set yet; here they are zeros."""
    if (order, subok, shape) != ("C", False, None):
        raise NotImplementedError("the Gluon front end does not support order, subok and shape of np.empty_like")
    return full_like(prototype, 0, dtype, name="empty_like")


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    ctx: Any = None,
    device: Any = None,
    out: Any = None,
    name: str = "full_like",
) -> ndarray:
    _check_order(name, order)
    tensor = tensor_of(a, name).detach()
    if isinstance(fill_value, bool):
        fill_value = int(fill_value)
    if not isinstance(fill_value, int | float):
        raise MXNetError(f"np.{name} needs a number, not {type(fill_value).__name__}")
    return result(name, torch.full_like(tensor, fill_value, dtype=asked(dtype)), a, out)


def copy(a: Any) -> ndarray:
    return result("copy", tensor_of(a, "copy").clone(), a)


def indices(dimensions: Any, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:
    """The index of each element of a grid, along each axis."""
    own = torch.int32 if is_v1() else torch.int64
    values = torch.from_numpy(numpy.indices(tuple(dimensions)))
    return placed(values.to(own if dtype is None else torch_dtype(dtype)), ctx, device)


def _window(name: str, size: int, dtype: Any, ctx: Any, device: Any) -> ndarray:
    return placed(torch.from_numpy(getattr(numpy, name)(size)).to(torch_dtype(dtype)), ctx, device)


def hanning(M: int, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    return _window("hanning", M, dtype, ctx, device)


def hamming(M: int, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    return _window("hamming", M, dtype, ctx, device)


def blackman(M: int, dtype: Any = None, ctx: Any = None, device: Any = None) -> ndarray:  # noqa: N803
    return _window("blackman", M, dtype, ctx, device)


def _positions(arrays: Any) -> tuple[ndarray, ...]:
    return tuple(wrap(torch.from_numpy(numpy.ascontiguousarray(values))) for values in arrays)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[ndarray, ...]:
    return _positions(numpy.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[ndarray, ...]:
    return _positions(numpy.triu_indices(n, k, m))


def triu_indices_from(arr: Any, k: int = 0) -> tuple[ndarray, ...]:
    return triu_indices(arr.shape[-2], k, arr.shape[-1])


def diag_indices_from(arr: Any) -> tuple[ndarray, ...]:
    return _positions(numpy.diag_indices_from(arr.asnumpy()))


def meshgrid(*xi: Any, **options: Any) -> list[ndarray]:
    """Coordinate arrays from vectors; like NumPy's, with `indexing='xy'` or 'ij'."""
    indexing, sparse = options.pop("indexing", "xy"), options.pop("sparse", False)
    copied = options.pop("copy", True)
    if options:
        raise TypeError(f"meshgrid() got an unexpected keyword argument '{next(iter(options))}'")
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    if sparse or not copied:
        raise refusal("np.meshgrid with sparse=True or copy=False", "leave them out")
    tensors = [tensor_of(x, "meshgrid").reshape(-1) for x in xi]
    places = torch.meshgrid(*(torch.arange(len(tensor)) for tensor in tensors), indexing=indexing)  # of any dtypes
    return [result("meshgrid", tensor[at], xi[0]) for tensor, at in zip(tensors, places, strict=True)]
