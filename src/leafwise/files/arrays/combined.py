"""Arithmetic between checkpoints: weighted sums of stored arrays."""

from collections.abc import Sequence
from typing import Any

from leafwise.core.dtypes import is_inexact
from leafwise.errors import WriteError
from leafwise.files.arrays.arrays import Stored
from leafwise.files.arrays.elementwise import Elementwise


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
