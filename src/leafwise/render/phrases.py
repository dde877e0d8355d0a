"""Counts, sizes and plain values as text."""

from collections import deque
from typing import Any

from leafwise.core.opaque import Opaque
from leafwise.core.path import escape

SECTIONS = {"weights": "weights", "optimizer": "optimizer state", "rest": "other state"}  # as text

_VALUE_CHARS = 60
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: int) -> str:
    """A number of bytes in readable units; empty for zero.

    >>> bytes_text(484), bytes_text(1536), bytes_text(5_000_000_000)
    ('484 B', '1.5 KiB', '4.7 GiB')
    """
    if count < 1024:
        return f"{count} B" if count else ""
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def value_text(value: Any) -> str:
    """A plain value on one line; other objects by the name of their type."""
    readable = isinstance(value, str | int | float | complex | bool | bytes | list | tuple | range | None)
    if isinstance(value, Opaque):
        return repr(value)
    if not readable and not _is_small(value):
        if isinstance(value, dict | set | frozenset | deque):
            return f"<{escape(type(value).__name__)} of {len(value):,}>"
        return f"<{escape(type(value).__name__)}>"
    if isinstance(value, list | tuple):
        value = value[:_VALUE_CHARS]
    try:
        text = escape(repr(value if not isinstance(value, str | bytes) else value[: 2 * _VALUE_CHARS]))
    except ValueError:  # Python refuses to print integers with more than a few thousand digits
        text = f"<{type(value).__name__}, too long to print>"
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


def _is_small(value: Any) -> bool:
    """Whether a value of another type has a short repr: a NumPy scalar, or a small set or dict."""
    if isinstance(value, deque) or type(value) in (set, frozenset, dict):
        return len(value) < _VALUE_CHARS
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
