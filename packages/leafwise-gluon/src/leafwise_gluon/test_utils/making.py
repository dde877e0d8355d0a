"""Random arrays and shapes, drawn from NumPy's generator as in MXNet, and other arrays for tests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.base import refusal
from leafwise_gluon.context import as_context


def random_arrays(*shapes: Sequence[int]) -> Any:
    """NumPy arrays of float32 from a normal distribution; not in a list if there is one."""
    arrays = [numpy.array(numpy.random.randn(*shape), dtype=numpy.float32) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(
    *shapes: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: Any = numpy.float32
) -> list[Any]:
    return [numpy.random.uniform(low, high, size=shape).astype(dtype) for shape in shapes]


def random_sample(population: Any, k: int) -> Any:
    """`k` elements in the order of `numpy.random.shuffle`."""
    assert 0 <= k <= len(population)
    shuffled = population[:]
    numpy.random.shuffle(shuffled)
    return shuffled[:k]


def rand_ndarray(
    shape: Sequence[int],
    stype: str = "default",
    density: Any = None,
    dtype: Any = None,
    modifier_func: Any = None,
    shuffle_csr_indices: bool = False,
    distribution: Any = None,
    ctx: Any = None,
) -> Any:
    """An `nd.NDArray` from a normal distribution. As in MXNet, the other arguments are for sparse arrays only."""
    if stype != "default":
        raise refusal(f"rand_ndarray with stype={stype!r}", "use 'default'; sparse arrays are not supported")
    context = as_context(ctx)
    values = torch.from_numpy(random_arrays(shape)).to(context.torch_device, torch_dtype(dtype))
    return wrap_legacy(values, context)


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    return tuple(numpy.random.randint(0 if allow_zero_size else 1, size + 1) for size in (dim0, dim1))


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    return tuple(numpy.random.randint(0 if allow_zero_size else 1, size + 1) for size in (dim0, dim1, dim2))


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    return tuple(numpy.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[Any, Any]:
    x = numpy.random.randint(x_low, x_high, dtype=numpy.int64)
    return x, numpy.random.randint(y_low, y_high, dtype=numpy.int64)


def create_vector(size: int, dtype: Any = numpy.int64) -> Any:
    """0, 1, 2, … as an `nd.NDArray`."""
    return wrap_legacy(torch.arange(size).to(torch_dtype(dtype)))


def create_2d_tensor(rows: int, columns: int, dtype: Any = numpy.int64) -> Any:
    """An `nd.NDArray` in which each row is filled with its number."""
    return wrap_legacy(torch.arange(rows).to(torch_dtype(dtype))[:, None].repeat(1, columns))


def assign_each(the_input: Any, function: Callable[[Any], Any] | None) -> Any:
    """A function of each element; without a function, a copy."""
    return numpy.array(the_input) if function is None else numpy.vectorize(function)(the_input)


def assign_each2(input1: Any, input2: Any, function: Callable[[Any, Any], Any] | None) -> Any:
    """A function of the elements of two arrays; without a function, a copy of the first."""
    return numpy.array(input1) if function is None else numpy.vectorize(function)(input1, input2)


def np_reduce(dat: Any, axis: Any, keepdims: bool, numpy_reduce_func: Callable[..., Any]) -> Any:
    """A reduction of NumPy's over several axes, one after the other."""
    axes = [axis] if isinstance(axis, int) else list(range(dat.ndim) if axis is None else axis)
    result = dat
    for number in sorted(axes, reverse=True):
        result = numpy_reduce_func(result, axis=number)
    return result.reshape([1 if i in axes else size for i, size in enumerate(dat.shape)]) if keepdims else result


def collapse_sum_like(a: Any, shape: Sequence[int]) -> Any:
    """Sums along the axes that broadcasting from `shape` has added or enlarged."""
    assert len(a.shape) >= len(shape)
    added = len(a.shape) - len(shape)
    if not numpy.prod(shape) or not a.size:
        return numpy.zeros(shape, dtype=a.dtype)
    enlarged = [added + i for i, size in enumerate(shape) if size != a.shape[added + i]]
    assert all(shape[i - added] == 1 for i in enlarged)
    return numpy.sum(a, axis=(*range(added), *enlarged)).reshape(shape)
