"""Rows and columns of which all values are zero."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from leafwise.inspect.check.leaf_evidence import (
    LeafEvidence,
    Place,
    SentLeaf,
    ValuesOf,
    search_by_workers,
    searched_together,
)


def all_zero_lines(places: list[Place], of: ValuesOf = "value") -> list[list[int]]:
    """For each leaf and axis, the indices along the axis at which all values are zero."""
    if places and (ranks := places[0][0].ranks) is not None:
        return [
            flags.nonzero()[0].tolist()
            for flags in ranks.zero_lines([(leaf.number, axis) for leaf, axis in places], of)
        ]
    flags, others = searched_together(
        places, of, lambda searching, there: searching.zero_lines([leaf.lines(axis, of) for leaf, axis in there])
    )
    left = [places[number] for number in others]
    workers = places[0][0].workers if places and of == "value" else None
    searched = (
        [zero_lines(*place, of) for place in left] if workers is None else search_by_workers(workers, zero_lines, left)
    )
    flags |= zip(others, searched, strict=True)
    return [flags[number].nonzero()[0].tolist() for number in range(len(places))]


def zero_lines(leaf: LeafEvidence | SentLeaf, axis: int, of: ValuesOf = "value") -> Any:
    """For each index along an axis, whether all values there are zero."""
    return zero_lines_of(leaf.bands(of), leaf.shape, axis)


def zero_lines_of(bands: Iterable[tuple[int, Any]], shape: tuple[int, ...], axis: int) -> Any:
    """For each index along an axis of an array that is given in bands, whether all values there are zero."""
    has_nonzero = np.zeros(shape[axis], bool)
    for start, band in bands:
        nonzero = band != 0
        along_line = tuple(number for number in range(band.ndim) if number != axis)
        if axis == 0:
            has_nonzero[start : start + len(band)] = nonzero.any(along_line)
        else:
            has_nonzero |= nonzero.any(along_line)
    return ~has_nonzero
