"""Parts of an array as NumPy arrays, wherever it is."""

from collections.abc import Callable
from typing import Any

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.home import Home

Read = Callable[[tuple[slice, ...]], Any]


def reader(home: Home, value: Any) -> Read:
    """Gives parts of an array as NumPy arrays."""
    if not home.capability(Measuring).reads_parts(value):
        whole = home.read(value, ())
        return lambda box: whole[box]
    return lambda box: home.read(value, box)
