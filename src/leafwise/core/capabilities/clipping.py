"""Norms of many arrays, and scaling them. See `lw.clip`."""

import math
from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.rebuilding import Rebuilding


class Clipping(Capability):
    has_defaults = True

    @property
    def takes_gradients(self) -> bool:
        """Whether the leaves themselves are gradients, and clipped ones are new arrays. If not, each leaf has one."""
        return not self.home.in_place

    def cannot_have_gradients(self, owner: Any) -> str:
        """Why the leaves of a node cannot be gradients, if leaves should be; empty if they can."""
        return ""

    def norms(self, values: list[Any]) -> list[float]:
        """The Euclidean norm of each array, computed in at least 32 bits. An array that is sharded over ranks is sent
        whole to all of them, which must call this together; `lw.clip` passes its local part instead, if it has one."""
        arrays = [self.array_of(value) for value in values]
        wide = [array.astype("complex128" if array.dtype.kind == "c" else "float64") for array in arrays]
        return [math.sqrt((abs(array) ** 2).sum()) for array in wide]

    def clip_together(self, values: list[Any], max_norm: float) -> list[float] | None:
        """Scales arrays so that their common norm is at most `max_norm`, unless it is not finite. Returns the norms
        before scaling; None if this would not be faster than `norms` followed by `scale_many`."""
        return None

    def scale_many(self, values: list[Any], factors: list[float]) -> list[Any]:
        """The arrays, each multiplied by its factor; a single factor is used for all."""
        each = factors * len(values) if len(factors) == 1 else factors
        updated = self.home.capability(Rebuilding).updated
        return [updated(value, self.array_of(value) * factor) for value, factor in zip(values, each, strict=True)]
