"""Weighted sums of arrays: with C code if it was built, otherwise with NumPy."""

from collections.abc import Sequence
from typing import Any

from leafwise.kernels import reference
from leafwise.kernels.cpu import check_subnormals


def combine(arrays: Sequence[Any], weights: Sequence[float], out: Any, saturate: bool = False) -> None:
    """Writes the sum of flat NumPy arrays, each multiplied by its weight, into another one. If a sum does not fit into
    the dtype of `out`, raises `WriteError`, or with `saturate`, uses the nearest number that fits.

    >>> import numpy as np
    >>> out = np.empty(2, np.float16)
    >>> combine([np.array([1.0, 2.0]), np.array([3.0, 6.0])], [0.5, 0.5], out)
    >>> out
    array([2., 4.], dtype=float16)
    """
    check_subnormals()
    out[...] = reference.combine(arrays, weights, out.dtype.name, saturate)
