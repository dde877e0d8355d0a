"""Comparing the values of two arrays. See `lw.diff`."""

from importlib import import_module
from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.runs import Run


class Comparing(Capability):
    has_defaults = True

    def cannot_compare(self, value: Any) -> str:
        """Why the values of an array cannot be compared with others; empty where they can."""
        return self.home.cannot_read(value)

    def contiguous_run(self, value: Any) -> Run | None:
        """Where the elements of an array lie contiguously in C order, in memory or in a local file. None where they do
        not, and must be read by `Saving.pieces`."""
        return None

    def same_bits(self, first: Any, second: Any) -> bool:
        """Whether two arrays hold the same values, bit by bit; raises where there is nothing to compare."""
        a, b = self.array_of(first), self.array_of(second)
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())

    def fingerprint(self, value: Any) -> tuple[int, bool] | None:
        """A number that is the same for the same values, in any order, and whether all elements are equal; None where
        there are no values."""
        np = import_module("numpy")
        if self.home.cannot_read(value):
            return None
        array = np.ascontiguousarray(self.array_of(value)).reshape(-1)
        if not array.size:
            return None
        bits = array.view({1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(array.itemsize, "u1"))
        return int(bits.sum(dtype=np.uint64)), bool((array == array[0]).all())
