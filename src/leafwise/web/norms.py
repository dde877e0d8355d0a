"""Norms of the rows and columns of a leaf, binned to what a curve can show."""

import math
from typing import Any

import numpy as np

from leafwise.core.capabilities.measuring import reader
from leafwise.core.leaf import Leaf
from leafwise.errors import QueryError
from leafwise.inspect.image.grids import axis_down, boxes
from leafwise.render.phrases import bytes_text
from leafwise.web.numbers import num
from leafwise.web.pictures import layouts_of

_BINS = 512
_BAND = 1 << 20  # values in memory at a time
_MOST = 1 << 31  # values of a leaf


def norms_of(leaf: Leaf) -> dict[str, Any] | None:
    """The norms along the axis of the outputs and along the longest other one; None for a leaf with one axis."""
    names, _ = layouts_of(leaf)
    shape = leaf.shape or ()
    if not names or names == ["strip"]:
        return None
    if leaf.size > _MOST:
        raise QueryError(f"{bytes_text(leaf.nbytes)} are too many to read for a curve")
    down = axis_down(shape, leaf.axes)
    rest = [axis for axis, size in enumerate(shape) if axis != down and size > 1]
    named = [axis for axis in rest if leaf.axes and leaf.axes[axis] == "in"]
    axes = [down, *(named or sorted(rest, key=lambda axis: -shape[axis]))[:1]]
    squares = {axis: np.zeros(shape[axis]) for axis in axes}
    columns = leaf.columns
    value = columns.current(leaf.row)
    read = reader(columns.home(value), value)
    for box in boxes(shape, _BAND):
        with np.errstate(invalid="ignore", over="ignore"):
            part = np.asarray(read(box)).astype(np.float64) ** 2
            for axis, total in squares.items():
                others = tuple(other for other in range(len(shape)) if other != axis)
                total[box[axis]] += part.sum(axis=others)
    return {"axes": [_curve(leaf, axis, np.sqrt(total)) for axis, total in squares.items()], "note": None}


def _curve(leaf: Leaf, axis: int, norms: Any) -> dict[str, Any]:
    count = len(norms)
    per_bin = math.ceil(count / _BINS)
    starts = np.arange(0, count, per_bin)
    lengths = np.diff([*starts, count])
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(norms, starts) / lengths
    name = leaf.axes[axis] if leaf.axes else f"axis {axis}"
    return {
        "label": f"norms of {count:,} slices along {name}",
        "count": count,
        "per_bin": per_bin,
        "low": [num(value) for value in np.minimum.reduceat(norms, starts).tolist()],
        "mean": [num(value) for value in mean.tolist()],
        "high": [num(value) for value in np.maximum.reduceat(norms, starts).tolist()],
    }
