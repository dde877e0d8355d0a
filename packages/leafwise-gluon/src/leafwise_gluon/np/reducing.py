"""Functions that reduce arrays along axes: sums, means, extremes, quantiles, counts."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.dtypes import asked
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import refusal
from leafwise_gluon.np.results import result, tensor_of
from leafwise_gluon.ops import reductions, statistics


def _check_options(name: str, initial: Any, where: Any) -> None:
    if initial is not None or where is not None:
        raise ValueError(f"the Gluon front end does not support np.{name} with initial or where; use np.where first")


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> ndarray:
    """The sum along axes. Integers keep their dtype, and overflow as they do in MXNet.

    >>> from leafwise_gluon import np
    >>> np.sum(np.ones((2, 3)), axis=0)
    array([2., 2., 2.])
    """
    _check_options("sum", initial, where)
    return result("sum", reductions.sum(tensor_of(a, "sum"), axis, asked(dtype), keepdims), a, out)


def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None
) -> ndarray:
    _check_options("prod", initial, None)
    return result("prod", reductions.prod(tensor_of(a, "prod"), axis, asked(dtype), keepdims), a, out)


product = prod


def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return result("mean", reductions.mean(tensor_of(a, "mean"), axis, asked(dtype), keepdims), a, out)


def std(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False) -> ndarray:
    return result("std", reductions.moment("std", tensor_of(a, "std"), axis, asked(dtype), ddof, keepdims), a, out)


def var(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False) -> ndarray:
    return result("var", reductions.moment("var", tensor_of(a, "var"), axis, asked(dtype), ddof, keepdims), a, out)


def _reduction(name: str, compute: Callable[[torch.Tensor, Any, bool], torch.Tensor]) -> Callable[..., ndarray]:
    def function(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return result(name, compute(tensor_of(a, name), axis, keepdims), a, out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` along axes, or of all elements."
    return function


max = _reduction("max", lambda tensor, axis, keepdims: reductions.extremum("max", tensor, axis, keepdims))
min = _reduction("min", lambda tensor, axis, keepdims: reductions.extremum("min", tensor, axis, keepdims))
amax, amin = max, min
all = _reduction("all", lambda tensor, axis, keepdims: reductions.truth("all", tensor, axis, keepdims))
any = _reduction("any", lambda tensor, axis, keepdims: reductions.truth("any", tensor, axis, keepdims))
sometrue = any
argmax = _reduction("argmax", lambda tensor, axis, keepdims: reductions.position("argmax", tensor, axis, keepdims))
argmin = _reduction("argmin", lambda tensor, axis, keepdims: reductions.position("argmin", tensor, axis, keepdims))


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    return result("cumsum", reductions.cumsum(tensor_of(a, "cumsum"), axis, asked(dtype)), a, out)


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, out: Any = None) -> Any:
    """The average, weighted if weights are given; with `returned`, also the sum of the weights."""
    given = None if weights is None else tensor_of(weights, "average")
    mean_of, scale = statistics.average(tensor_of(a, "average"), axis, given)
    array = result("average", mean_of, a, out)
    return [array, result("average", scale, a)] if returned else array


def _refuse_overwriting(overwrite_input: Any) -> None:
    if overwrite_input is not None:
        raise NotImplementedError("overwrite_input is not supported yet")


def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = None, keepdims: bool = False) -> ndarray:
    _refuse_overwriting(overwrite_input)
    computed = statistics.quantile("median", tensor_of(a, "median"), 0.5, axis, "linear", keepdims)
    return result("median", computed, a, out)


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = None,
    interpolation: str = "linear",
    keepdims: bool = False,
) -> ndarray:
    _refuse_overwriting(overwrite_input)
    computed = statistics.quantile("quantile", tensor_of(a, "quantile"), plain(q), axis, interpolation, keepdims)
    return result("quantile", computed, a, out)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: Any = None,
    interpolation: str = "linear",
    keepdims: bool = False,
) -> ndarray:
    _refuse_overwriting(overwrite_input)
    computed = statistics.quantile("percentile", tensor_of(a, "percentile"), plain(q), axis, interpolation, keepdims)
    return result("percentile", computed, a, out)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> ndarray:
    """The differences of neighbours along an axis, `n` times."""
    if prepend is not None or append is not None:
        raise refusal("np.diff with prepend or append, which MXNet ignores", "use np.concatenate first")
    return result("diff", statistics.differences(tensor_of(a, "diff"), n, axis), a)


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> ndarray:
    computed = statistics.flat_differences(tensor_of(ary, "ediff1d"), plain(to_begin), plain(to_end))
    return result("ediff1d", computed, ary)


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, out: Any = None) -> ndarray:
    """The sum along a diagonal."""
    return result("trace", reductions.trace(tensor_of(a, "trace"), offset, axis1, axis2), a, out)


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> ndarray:
    """How often each integer occurs; with weights, the sum of its weights."""
    return result("bincount", statistics.counts(tensor_of(x, "bincount"), plain(weights), minlength), x)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, normed: Any = None, weights: Any = None, density: Any = None
) -> tuple[ndarray, ndarray]:
    """How many elements lie between the edges of bins, and the edges."""
    if normed is not None or weights is not None or density is not None:
        raise NotImplementedError("the Gluon front end does not support np.histogram with weights or density")
    if not isinstance(bins, ArrayValues) and range is None:
        raise NotImplementedError("np.histogram needs a range, or an array of edges as bins")
    tensor = tensor_of(a, "histogram").detach()
    edges = bins.asnumpy() if isinstance(bins, ArrayValues) else bins
    numbers, computed = numpy.histogram(tensor.cpu().numpy(), edges, range)
    bin_edges = bins.tensor.detach() if isinstance(bins, ArrayValues) else torch.from_numpy(computed).to(tensor.dtype)
    return result("histogram", torch.from_numpy(numbers), a), result("histogram", bin_edges, a)


def polyval(p: Any, x: Any) -> ndarray:
    """The value of a polynomial with coefficients `p`, highest power first."""
    return result("polyval", statistics.polynomial(tensor_of(p, "polyval"), tensor_of(x, "polyval")), p)
