"""Classes with the names of MXNet that other classes of leafwise have, too."""

from collections.abc import Callable
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def shown_as(name: str) -> Callable[[_Class], _Class]:
    """A decorator: the class prints, and is pickled, under another name than the one it is defined with."""

    def renamed(cls: _Class) -> _Class:
        cls.__name__ = cls.__qualname__ = name
        return cls

    return renamed
