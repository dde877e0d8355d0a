"""New arrays of `nd`."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import check_finite, dtype_name, torch_dtype
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.arrays.legacy_calls import write_whole
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.context import as_context, current_context
from leafwise_gluon.modes import is_np_shape
from leafwise_gluon.ops.legacy.shaping import as_tuple
from leafwise_gluon.ops.ranges import arithmetic_range
from leafwise_gluon.ops.shaping import owned

__all__ = [
    "arange",
    "array",
    "concatenate",
    "empty",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "histogram",
    "linspace",
    "moveaxis",
    "onehot_encode",
    "ones",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "waitall",
    "zeros",
]


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """An array of numbers: float32 unless `dtype` is given; NDArrays keep their dtype.

    >>> from leafwise_gluon import nd
    >>> nd.array([1, 2])
    <BLANKLINE>
    [1. 2.]
    <NDArray 2 @cpu(0)>
    """
    context = as_context(ctx)
    if isinstance(source_array, ArrayValues | torch.Tensor):
        tensor = plain(source_array)
        target = tensor.dtype if dtype is None else torch_dtype(dtype)
        return wrap_legacy(tensor.to(context.torch_device, target, copy=True), context)
    values = numpy.array(source_array) if not isinstance(source_array, list | tuple) else _values(source_array)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"nd.array: source_array must be array like object, not {type(source_array)}")
    target = torch_dtype(dtype)
    if isinstance(source_array, list | tuple):
        check_finite("nd.array", values, target)
    return wrap_legacy(torch.from_numpy(numpy.array(values)).to(target).to(context.torch_device), context)


def _values(items: Any) -> Any:
    if any(isinstance(item, ArrayValues) for item in items):
        raise TypeError("nd.array: a list of NDArrays is not an array; use nd.stack(*arrays)")
    try:
        return numpy.array(items) if items else numpy.zeros(0, dtype="float32")
    except ValueError as error:
        raise TypeError(f"nd.array: source_array must be array like object: {error}") from error


def _filled(name: str, shape: Any, value: float, ctx: Any, dtype: Any, out: NDArray | None = None) -> NDArray:
    sizes = tuple(int(size) for size in as_tuple(shape))
    if min(sizes, default=0) < 0:
        raise MXNetError(f"nd.{name}: a shape cannot have negative sizes, such as {sizes}")
    if not is_np_shape() and 0 in (sizes or (0,)):
        raise MXNetError(f"nd.{name}: the shape {sizes} is not known; sizes of 0 need mx.util.np_shape()")
    context = current_context() if ctx is None else as_context(ctx)
    kind = torch_dtype(dtype)
    number = value if kind.is_floating_point else int(value)
    tensor = torch.full(sizes, number, dtype=kind, device=context.torch_device)
    if out is None:
        return wrap_legacy(tensor, context)
    write_whole(f"nd.{name}", out, tensor.to(torch_dtype(out.dtype)))
    return out


def zeros(
    shape: Any, ctx: Any = None, dtype: Any = None, stype: str | None = None, *, out: NDArray | None = None
) -> NDArray:
    if stype not in (None, "default"):
        raise refusal(f"nd.zeros with stype={stype!r}", "arrays are dense; leave it out")
    return _filled("zeros", shape, 0, ctx, dtype, out)


def ones(shape: Any, ctx: Any = None, dtype: Any = None, *, out: NDArray | None = None) -> NDArray:
    return _filled("ones", shape, 1, ctx, dtype, out)


def full(shape: Any, val: float, ctx: Any = None, dtype: Any = None, out: Any = None) -> NDArray:
    return _filled("full", shape, val, ctx, dtype, out)


def empty(shape: Any, ctx: Any = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array whose values do not matter; they are zeros."""
    return zeros(shape, ctx, dtype, stype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: Any = None,
    ctx: Any = None,
    dtype: Any = None,
) -> NDArray:
    """Numbers from `start` up to `stop`, each of them `repeat` times."""
    first, last = (0, start) if stop is None else (start, stop)
    if not step:
        raise MXNetError("nd.arange: the step cannot be 0")
    kind = torch_dtype(dtype)
    if kind in (torch.bool, torch.int16, torch.uint16, torch.uint32):
        raise MXNetError(f"nd.arange is not defined for {dtype_name(kind)}; use .astype() on the result")
    numbers = arithmetic_range(first, last, step, kind)
    if not len(numbers):
        raise MXNetError(f"nd.arange: there is no number from {first} to {last} in steps of {step}")
    return array(numbers.repeat_interleave(repeat), ctx)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, ctx: Any = None, dtype: Any = None) -> NDArray:
    return array(numpy.linspace(start, stop, num, endpoint), ctx, torch_dtype(dtype))


def eye(N: int, M: int = 0, k: int = 0, ctx: Any = None, dtype: Any = None) -> NDArray:  # noqa: N803
    return array(numpy.eye(N, M or N, k), ctx, torch_dtype(dtype))


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Arrays joined along an axis, the first one by default."""
    assert arrays
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    tensors = [plain(item) for item in arrays]
    assert len({tensor.dtype for tensor in tensors}) == 1, "nd.concatenate needs arrays of the same dtype"
    if len(tensors) > 1 and any(tensor.requires_grad for tensor in tensors):
        raise refusal("nd.concatenate of arrays that need a gradient under autograd.record()", "use nd.concat")
    return wrap_legacy(torch.cat(tensors, axis), arrays[0].ctx)


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """A copy with some axes in other places."""
    axes = [list(axis) if isinstance(axis, range) else axis for axis in (source, destination)]
    try:
        moved = torch.movedim(plain(tensor), *axes)
    except (IndexError, RuntimeError, TypeError) as error:
        raise ValueError(f"nd.moveaxis: {error}") from error
    return wrap_legacy(owned(moved), tensor.ctx)


def histogram(a: NDArray, bins: Any = 10, range: Any = None) -> Any:
    """The number of elements in each bin, and the edges of the bins."""
    values = a.asnumpy()
    if isinstance(bins, NDArray):
        counts, edges = numpy.histogram(values, bins.asnumpy())
    else:
        counts, edges = numpy.histogram(values, bins, range)
    if range is None and not isinstance(bins, NDArray):  # MXNet leaves this case to NumPy
        return array(counts), array(edges, dtype=a.dtype)
    return [array(counts, dtype="int64"), array(edges, dtype=a.dtype)]


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Writes the one-hot rows of indices to an array, and returns it."""
    out[:] = indices.one_hot(depth=out.shape[1])
    return out


def from_numpy(ndarray: Any, zero_copy: bool = True) -> NDArray:
    """An array over the memory of a NumPy array, which must not be written to any more; or a copy."""
    if not ndarray.flags["C_CONTIGUOUS"]:
        raise ValueError("Only c-contiguous arrays are supported for zero-copy")
    if not zero_copy:
        return wrap_legacy(torch.from_numpy(ndarray.copy()))
    tensor = torch.from_numpy(ndarray)
    ndarray.flags["WRITEABLE"] = False
    return wrap_legacy(tensor)


def from_dlpack(dlpack: Any) -> NDArray:
    return wrap_legacy(torch.utils.dlpack.from_dlpack(dlpack))


def to_dlpack_for_read(data: NDArray) -> Any:
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> Any:
    return data.to_dlpack_for_write()


def waitall() -> None:
    """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""
