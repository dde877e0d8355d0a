"""The gradient of a shared parameter, use by use. See `lw.uses`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.path import escape

UNATTRIBUTED = "unattributed"


class Use(NamedTuple):
    """One use of a parameter by an operation; see `lw.uses`.

    `path` is the module whose forward used the parameter, and `call` is the number of that call of the module, from 0.
    `operation` is the operation that used it, such as `linear`. `turn` numbers equal uses within one call, from 0. The
    part of a gradient that cannot be attributed to a use has the operation `unattributed`.

    >>> import leafwise as lw
    >>> print(lw.Use("rnn.cell", 3, "linear"))
    rnn.cell call 3: linear
    """

    path: str
    call: int
    operation: str
    turn: int = 0

    def __str__(self) -> str:
        if self.operation == UNATTRIBUTED:
            return UNATTRIBUTED
        turn = f" ({self.turn + 1})" if self.turn else ""
        return escape(f"{self.path or '(root)'} call {self.call}: {self.operation}{turn}")


class TrackingUses(Capability):
    action = "record gradients use by use"

    def capture(
        self, nodes: dict[int, list[str]], leaves: dict[str, Any]
    ) -> AbstractContextManager[Callable[[], dict[str, dict[Use, Any]]]]:
        """While entered, records the gradient of each of the arrays `leaves`, use by use. `nodes` are the paths of each
        node by its `id`. Entering it returns a function that returns the gradients so far."""
        raise self.missing("record gradients use by use")
