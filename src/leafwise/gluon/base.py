"""The errors of the front end, and how it says no to names that it does not have."""

import dis
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from leafwise.errors import Error


class MXNetError(Error, RuntimeError):
    """What MXNet raises where an operation cannot be done."""


class DeferredInitializationError(MXNetError):
    """A parameter was read while its shape was still to be inferred from the first forward."""


def refusal(operation: str, instead: str) -> MXNetError:
    """The error for an operation that MXNet has and the front end does not do: its name, and what to do instead."""
    return MXNetError(f"the Gluon front end does not have {operation}; {instead}")


def missing(module: str, instead: Mapping[str, str], otherwise: str) -> Callable[[str], NoReturn]:
    """A `__getattr__` for a module: names what is not there, and what to use instead."""

    def say(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        use = instead.get(name, otherwise.format(name=name))
        message = f"the Gluon front end has no {module}.{name}; {use}"
        # `from module import name` would swallow an AttributeError together with what it says.
        caller = sys._getframe(1)
        importing = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
        raise ImportError(message, name=name) if importing else AttributeError(message, name=name)

    return say
