"""Statistics of JAX arrays: on a GPU by XLA, on a CPU by C code, and shard by shard."""

from collections.abc import Callable
from typing import Any

import jax

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.results.moments import Moments
from leafwise.core.work.progress import Count
from leafwise.errors import Unsupported
from leafwise.homes.jax.arrays import why_unreadable
from leafwise.homes.jax.values.random_keys import is_key_dtype
from leafwise.kernels.xla.xla import measure_arrays, unknown_jax_dtype


class JaxMeasuring(Measuring):
    def cannot_measure(self, value: Any) -> str:
        if reason := why_unreadable(value):
            return reason
        return "" if is_key_dtype(value.dtype) else unknown_jax_dtype(value.dtype.name)

    def measure(self, values: list[Any], histogram: bool, count: Count) -> Callable[[], list[Moments]]:
        for value in values:
            if reason := self.cannot_measure(value):
                raise Unsupported(self.home.name, "measure an array", reason)
        arrays = [jax.random.key_data(value) if is_key_dtype(value.dtype) else value for value in values]
        return measure_arrays(arrays, histogram, count)
