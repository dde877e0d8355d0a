"""Rows and columns of which all values are zero."""

from typing import Any

import numpy as np

from leafwise.inspect.check.in_place import Place, searched_together
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf


def all_zero_lines(places: list[Place], of: ValuesOf = "value") -> list[list[int]]:
    """For each leaf and axis, the indices along the axis at which all values are zero."""
    flags, others = searched_together(
        places, of, lambda searching, there: searching.zero_lines([leaf.lines(axis, of) for leaf, axis in there])
    )
    flags |= {number: zero_lines(*places[number], of) for number in others}
    return [flags[number].nonzero()[0].tolist() for number in range(len(places))]


def zero_lines(leaf: LeafEvidence, axis: int, of: ValuesOf = "value") -> Any:
    """For each index along an axis, whether all values there are zero."""
    has_nonzero = np.zeros(leaf.shape[axis], bool)
    for start, band in leaf.bands(of):
        nonzero = band != 0
        along_line = tuple(number for number in range(band.ndim) if number != axis)
        if axis == 0:
            has_nonzero[start : start + len(band)] = nonzero.any(along_line)
        else:
            has_nonzero |= nonzero.any(along_line)
    return ~has_nonzero
