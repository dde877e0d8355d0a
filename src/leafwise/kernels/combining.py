"""Weighted sums of arrays: with C code if it was built, otherwise with NumPy."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from leafwise.core.dtypes import BYTE_FLOAT
from leafwise.kernels import casting, cpu, reference
from leafwise.kernels.dtypes import KERNELS
from leafwise.kernels.library import of_this_version

_FIT, _DO_NOT_FIT = 0, 1  # what the C code returns; 2 if the sums fit and some are NaN
_OUT = frozenset(("float64", "float32", "float16", "bfloat16"))  # the dtypes that the C code writes
_IN = frozenset(name for name, number in KERNELS.items() if name in _OUT or number == BYTE_FLOAT)


def combine(arrays: Sequence[Any], weights: Sequence[float], out: Any, saturate: bool = False) -> None:
    """Writes the sum of flat, contiguous NumPy arrays, each multiplied by its weight, into another one; the same bits
    as those of `reference.combine`. If a sum does not fit into the dtype of `out`, raises `WriteError`, or with
    `saturate`, uses the nearest number that fits.

    >>> import numpy as np
    >>> out = np.empty(2, np.float16)
    >>> combine([np.array([1.0, 2.0]), np.array([3.0, 6.0])], [0.5, 0.5], out)
    >>> out
    array([2., 4.], dtype=float16)
    """
    names = tuple(array.dtype.name for array in arrays)
    library = _library() if out.dtype.name in _OUT and _IN.issuperset(names) else None
    if library is not None and _by_library(library, arrays, names, weights, out) != _DO_NOT_FIT:
        return
    # The dtype is not for the C code, or some sums do not fit: the reference raises an error or saturates.
    cpu.check_subnormals()
    out[...] = reference.combine(arrays, weights, out.dtype.name, saturate)


def cast(array: Any, out: Any, saturate: bool = False) -> None:
    """Writes a flat, contiguous NumPy array into one of another dtype, by the rules of `casting`, with the same bits.
    The sum of one array is a cast, except that casts keep some bits of NaN."""
    name = array.dtype.name
    library = _library() if out.dtype.name in _OUT and name in _IN else None
    if library is None or _by_library(library, [array], (name,), [1.0], out) != _FIT:
        out[...] = casting.cast_to(array, out.dtype.name, saturate)


def _library() -> Any:
    """The library that was built from cpu.c; None if there is none, or if it was built from another version."""
    return of_this_version(cpu.loaded(), "leafwise_combine", None, "sums are computed with NumPy, which is slower")


_of_dtypes = cache(lambda names: cpu.of_dtypes(list(names)))


def _by_library(library: Any, arrays: Sequence[Any], names: tuple[str, ...], weights: Sequence[float], out: Any) -> int:
    count = len(arrays)
    assert count == len(weights), (count, len(weights))
    assert all(array.size == out.size and array.flags.c_contiguous for array in (*arrays, out))
    kinds, values_of, values, _ = _of_dtypes(names)
    outcome: int = library.leafwise_combine(
        count,
        out.size,
        (ctypes.c_int64 * count)(*(array.ctypes.data for array in arrays)),
        kinds.ctypes.data,
        values_of.ctypes.data,
        values.ctypes.data,
        (ctypes.c_double * count)(*weights),
        out.ctypes.data,
        KERNELS[out.dtype.name],
        library.leafwise_instruction_sets() - 1,
    )
    return outcome
