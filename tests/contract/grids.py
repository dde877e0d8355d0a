"""The smallest homes: one that reads, and one that also writes."""

from typing import Any, Literal

import numpy as np

from leafwise.core.home import Home, Spec, Visit
from leafwise.errors import WriteError


class Grid:
    """The array class of a small made-up framework."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows


class Layer:
    def __init__(self, **parts: Any) -> None:
        self.parts = parts


class ReadOnlyHome(Home):
    name = "grids"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if cls is Layer else "leaf" if cls is Grid else None

    def visit(self, obj: Layer) -> Visit:
        return (), obj.parts.items(), None

    def spec(self, value: Grid) -> Spec:
        shape = len(value.rows), len(value.rows[0])
        return Spec(shape, "float32", "cpu", shape[0] * shape[1], 4 * shape[0] * shape[1])

    def read(self, value: Grid, index: Any = ()) -> Any:
        return np.array(value.rows, np.float32)[index]


class WritableHome(ReadOnlyHome):
    def write(self, value: Grid, array: Any) -> None:
        if np.shape(array) != self.spec(value).shape or np.asarray(array).dtype != np.float32:
            raise WriteError(f"cannot write {np.asarray(array).dtype} of shape {np.shape(array)}")
        value.rows[:] = np.asarray(array).tolist()
