"""The colors of values: blue below zero, red above, nearly white at zero.

Both arms are equally light at equal magnitude, so that the picture still reads where colors do not: in print, and for
those who do not tell them apart. Blue against orange-red is told apart by nearly everybody.
"""

from functools import cache
from typing import Any

import numpy as np

Color = tuple[int, int, int]

STEPS = 125  # colors on each side of zero
NAN, INFINITE, GAP, EMPTY = range(2 * STEPS + 1, 2 * STEPS + 5)  # and these, of which there is one each

# From the lower end to the upper, evenly spaced.
_ANCHORS = ("083572", "1a69bc", "52a4ee", "abd7fd", "f7f7f7", "f7c5a7", "e28153", "ae3f29", "671518")
_OTHERS: tuple[Color, ...] = ((0, 0, 0), (255, 0, 220), (128, 128, 128), (255, 255, 255))


@cache
def palette() -> tuple[Color, ...]:
    """The color of each number: values from the lower end to the upper, then the others."""
    anchors = [tuple(bytes.fromhex(anchor)) for anchor in _ANCHORS]
    return (*(_between(anchors, step / (2 * STEPS)) for step in range(2 * STEPS + 1)), *_OTHERS)


def _between(anchors: list[tuple[int, ...]], share: float) -> Color:
    place = share * (len(anchors) - 1)
    number = min(int(place), len(anchors) - 2)
    low, high = anchors[number], anchors[number + 1]
    red, green, blue = (round(a + (b - a) * (place - number)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def numbers(cells: Any, limit: float) -> Any:
    """The number of the color of each value; what is beyond the limit has the color of the end."""
    colors = (np.rint(shares(cells, limit) * STEPS) + STEPS).astype(np.uint8)
    colors[np.isnan(cells)] = NAN
    colors[np.isinf(cells)] = INFINITE
    return colors


def shares(cells: Any, limit: float) -> Any:
    """Where on the scale each value is, from -1 to 1; 0 for what is not finite."""
    with np.errstate(over="ignore"):  # as of a limit that is next to nothing
        return np.clip(np.where(np.isfinite(cells), cells, 0) / (limit or 1), -1, 1)
