"""Computing with arrays on their devices: statistics, averages, and norms of gradients.

XLA takes milliseconds to compile each operation, so a function of all arrays of a large model would take seconds. The
arrays are sorted by shape, dtype and sharding instead, and the functions get short lists of equal kind: they are
compiled once or twice for each kind of array.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.dtypes import DTYPES
from leafwise.core.results.moments import Moments
from leafwise.core.work.progress import Count
from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import why_unreadable
from leafwise.homes.jax.specs import is_key_dtype
from leafwise.kernels.dtypes import name_of

_ARRAYS_AT_ONCE = 16

F = TypeVar("F", bound=Callable[..., Any])


def _jitted(function: F) -> F:
    """`jax.jit`, which is not annotated, as a decorator that keeps the type of the function."""
    return cast("F", jax.jit(function))


def _in_batches(
    function: Callable[..., Any], *columns: Sequence[Any], shared: tuple[Any, ...] = ()
) -> list[tuple[list[int], Any]]:
    """The results of `function(*lists, *shared)` for lists of arrays, one list from each column; each result with the
    numbers of the arrays in the columns."""
    kinds: dict[Any, list[int]] = {}
    for number, row in enumerate(zip(*columns, strict=True)):
        for value in row:
            if reason := _why_not(value):
                raise Unsupported("jax", "compute with an array", reason)
        kinds.setdefault(tuple(map(_kind, row)), []).append(number)
    results = []
    for numbers in kinds.values():
        for start in range(0, len(numbers), _ARRAYS_AT_ONCE):
            some = numbers[start : start + _ARRAYS_AT_ONCE]
            lists = [[column[number] for number in some] for column in columns]
            results.append((some, function(*lists, *shared)))
    return results


def _in_order(results: list[tuple[list[int], Any]]) -> list[Any]:
    """The results of `_in_batches` in the order of the columns, one for each array."""
    by_number = {number: each for numbers, result in results for number, each in zip(numbers, result, strict=True)}
    return [by_number[number] for number in range(len(by_number))]


def _why_not(value: Any) -> str:
    """Why JAX cannot compute with an array; empty if it can."""
    if not isinstance(value, np.ndarray):
        return "" if isinstance(value, np.generic) else why_unreadable(value)
    if jax.dtypes.canonicalize_dtype(value.dtype) == value.dtype:
        return ""
    return f"it is a NumPy array of {value.dtype}, and JAX would round it to 32 bits; set jax_enable_x64, or convert it"


def _kind(value: Any) -> Any:
    return value.shape, value.dtype, getattr(value, "sharding", None)


# -- statistics ------------------------------------------------------------------------------------------------


class JaxMeasuring(Measuring):
    """On a GPU by XLA, on a CPU by C code, and shard by shard."""

    def cannot_measure(self, value: Any) -> str:
        from leafwise.kernels.xla.device_moments import (
            unknown_jax_dtype,  # late, because averages and clipping do not need it
        )

        if reason := why_unreadable(value):
            return reason
        name = name_of(value.dtype)
        return "" if name not in DTYPES and is_key_dtype(value.dtype) else unknown_jax_dtype(name)

    def measure(self, values: list[Any], histogram: bool, count: Count) -> Callable[[], list[Moments]]:
        from leafwise.kernels.xla.device_moments import measure_arrays

        for value in values:
            if reason := self.cannot_measure(value):
                raise Unsupported(self.home.name, "measure an array", reason)
        arrays = [jax.random.key_data(value) if is_key_dtype(value.dtype) else value for value in values]
        return measure_arrays(arrays, histogram, count)


# -- averages --------------------------------------------------------------------------------------------------


class JaxAveraging(Averaging):
    """For arrays, and for Variables of Flax NNX, whose arrays are replaced. Averages are always arrays of their own: a
    training step may donate the arrays of the model, which deletes them."""

    def with_array(self, value: Any, array: Any) -> Any:
        """The array in place of `value`."""
        return array

    def copy_with(self, value: Any, array: Any) -> Any:
        """A copy of `value` with another array."""
        return array

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        arrays = list(map(self.home.value, values))
        copies = _in_order(_in_batches(_widened if precise else _copied, arrays))
        return list(map(self.copy_with, values, copies))

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        arrays, like = list(map(self.home.value, values)), list(map(self.home.value, targets))
        return list(map(self.with_array, targets, _in_order(_in_batches(_copied_as, like, arrays))))

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        arrays, before = list(map(self.home.value, values)), list(map(self.home.value, targets))
        moved = _in_order(_in_batches(_moved, before, arrays, shared=(weight,)))
        return list(map(self.with_array, targets, moved))


def _wide(array: Any) -> Any:
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
    return jnp.float32 if is_narrow else array.dtype


@_jitted
def _copied(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


@_jitted
def _widened(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) if is_key_dtype(array.dtype) else jnp.array(array, _wide(array)) for array in arrays]


@_jitted
def _copied_as(targets: list[Any], arrays: list[Any]) -> list[Any]:
    pairs = zip(targets, arrays, strict=True)
    return [jnp.copy(array) if array.dtype == target.dtype else array.astype(target.dtype) for target, array in pairs]


@_jitted
def _moved(targets: list[Any], arrays: list[Any], weight: Any) -> list[Any]:
    """As `torch.lerp`, which begins at the nearer end, so that a weight of 1 would give exactly the new value."""
    moved = []
    for target, array in zip(targets, arrays, strict=True):
        end = array.astype(target.dtype)
        step = end - target
        fraction = jnp.asarray(weight, jnp.finfo(target.dtype).dtype)
        moved.append(jnp.where(fraction < 0.5, target + fraction * step, end - step * (1 - fraction)))
    return moved


# -- norms of gradients ----------------------------------------------------------------------------------------


class JaxClipping(Clipping):
    def norms(self, values: list[Any]) -> list[float]:
        arrays = list(map(self.home.value, values))
        norms = _on_host(_in_batches(_norms, arrays))
        unsure = [number for number, norm in enumerate(norms) if not np.isfinite(norm)]
        # Squares overflow long before the norm does.
        again = _on_host(_in_batches(_scaled_norms, [arrays[number] for number in unsure]))
        for number, norm in zip(unsure, again, strict=True):
            norms[number] = norm
        return norms

    def scale_many(self, values: list[Any], factors: list[float]) -> list[Any]:
        arrays = list(map(self.home.value, values))
        each = np.asarray(factors * len(values) if len(factors) == 1 else factors, np.float64)
        return list(map(self.copy_with, values, _in_order(_in_batches(_scaled, arrays, list(each)))))

    def copy_with(self, value: Any, array: Any) -> Any:
        """A copy of `value` with another array."""
        return array


def _on_host(results: list[tuple[list[int], Any]]) -> list[float]:
    """Vectors of numbers as one list; waits only after all of them are being computed."""
    return _in_order([(numbers, np.asarray(result).tolist()) for numbers, result in results])


def _absolute(array: Any) -> Any:
    """The magnitudes of an array, in at least 32 bits."""
    magnitudes = jnp.abs(array)
    return magnitudes.astype(jnp.promote_types(magnitudes.dtype, jnp.float32))


@_jitted
def _norms(arrays: list[Any]) -> Any:
    return jnp.stack([jnp.sqrt(jnp.sum(jnp.square(_absolute(array)))) for array in arrays])


@_jitted
def _scaled_norms(arrays: list[Any]) -> Any:
    """The norms of arrays whose squares overflow, by way of their largest elements."""
    norms = []
    for array in arrays:
        magnitudes = _absolute(array)
        largest = jnp.max(magnitudes, initial=0)
        norms.append(
            jnp.where(jnp.isfinite(largest), largest * jnp.sqrt(jnp.sum(jnp.square(magnitudes / largest))), largest)
        )
    return jnp.stack(norms)


@_jitted
def _scaled(arrays: list[Any], factors: list[Any]) -> list[Any]:
    pairs = zip(arrays, factors, strict=True)
    return [(array * factor).astype(array.dtype) for array, factor in pairs]
