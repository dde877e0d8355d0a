"""The errors of the front end, including the ones for names that it does not have."""

import dis
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from leafwise.errors import Error


class MXNetError(Error, RuntimeError):
    """The error that MXNet raises when an operation fails."""


class DeferredInitializationError(MXNetError):
    """A parameter was read before the first forward pass, which determines its shape."""


def refusal(operation: str, instead: str) -> MXNetError:
    """The error for an MXNet operation that the front end does not support, with what to do instead."""
    return MXNetError(f"the Gluon front end does not support {operation}; {instead}")


def missing(module: str, instead: Mapping[str, str], otherwise: str) -> Callable[[str], NoReturn]:
    """Returns a `__getattr__` for a module. Its error names what is missing and what to use instead."""

    def say(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        use = instead.get(name, otherwise.format(name=name))
        raise absent(f"the Gluon front end has no {module}.{name}; {use}", name)

    return say


def absent(message: str, name: str, depth: int = 2) -> ImportError | AttributeError:
    """The error for a name that a module lacks, made `depth` frames below the code that asks for it."""
    # `from module import name` would replace an AttributeError by its own error, without this message.
    caller = sys._getframe(depth)
    importing = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
    return ImportError(message, name=name) if importing else AttributeError(message, name=name)
