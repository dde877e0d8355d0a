"""Weighted sums of arrays: with C code if it was built, otherwise with NumPy."""

import ctypes
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from leafwise.core.dtypes import BYTE_FLOAT
from leafwise.kernels import cpu, reference
from leafwise.kernels.dtypes import KERNELS

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
    if library is not None and _by_library(library, arrays, names, weights, out):
        return
    # The dtype is not for the C code, or some sums do not fit: the reference raises an error or saturates.
    cpu.check_subnormals()
    out[...] = reference.combine(arrays, weights, out.dtype.name, saturate)


def _library() -> Any:
    """The library that was built from cpu.c; None if there is none, or if it was built from another version."""
    library = cpu.loaded()
    return library if library is not None and _is_of_this_version(library) else None


@cache
def _is_of_this_version(library: Any) -> bool:
    if hasattr(library, "leafwise_combine"):
        pointer, long, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        library.leafwise_combine.argtypes = [long, long, *[pointer] * 6, number, number]
        library.leafwise_combine.restype = long
        return True
    warnings.warn(
        "leafwise's C library is from another version: sums are computed with NumPy, which is slower; "
        "reinstall leafwise to rebuild it (in a clone: pip install -e .)",
        stacklevel=2,
    )
    return False


_of_dtypes = cache(lambda names: cpu.of_dtypes(list(names)))


def _by_library(
    library: Any,
    arrays: Sequence[Any],
    names: tuple[str, ...],
    weights: Sequence[float],
    out: Any,
    instruction_set: int | None = None,
) -> bool:
    """Whether all sums fit."""
    count = len(arrays)
    assert count == len(weights), (count, len(weights))
    assert all(array.size == out.size and array.flags.c_contiguous for array in (*arrays, out))
    kinds, values_of, values, _ = _of_dtypes(names)
    return not library.leafwise_combine(
        count,
        out.size,
        (ctypes.c_int64 * count)(*(array.ctypes.data for array in arrays)),
        kinds.ctypes.data,
        values_of.ctypes.data,
        values.ctypes.data,
        (ctypes.c_double * count)(*weights),
        out.ctypes.data,
        KERNELS[out.dtype.name],
        library.leafwise_instruction_sets() - 1 if instruction_set is None else instruction_set,
    )
