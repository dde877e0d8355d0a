"""Statistics of JAX arrays: on a GPU by XLA, on a CPU by C code, and shard by shard."""

from collections.abc import Callable
from typing import Any

import jax

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.moments import Moments
from leafwise.errors import Unsupported
from leafwise.kernels.xla import measure_arrays, unknown_jax_dtype


class JaxMeasuring(Measuring):
    def cannot_measure(self, value: Any) -> str:
        if isinstance(value, jax.core.Tracer):
            return "it is traced and has no values yet; measure it outside of jit, grad and vmap"
        if value.is_deleted():
            return "it was deleted, as when it is donated to a jitted function; measure what that function returned"
        return unknown_jax_dtype(value.dtype.name)

    def measure(self, values: list[Any], histogram: bool, count: Callable[[int], None]) -> Callable[[], list[Moments]]:
        for value in values:
            if reason := self.cannot_measure(value):
                raise Unsupported(self.home.name, "measure an array", reason)
        return measure_arrays(values, histogram, count)
