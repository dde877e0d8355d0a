"""The random part of an image that `RandomResizedCrop` takes: (x, y, width, height)."""

import math
import random
from typing import Any

import numpy

from leafwise_gluon.arrays.random_stream import STREAM

Part = tuple[int, int, int, int]
_TRIALS = 10


def chosen_by_python(columns: int, rows: int, scale: Any, ratio: Any) -> Part | None:
    """The choice of MXNet 1.x; None if none of ten parts fits."""
    for _ in range(_TRIALS):
        area = random.uniform(scale[0], scale[1]) * (rows * columns)
        shape = numpy.exp(random.uniform(numpy.log(ratio[0]), numpy.log(ratio[1])))
        width, height = round(float(numpy.sqrt(area * shape))), round(float(numpy.sqrt(area / shape)))
        if width <= columns and height <= rows:
            return random.randint(0, columns - width), random.randint(0, rows - height), width, height
    return None


def chosen_by_stream(columns: int, rows: int, scale: Any, ratio: Any) -> Part | None:
    """The choice of MXNet 2.x, in float32; None if none of ten parts fits."""
    single = numpy.float32
    least, most = single(scale[0]), single(scale[1])
    low, high = numpy.log(single(ratio[0])), numpy.log(single(ratio[1]))
    for _ in range(_TRIALS):
        size, shape = STREAM.uniform((2,))
        area = (size * (most - least) + least) * single(rows * columns)
        quotient = numpy.exp(shape * (high - low) + low)
        width, height = _rounded(numpy.sqrt(area * quotient)), _rounded(numpy.sqrt(area / quotient))
        if width <= columns and height <= rows:
            x, y = STREAM.uniform((2,))
            return int(x * single(columns - width)), int(y * single(rows - height)), width, height
    return None


def middle(columns: int, rows: int, width: int, height: int) -> Part:
    """The part that MXNet 2.x takes if no other fits: of the wanted ratio, and not quite in the middle."""
    wide, high = float(width), float(height)
    if rows < high:
        wide, high = wide * rows / high, float(rows)
    if columns < wide:
        wide, high = float(columns), high * columns / wide
    return (width - int(wide)) // 2, (height - int(high)) // 2, int(wide), int(high)


def _rounded(number: Any) -> int:
    """The nearest integer; halves go up."""
    return math.floor(float(number) + 0.5)
