"""Leaves whose values workers search: what the searches of `lw.check` can ask about them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from leafwise.core.capabilities.measuring import Reader, bands, reader
from leafwise.core.home import Spec
from leafwise.core.pairing.pairing import NamedArray
from leafwise.core.registry import home_of
from leafwise.inspect.stats.rows import Row


class SentLeaf(NamedTuple):
    """The array of a leaf in a file, with its statistics. In a worker, it takes the place of a `LeafEvidence`."""

    value: Any
    spec: Spec
    path: str
    stats: Row | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def held(self) -> NamedArray:
        return NamedArray(0, home_of(self.value), self.value, self.spec, self.path)

    def reader(self) -> Reader:
        return reader(home_of(self.value), self.value)

    def bands(self, of: str = "value") -> Iterator[tuple[int, Any]]:
        assert of == "value", "workers reach only the values of a file"
        return bands(home_of(self.value), self.value, self.shape)

    def searching(self, of: str = "value") -> None:
        return None  # its values are read
