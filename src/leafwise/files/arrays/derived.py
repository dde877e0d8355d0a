"""Arrays that are computed from stored ones when they are read: a sum with a low-rank product, and means of rows."""

from functools import cached_property
from math import prod
from threading import Lock
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.files.arrays.computed import Computed
from leafwise.files.arrays.slices import Index, box_of
from leafwise.files.arrays.stored import Stored, numpy_dtype, spec_of
from leafwise.files.casts import cast_to

_BLOCK = 1 << 21  # elements that are computed at a time


class LowRankSum(Computed):
    """`base + scale * up @ down`: a weight with a LoRA adapter. `up` has the shape (out, rank), perhaps with more axes
    of size 1, and `down` (rank, in, …). With `transposed`, `base` has the shape (in, out).

    Computed in float64, or in float32 if the base has at most 16 bits, and rounded once to the dtype of the base."""

    def __init__(self, base: Stored, up: Stored, down: Stored, scale: float, transposed: bool, saturate: bool) -> None:
        super().__init__(spec_of(base.spec.shape or (), base.spec.dtype))
        self.base, self.inputs, self.scale, self.transposed = base, (base, up, down), scale, transposed
        self.saturate = saturate

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        return self.base.reads_parts

    def whole(self) -> Any:
        return self.read()

    def read(self, index: Index = ()) -> Any:
        import numpy as np

        boxed = box_of(index, self.spec.shape or ())
        if boxed is None:
            return super().read(index)
        box, without_axes = boxed
        values = np.array(self.base.read(tuple(slice(*ends) for ends in box)))
        rows = max(1, _BLOCK // max(1, prod(values.shape[1:])))
        for at in range(0, len(values), rows):
            part = values[at : at + rows]
            first = box[0][0] + at
            product = self._product([(first, first + len(part)), *box[1:]])
            part[...] = cast_to(part.astype(product.dtype) + product, self.spec.dtype, self.saturate)
        return values[without_axes]

    def _product(self, box: list[tuple[int, int]]) -> Any:
        """The part of the product that belongs to a part of the base. Only the parts of the matrices that it needs are
        read: of an embedding, they may be large."""
        import numpy as np

        _, up, down = self.inputs
        wide = numpy_dtype("float32" if DTYPES[self.spec.dtype].itemsize <= 2 else "float64")
        outer, others = (box[1], box[:1]) if self.transposed else (box[0], box[1:])
        above = up.read(slice(*outer)).astype(wide).reshape(outer[1] - outer[0], -1)
        below = down.read((slice(None), *(slice(*ends) for ends in others))).astype(wide)
        product = np.tensordot(above * wide.type(self.scale), below, 1)
        return product.T if self.transposed else product


class MeanAlong(Computed):
    """The mean of an array along one axis, which keeps size 1: the values for new rows of an embedding."""

    def __init__(self, values: Stored, axis: int) -> None:
        shape = values.spec.shape or ()
        super().__init__(spec_of((*shape[:axis], 1, *shape[axis + 1 :]), values.spec.dtype))
        self.inputs, self.axis = (values,), axis
        self._lock = Lock()

    def whole(self) -> Any:
        with self._lock:
            return self._mean

    @cached_property
    def _mean(self) -> Any:
        import numpy as np

        (values,) = self.inputs
        shape: tuple[int, ...] = values.spec.shape or ()
        rows = max(1, _BLOCK // max(1, prod(shape[1:])))
        whole = None if values.reads_parts else values.read()
        total = np.zeros(self.spec.shape or (), np.float64)
        for start in range(0, shape[0], rows):
            taken = slice(start, start + rows)
            part = values.read(taken) if whole is None else whole[taken]
            total[slice(None) if self.axis == 0 else taken] += part.astype(np.float64).sum(self.axis, keepdims=True)
        return cast_to(total / shape[self.axis], self.spec.dtype)
