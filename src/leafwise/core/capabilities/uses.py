"""The gradient of a shared parameter, use by use. See `lw.uses`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.path import escape

UNATTRIBUTED = "unattributed"


class Use(NamedTuple):
    """One place where a parameter entered an operation.

    `path` is the module in whose forward that happened, `call` the number of that call of the module, from 0, and
    `operation` the operation that used the parameter; `turn` counts equal uses within one call, from 0. The rest of the
    gradient, which belongs to no known use, has the operation "unattributed".
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
