"""Arrays in memory, where a stored array is expected: in recipes, edits and loads, whose source may be a model."""

from typing import Any

from leafwise.core.capabilities.loading import Loading
from leafwise.core.home import Home, Spec
from leafwise.files.arrays.slices import Index
from leafwise.files.arrays.stored import Storage, Stored, as_bytes, spec_of
from leafwise.files.sources.source import BytesSource


class Live(Stored):
    """An array in memory, read by its home."""

    __slots__ = ("home", "value")
    is_live = True

    def __init__(self, home: Home, value: Any, spec: Spec | None = None) -> None:
        super().__init__(home.spec(value) if spec is None else spec)
        self.home, self.value = home, value

    def read(self, index: Index = ()) -> Any:
        return self.home.read(self.value, index)

    def runs(self) -> list[tuple[Storage, int, int, int]] | None:
        (view,) = self.home.capability(Loading).writable_bytes([self.value])
        return None if view is None else _one_run(view)


class Copied(Stored):
    """A copy of the values of an array, as a NumPy array."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        super().__init__(spec_of(array.shape, array.dtype.name))
        self.array = array

    def read(self, index: Index = ()) -> Any:
        return self.array[index] if index != () else self.array

    def runs(self) -> list[tuple[Storage, int, int, int]] | None:
        is_plain = self.array.flags.c_contiguous and self.array.dtype.isnative
        return _one_run(as_bytes(self.array)) if is_plain else None


def _one_run(view: memoryview) -> list[tuple[Storage, int, int, int]]:
    return [(Storage(BytesSource("", view), 0, len(view)), 0, 0, len(view))]
