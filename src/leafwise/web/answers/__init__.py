"""The answers to the requests of the page, as plain data; and what they share: how long they may be, and numbers for
JSON, which has neither NaN nor infinity. Their types are in page/src/types.ts."""

import math
from typing import Any

from leafwise.core.path import escape

MOST_ROWS = 500  # in one answer
MOST_LISTED = 100  # ties, metadata, reasons and the like
_CHARACTERS = 300  # characters of a plain value, or of metadata


def num(value: Any) -> Any:
    """A number as it is, and "nan", "inf" or "-inf" as text.

    >>> num(1.5), num(float("-inf"))
    (1.5, '-inf')
    """
    if isinstance(value, int):  # larger ones would be rounded by the page anyway
        return value if value.bit_length() < 1000 else num(math.inf if value > 0 else -math.inf)
    if math.isfinite(value):
        return float(value)
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def cut(text: str) -> str:
    """The beginning of a long text, with invisible characters escaped."""
    shown = escape(text[: _CHARACTERS + 1])
    return shown if len(shown) <= _CHARACTERS else f"{shown[:_CHARACTERS]} …"
