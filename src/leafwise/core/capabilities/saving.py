"""The bytes of arrays, for writing them into a file. See `lw.save`."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from leafwise.core.capabilities import Capability


class Part(NamedTuple):
    """A range of the bytes of an array in C order. It consists of whole elements."""

    value: Any
    start: int
    stop: int


class Extraction(Protocol):
    """Copies arrays out of the memory of a device, for any number of threads at a time."""

    largest: int  # bytes that can be copied at a time

    def copied(self, parts: Sequence[Part]) -> AbstractContextManager[memoryview]:
        """The bytes of parts, one after another, in memory that nobody else uses inside the block."""

    def finish(self) -> None:
        """Waits until the device has finished all copies, also those of threads that ended with an error."""


class Saving(Capability):
    has_defaults = True

    def pieces(self, value: Any) -> Iterator[Any]:
        """The values in C order as bytes: the memory itself, or copied piece by piece. Pieces do not split elements."""
        yield self.array_of(value).tobytes()

    def extractions(self, values: list[Any]) -> list[Extraction | None]:
        """How each array is copied out by several threads; None if it is read with `pieces`. Arrays of one device share
        an extraction."""
        return [None] * len(values)

    def axis_order(self, value: Any) -> tuple[int, ...] | None:
        """The order of axes in which an array is contiguous; None if that is C order, or if it is not contiguous."""
        return None

    def snapshot(self, values: list[Any]) -> list[Any]:
        """Copies of arrays that share no memory with anything. They may be arrays of another home."""
        np = import_module("numpy")
        return [np.array(self.array_of(value)) for value in values]

    def files_of(self, values: list[Any]) -> list[str]:
        """For each array, the name of the file with its bytes, as it was opened; if its pieces are in several files,
        the first and the number of the others; empty if it is in none."""
        return [""] * len(values)

    def check_unchanged(self, values: list[Any]) -> None:
        """Raises if the file that arrays are read from was changed since it was opened."""

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        """What a checkpoint must record about a node to rebuild it, or to distinguish it from other nodes: the name of
        its type, and, for a dict whose keys are not all plain names, the name of each key in a path, with the key.
        None if the paths of its content are enough."""
        return None
