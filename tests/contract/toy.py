"""A complete home for immutable arrays and models, which keeps the core independent of PyTorch."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from leafwise import testing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.home import Capabilities, Home, Memory, Spec, Visit
from leafwise.core.memory.ops import Op


def registered(home: "ToyHome | None" = None) -> Any:
    """Registers the toy home, or the given one, inside the `with` block."""
    return testing.registered(home or ToyHome())


@dataclass(frozen=True, eq=False)
class Array:
    data: tuple[float, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


class Model:
    def __init__(self, **items: Any) -> None:
        self.__dict__.update(items)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("toy models do not change")


class ToyRebuilding(Rebuilding):
    def from_numpy(self, value: Array, array: Any) -> Array:
        strides = [stride // 8 for stride in np.empty(array.shape).strides]
        return Array(tuple(map(float, array.reshape(-1))), array.shape, tuple(strides))

    def replace(self, owner: Model, changes: dict[str, Any]) -> Model:
        return Model(**{**vars(owner), **changes})


class ToyViewing(Viewing):
    def seen_through(self, value: Array, op: Op) -> Array:
        whole = np.lib.stride_tricks.as_strided(np.arange(len(value.data)), value.shape, [8 * s for s in value.strides])
        seen = whole[op.slices] if op.slices is not None else whole
        seen = seen if op.order is None else seen.transpose(op.order)
        return Array(value.data, seen.shape, tuple(stride // 8 for stride in seen.strides), int(seen.flat[0]))


class ToyHome(Home):
    name = "toy"
    in_place = False
    capabilities: ClassVar[Capabilities] = {Rebuilding: ToyRebuilding, Viewing: ToyViewing}

    def handles(self, cls: type) -> Any:
        return {Model: "node", Array: "leaf"}.get(cls)

    def visit(self, obj: Model) -> Visit:
        return (), vars(obj).items(), None

    def spec(self, value: Array) -> Spec:
        return Spec(value.shape, "float64", "toy", prod(value.shape), 8 * prod(value.shape))

    def read(self, value: Array, index: Any = ()) -> Any:
        items = np.array(value.data)[value.offset :]
        return np.lib.stride_tricks.as_strided(items, value.shape, [8 * s for s in value.strides])[index]

    def storages(self, values: list[Array]) -> list[object | None]:
        return [id(value.data) for value in values]

    def memory(self, value: Array) -> Memory:
        return Memory(8 * value.offset, value.shape, tuple(8 * s for s in value.strides), 8, "float64")


def matrix(rows: int, columns: int) -> Array:
    return Array(tuple(map(float, range(rows * columns))), (rows, columns), (columns, 1))


def transposed(array: Array) -> Array:
    return Array(array.data, array.shape[::-1], array.strides[::-1], array.offset)


def rows_of(array: Array, start: int, stop: int) -> Array:
    return Array(array.data, (stop - start, *array.shape[1:]), array.strides, array.offset + start * array.strides[0])
