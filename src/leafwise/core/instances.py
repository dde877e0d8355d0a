"""Many objects of one class at once."""

from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any, TypeVar

T = TypeVar("T")


def instances(cls: type[T], count: int, **slots: Iterable[Any]) -> list[T]:
    """Makes objects of a class with `__slots__`, without calling `__init__`, and fills their slots. A header may
    describe a hundred thousand arrays: this is twice as fast as calling a function in Python for each."""
    made = list(map(cls.__new__, repeat(cls, count)))
    for name, values in slots.items():
        deque(map(getattr(cls, name).__set__, made, values), 0)
    return made
