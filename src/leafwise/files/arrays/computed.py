"""Arrays that are computed from stored ones when they are read: the base of all of them, those that are computed
element by element, and weighted sums of checkpoints."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from leafwise.core.dtypes import is_inexact
from leafwise.errors import WriteError
from leafwise.files.arrays.ranges import Ranged, fill_range, over, scratch
from leafwise.files.arrays.slices import Index
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, numpy_dtype, part_indices, spec_of


class Computed(Stored):
    """The base of arrays that are made from others: their bytes and their checksums are those of the others."""

    __slots__ = ()
    inputs: Any  # the others

    @property
    def made_from(self) -> Iterable[Stored]:
        return self.inputs  # type: ignore[no-any-return]

    def storages(self) -> list[Storage]:
        return [storage for value in self.made_from for storage in value.storages()]

    def check(self) -> None:
        for value in self.made_from:
            if value.checks_itself:
                value.check()

    def is_checked(self) -> bool:
        return all(value.is_checked() for value in self.made_from)

    @property
    def checks_itself(self) -> bool:  # type: ignore[override]
        return any(value.checks_itself for value in self.made_from)


class Elementwise(Computed, Ranged):
    """An array whose element at each position depends only on the elements of its inputs at this position."""

    __slots__ = ("inputs",)

    def __init__(self, inputs: Sequence[Stored], dtype: str) -> None:
        first = inputs[0].spec
        assert all(value.spec.shape == first.shape for value in inputs), [value.spec.shape for value in inputs]
        super().__init__(spec_of(first.shape or (), dtype, trainable=first.trainable))
        self.inputs = tuple(inputs)

    def compute(self, arrays: list[Any], out: Any) -> None:
        """Computes flat, contiguous NumPy arrays, one for each input, into another one."""
        raise NotImplementedError

    def over(self, inputs: Sequence[Stored]) -> "Elementwise":
        """The same computation with other inputs."""
        raise NotImplementedError

    def read(self, index: Index = ()) -> Any:
        return self._computed([value.read(index) for value in self.inputs])

    def parts(self) -> Iterator[Any]:
        # Inputs of which no part can be read are read once.
        values = [value if value.reads_parts else value.read() for value in self.inputs]
        for part in part_indices(self.spec):
            yield self._computed([value[part] for value in values])

    def fill_range(self, start: int, view: memoryview) -> None:
        item = ITEM_BYTES[self.spec.dtype]
        assert start % item == len(view) % item == 0, "a range must consist of whole elements"
        items = [ITEM_BYTES[value.spec.dtype] for value in self.inputs]
        first, count = start // item, len(view) // item
        with scratch([count * own for own in items]) as memory:
            for value, own, buffer in zip(self.inputs, items, memory, strict=True):
                fill_range(value, first * own, buffer)
            dtypes = [numpy_dtype(value.spec.dtype) for value in self.inputs]
            arrays = [over(buffer, dtype) for buffer, dtype in zip(memory, dtypes, strict=True)]
            self.compute(arrays, over(view, numpy_dtype(self.spec.dtype)))

    def _computed(self, arrays: list[Any]) -> Any:
        import numpy as np

        out = np.empty(arrays[0].shape, numpy_dtype(self.spec.dtype))
        if out.size:
            self.compute([np.ascontiguousarray(array).reshape(-1) for array in arrays], out.reshape(-1))
        return out

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        return all(value.reads_parts for value in self.inputs)


class Combined(Elementwise):
    """The sum of arrays of one shape, each multiplied by its weight. Sums are computed in float64, or complex128, in
    the order of the inputs, and rounded once. A sum that does not fit into the dtype raises `WriteError`; with
    `saturate`, it becomes the nearest number that fits. NaN and infinities of the inputs propagate."""

    __slots__ = ("saturate", "weights")

    def __init__(
        self, inputs: Sequence[Stored], weights: Sequence[float], dtype: str, *, saturate: bool = False
    ) -> None:
        for name in (*(value.spec.dtype for value in inputs), dtype):
            if not is_inexact(name):
                raise WriteError(f"cannot combine arrays of {name}: only floats and complex numbers can be combined")
        assert len(inputs) == len(weights), (len(inputs), len(weights))
        super().__init__(inputs, dtype)
        self.weights = tuple(map(float, weights))
        self.saturate = saturate

    def compute(self, arrays: list[Any], out: Any) -> None:
        from leafwise.kernels import combining

        combining.combine(arrays, self.weights, out, self.saturate)

    def over(self, inputs: Sequence[Stored]) -> "Combined":
        return Combined(inputs, self.weights, self.spec.dtype, saturate=self.saturate)
