"""The colors of the picture of a leaf, and the value under the pointer."""

from typing import Any

import numpy as np

from leafwise.core.leaf import Leaf
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.inspect.stats.rows import Row
from leafwise.render.pictures.scale import INFINITE, NAN, STEPS, palette
from leafwise.web.pictures import layout_of, tile

_COLORS = 17  # of the scale that the page draws


def scale_of(leaf: Leaf, name: str, row: Row | None) -> dict[str, Any]:
    """The scale of the colors: up to the largest magnitude, from the statistics of a file if they are known. Those of a
    model may be older than the values that are drawn."""
    layout = layout_of(leaf, name)
    note = None
    if row is not None and row.finite and leaf.device == "file":
        limit, signed = float(row.absmax), row.min < 0
    else:
        cells, sampled = tile(layout, layout.levels - 1, 0, 0)
        finite = cells[np.isfinite(cells)]
        limit = float(abs(finite).max(initial=0))
        signed = bool((finite < 0).any()) or (row is not None and row.min < 0)
        note = f"the scale is that of a sample: 1 of {sampled:,} values" if sampled > 1 else None
    first = 0 if signed else STEPS  # without negative values, only the upper half of the colors occurs
    shown = [palette()[first + round(place * (2 * STEPS - first) / (_COLORS - 1))] for place in range(_COLORS)]
    return {
        "limit": limit or 1.0,
        "signed": signed,
        "colors": [_css(color) for color in shown],
        "nan": _css(palette()[NAN]),
        "infinite": _css(palette()[INFINITE]),
        "note": note,
    }


def _css(color: tuple[int, int, int]) -> str:
    return f"#{bytes(color).hex()}"


def value_of(leaf: Leaf, name: str, row: int, column: int) -> dict[str, Any]:
    """The index and the value at a pixel of level 0."""
    layout = layout_of(leaf, name)
    if not (0 <= row < layout.rows and 0 <= column < layout.columns):
        raise QueryError(f"there is no value at row {row}, column {column}")
    index, value = layout.value(row, column)
    if index is None:
        return {"index": None, "text": ""}
    number = value.item() if hasattr(value, "item") else value
    text = f"{number:.6g}" if isinstance(number, float) else escape(str(number))
    return {"index": list(index), "text": text}
