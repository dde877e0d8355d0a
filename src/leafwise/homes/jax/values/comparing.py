"""Comparing arrays where they are, if they are on the CPU."""

from typing import Any

import jax
import numpy as np

from leafwise.core.capabilities.comparing import Comparing, words_of
from leafwise.core.memory.runs import Run
from leafwise.homes.jax.arrays import read_array, why_unreadable
from leafwise.homes.jax.values.host_memory import is_on_cpu
from leafwise.homes.jax.values.random_keys import is_key_dtype
from leafwise.kernels import cpu
from leafwise.kernels.dtypes import unknown_dtype


def contiguous_run(value: Any) -> Run | None:
    """The elements of an array on one device of the CPU."""
    if not isinstance(value, jax.Array) or why_unreadable(value) or is_key_dtype(value.dtype):
        return None
    if unknown_dtype(value.dtype.name) or len(value.sharding.device_set) > 1 or not is_on_cpu(value):
        return None
    array = read_array(value)
    return cpu.run_of(array) if array.flags.c_contiguous else None


class JaxComparing(Comparing):
    def contiguous_run(self, value: Any) -> Run | None:
        return contiguous_run(value)

    def same_bits(self, first: Any, second: Any) -> bool:
        a, b = self.array_of(first), self.array_of(second)
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(words_of(a), words_of(b)))
