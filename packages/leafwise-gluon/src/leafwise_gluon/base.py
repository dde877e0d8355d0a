"""The errors of the front end, including the ones for names that it does not have."""

import dis
import sys
from types import FrameType

from leafwise.errors import Error


class MXNetError(Error, RuntimeError):
    """The error that MXNet raises when an operation fails."""


class DeferredInitializationError(MXNetError):
    """A parameter was read before the first forward pass, which determines its shape."""


def refusal(operation: str, instead: str) -> MXNetError:
    """The error for an MXNet operation that the front end does not support, with what to do instead."""
    return MXNetError(f"the Gluon front end does not support {operation}; {instead}")


def absent(message: str, name: str) -> ImportError | AttributeError:
    """The error for a name that a module lacks, made in its `__getattr__`."""
    # `from module import name` would replace an AttributeError by its own error, without this message.
    asking: FrameType | None = sys._getframe(1)
    while asking is not None and asking.f_code.co_name == "__getattr__":
        asking = asking.f_back
    importing = asking is not None and asking.f_code.co_code[asking.f_lasti] == dis.opmap["IMPORT_FROM"]
    return ImportError(message, name=name) if importing else AttributeError(message, name=name)
