"""The colors of values: blue below zero, red above, nearly white at zero.

Both sides are equally light at equal magnitude, so that the picture is also readable in grayscale. Almost everyone,
including most color-blind people, can distinguish blue from orange-red.
"""

from functools import cache
from typing import Any

import numpy as np

Color = tuple[int, int, int]

STEPS = 125  # colors on each side of zero
NAN, INFINITE, GAP, PAPER, EMPTY = range(2 * STEPS + 1, 2 * STEPS + 6)  # special colors, one each

# Evenly spaced, from the lower end of the scale to the upper.
_ANCHORS = ("083572", "1a69bc", "52a4ee", "abd7fd", "f7f7f7", "f7c5a7", "e28153", "ae3f29", "671518")
_OTHERS: tuple[Color, ...] = ((0, 0, 0), (255, 0, 220), (128, 128, 128), (255, 255, 255), (255, 255, 255))


@cache
def palette() -> tuple[Color, ...]:
    """The color of each index: the scale from the lower end to the upper, then the special colors."""
    anchors = [tuple(bytes.fromhex(anchor)) for anchor in _ANCHORS]
    return (*(_between(anchors, step / (2 * STEPS)) for step in range(2 * STEPS + 1)), *_OTHERS)


def css(index: int) -> str:
    """The color of an index, for a page."""
    return f"#{bytes(palette()[index]).hex()}"


def _between(anchors: list[tuple[int, ...]], share: float) -> Color:
    place = share * (len(anchors) - 1)
    number = min(int(place), len(anchors) - 2)
    low, high = anchors[number], anchors[number + 1]
    red, green, blue = (round(a + (b - a) * (place - number)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def numbers(cells: Any, limit: float) -> Any:
    """The color index of each value; values beyond the limit get the color of the end."""
    colors = (np.rint(shares(cells, limit) * STEPS) + STEPS).astype(np.uint8)
    colors[np.isnan(cells)] = NAN
    colors[np.isinf(cells)] = INFINITE
    return colors


def shares(cells: Any, limit: float) -> Any:
    """The position of each value on the scale, from -1 to 1; 0 for values that are not finite."""
    with np.errstate(over="ignore"):  # if the limit is tiny
        return np.clip(np.where(np.isfinite(cells), cells, 0) / (limit or 1), -1, 1)
