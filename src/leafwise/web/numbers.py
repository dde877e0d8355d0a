"""Numbers for JSON, which has neither NaN nor infinity."""

import math
from typing import Any


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
