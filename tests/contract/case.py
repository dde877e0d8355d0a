"""One model of the contract suite, with the expected facts."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    build: Callable[[], Any]
    # The leaves in order, by their first path; for tied leaves, the other names with their ops.
    leaves: dict[str, list[tuple[str, str]]]
    parameters: int
    mutable: bool = True
    holds_values: bool = True
    shared_memory: tuple[tuple[str, ...], ...] = ()
