"""Functions that sort, search and choose elements."""

from typing import Any, NamedTuple

import numpy
import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.np.by_numpy import by_numpy
from leafwise_gluon.np.results import first_array, result, tensor_of
from leafwise_gluon.ops import reductions


def _check_order(name: str, order: Any) -> None:
    if order is not None:
        raise NotImplementedError(f"the Gluon front end does not support np.{name} with order; arrays have no fields")


def sort(
    a: Any, axis: Any = -1, descending: bool = False, stable: bool = True, kind: Any = None, order: Any = None
) -> ndarray:
    """A sorted copy."""
    _check_order("sort", order)
    return result("sort", reductions.sort(tensor_of(a, "sort"), axis, descending, positions=False), a)


def argsort(
    a: Any, axis: Any = -1, descending: bool = False, stable: bool = True, kind: Any = None, order: Any = None
) -> ndarray:
    """The positions that sort an array."""
    _check_order("argsort", order)
    return result("argsort", reductions.sort(tensor_of(a, "argsort"), axis, descending, positions=True), a)


def nonzero(a: Any) -> tuple[ndarray, ...]:
    """The positions of the elements that are not zero, axis by axis."""
    return tuple(result("nonzero", positions, a) for positions in reductions.nonzero(tensor_of(a, "nonzero")))


def flatnonzero(a: Any) -> ndarray:
    return result("flatnonzero", reductions.nonzero(tensor_of(a, "flatnonzero").reshape(-1))[0], a)


def take(a: Any, indices: Any, axis: int | None = None, mode: str | None = "raise", out: Any = None) -> ndarray:
    """The elements at positions along an axis."""
    return result("take", reductions.take(tensor_of(a, "take"), plain(indices), axis, mode), a, out)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Elements of `x` where the condition is true and of `y` elsewhere; without `x` and `y`, where it is true."""
    if isinstance(condition, bool | int | float) and x is not None and y is not None:
        return x if condition else y
    mask = tensor_of(condition, "where") != 0
    if x is None and y is None:
        return wrap(mask).nonzero()
    sides = [plain(side) for side in (x, y)]
    arrays = [side for side in sides if isinstance(side, torch.Tensor)]
    if len({side.dtype for side in arrays}) > 1:
        dtypes = " and ".join(dtype_name(side.dtype) for side in arrays)
        raise MXNetError(f"np.where needs arrays of the same dtype, not {dtypes}; use .astype()")
    dtype = arrays[0].dtype if arrays else torch.float32
    for side in sides:
        if isinstance(side, int) and dtype in (torch.int8, torch.uint8):
            raise refusal(f"np.where of {dtype_name(dtype)} and a number", "use .astype('int32') first")
        if isinstance(side, float) and not dtype.is_floating_point:
            raise refusal("np.where of integers and a float", "use .astype('float32') first")
        if not isinstance(side, torch.Tensor | bool | int | float):
            raise TypeError(f"np.where needs arrays or numbers, not {type(side).__name__}")
    if is_v1() and len(arrays) == 1 and arrays[0].requires_grad:
        raise refusal(
            "the gradient of np.where with a number, which MXNet 1.x gives to the wrong elements",
            "use an array in place of the number",
        )
    first, second = (side if isinstance(side, torch.Tensor) else torch.tensor(side, dtype=dtype) for side in sides)
    return result("where", torch.where(mask, first, second), first_array((x, y, condition)))


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: Any = None
) -> Any:
    """The distinct elements, sorted; also where they come first, where they are, and how often, if asked for."""
    tensor = tensor_of(ar, "unique")
    reductions.check_gradient("np.unique", tensor)
    values: Any = tensor.cpu().numpy()
    asked: Any = (return_index, return_inverse, return_counts, axis)
    computed: Any = numpy.unique(values, *asked)
    parts = computed if isinstance(computed, tuple) else (computed,)
    arrays = []
    for number, part in enumerate(parts):
        is_inverse = return_inverse and number == 1 + return_index
        arrays.append(result("unique", torch.from_numpy(part.reshape(-1) if is_inverse else part), ar))
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


class UniqueAll(NamedTuple):
    """What `np.unique_all` returns."""

    values: ndarray
    indices: ndarray
    inverse_indices: ndarray
    counts: ndarray


class UniqueInverse(NamedTuple):
    """What `np.unique_inverse` returns."""

    values: ndarray
    inverse_indices: ndarray


def unique_values(x: Any) -> ndarray:
    return unique(x)  # type: ignore[no-any-return]


def unique_inverse(x: Any) -> UniqueInverse:
    return UniqueInverse(*unique(x, return_inverse=True))


def unique_all(x: Any) -> UniqueAll:
    return UniqueAll(*unique(x, True, True, True))


def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """The position along each axis for positions in row-major order."""
    if not isinstance(indices, ArrayValues):
        return numpy.unravel_index(indices, shape, order)  # type: ignore[call-overload]
    computed = numpy.unravel_index(indices.asnumpy().astype("int64"), shape, order)  # type: ignore[call-overload]
    dtype = indices.tensor.dtype
    return tuple(result("unravel_index", torch.from_numpy(part.copy()).to(dtype), indices) for part in computed)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Interpolates linearly between points, in float64."""
    if is_v1():
        return by_numpy("interp", numpy.interp, x, xp, fp, left, right, period)
    given = [value.asnumpy() if isinstance(value, ArrayValues) else value for value in (x, xp, fp)]
    tensors = [value.tensor for value in (x, xp, fp) if isinstance(value, ArrayValues)]
    for tensor in tensors:
        if tensor.requires_grad:
            reductions.check_gradient("np.interp", tensor)
    computed = numpy.interp(*given, left, right, period)  # type: ignore[call-overload]
    return result("interp", torch.from_numpy(numpy.asarray(computed)), first_array((x, xp, fp)))


def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Whether two arrays share elements in memory."""
    first, second = (tensor_of(side, "shares_memory") for side in (a, b))
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return False
    (start, end), (other_start, other_end) = (_span(side) for side in (first, second))
    return start < other_end and other_start < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start, start + (int(last) + 1 if tensor.numel() else 0)


may_share_memory = shares_memory


def resize(a: Any, new_shape: Any) -> ndarray:
    """The elements in a new shape, repeated as often as needed."""
    tensor = tensor_of(a, "resize")
    if tensor.requires_grad:
        raise MXNetError("np.resize has no gradient; use np.tile and np.reshape")
    return result("resize", torch.from_numpy(numpy.resize(tensor.cpu().numpy(), new_shape)).to(tensor.device), a)
