"""Calls of jitted functions on many arrays at once.

XLA takes milliseconds to compile each operation, so a function of all arrays of a large model would take seconds. The
arrays are sorted by shape, dtype and sharding instead, and the functions get short lists of equal kind: they are
compiled once or twice for each kind of array.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np

from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import why_unreadable

_ARRAYS_AT_ONCE = 16

F = TypeVar("F", bound=Callable[..., Any])


def jitted(function: F) -> F:
    """`jax.jit`, which is not annotated, as a decorator that keeps the type of the function."""
    return cast("F", jax.jit(function))


def in_batches(
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


def in_order(results: list[tuple[list[int], Any]]) -> list[Any]:
    """The results of `in_batches` in the order of the columns, one for each array."""
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
