"""The errors of the front end, also for names that it does not have."""

import dis
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from leafwise.errors import Error


class MXNetError(Error, RuntimeError):
    """The error that MXNet raises where an operation fails."""


class DeferredInitializationError(MXNetError):
    """A parameter was read before the first forward, from which its shape is inferred."""


def refusal(operation: str, instead: str) -> MXNetError:
    """The error for an operation of MXNet that the front end lacks. It names the operation, and what to do instead."""
    return MXNetError(f"the Gluon front end does not have {operation}; {instead}")


def missing(module: str, instead: Mapping[str, str], otherwise: str) -> Callable[[str], NoReturn]:
    """A `__getattr__` for a module. Its error names what is missing, and what to use instead."""

    def say(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        use = instead.get(name, otherwise.format(name=name))
        message = f"the Gluon front end has no {module}.{name}; {use}"
        # `from module import name` would replace an AttributeError, and lose its message.
        caller = sys._getframe(1)
        importing = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
        raise ImportError(message, name=name) if importing else AttributeError(message, name=name)

    return say
