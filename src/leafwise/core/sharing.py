"""What verbs tell a home about ties, and what a home tells the walk."""

from typing import Any, Literal, NamedTuple

from leafwise.core.memory import Op
from leafwise.core.path import escape

Keep = Literal["source", "target", "mean"]


class Place(NamedTuple):
    """Where a name of a leaf stands: who holds it, what it is called there, and the path that leads to it."""

    owner: Any
    name: str
    path: str


class Group(NamedTuple):
    """One tie: its distinct places, the source first, with how each sees it; and all its names, by the number of the
    place that each leads to. `above` are the objects that have several of the names below them, each with those names
    and the keys that lead there."""

    places: tuple[Place, ...]
    ops: tuple[Op, ...]
    names: tuple[int, ...]
    above: tuple[tuple[Any, tuple[tuple[int, str], ...]], ...]


class Declared(NamedTuple):
    """A tie that somebody asked to be kept: the names that shall be one leaf, each with its op, by keys from where
    it is declared."""

    keys: tuple[tuple[str, Op], ...]


class Use(NamedTuple):
    """One place where a parameter entered an operation.

    `path` is the module in whose forward that happened, `call` the how manieth call of that module it was, and
    `operation` what it entered; `turn` counts where one call has several such. What could not be told from
    anything is a use of its own, whose operation is "unattributed".
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


UNATTRIBUTED = "unattributed"
