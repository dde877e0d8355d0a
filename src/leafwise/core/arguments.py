"""Arguments that were renamed."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from leafwise.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")


def renamed_arguments(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a verb refuse the old names of its arguments, with an error that gives the new name.

    >>> @renamed_arguments(x="source")
    ... def verb(source: object) -> None: ...
    >>> verb(x=1)
    Traceback (most recent call last):
    leafwise.errors.ArgumentError: lw.verb: x= is now called source=
    """

    def decorate(verb: Callable[P, R]) -> Callable[P, R]:
        @wraps(verb)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in new_names.keys() & kwargs.keys():
                raise ArgumentError(f"lw.{verb.__name__}: {old}= is now called {new_names[old]}=")
            return verb(*args, **kwargs)

        return checked

    return decorate
