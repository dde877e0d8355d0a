"""Norms of gradients, and scaling them, on their devices."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from leafwise.core.capabilities.clipping import Clipping
from leafwise.homes.jax.values.batches import in_batches, in_order, jitted


class JaxClipping(Clipping):
    def norms(self, values: list[Any]) -> list[float]:
        arrays = list(map(self.array_in, values))
        norms = _on_host(in_batches(_norms, arrays))
        unsure = [number for number, norm in enumerate(norms) if not np.isfinite(norm)]
        # Squares overflow long before the norm does.
        again = _on_host(in_batches(_scaled_norms, [arrays[number] for number in unsure]))
        for number, norm in zip(unsure, again, strict=True):
            norms[number] = norm
        return norms

    def scale_many(self, values: list[Any], factors: list[float]) -> list[Any]:
        arrays = list(map(self.array_in, values))
        each = np.asarray(factors * len(values) if len(factors) == 1 else factors, np.float64)
        return list(map(self.copy_with, values, in_order(in_batches(_scaled, arrays, list(each)))))

    def array_in(self, value: Any) -> Any:
        return value

    def copy_with(self, value: Any, array: Any) -> Any:
        """A copy of `value` with another array."""
        return array


def _on_host(results: list[tuple[list[int], Any]]) -> list[float]:
    """Vectors of numbers as one list; waits only after all of them are being computed."""
    return in_order([(numbers, np.asarray(result).tolist()) for numbers, result in results])


def _absolute(array: Any) -> Any:
    """The magnitudes of an array, in at least 32 bits."""
    magnitudes = jnp.abs(array)
    return magnitudes.astype(jnp.promote_types(magnitudes.dtype, jnp.float32))


@jitted
def _norms(arrays: list[Any]) -> Any:
    return jnp.stack([jnp.sqrt(jnp.sum(jnp.square(_absolute(array)))) for array in arrays])


@jitted
def _scaled_norms(arrays: list[Any]) -> Any:
    """The norms of arrays whose squares overflow, by way of their largest elements."""
    norms = []
    for array in arrays:
        magnitudes = _absolute(array)
        largest = jnp.max(magnitudes, initial=0)
        norms.append(
            jnp.where(jnp.isfinite(largest), largest * jnp.sqrt(jnp.sum(jnp.square(magnitudes / largest))), largest)
        )
    return jnp.stack(norms)


@jitted
def _scaled(arrays: list[Any], factors: list[Any]) -> list[Any]:
    pairs = zip(arrays, factors, strict=True)
    return [(array * factor).astype(array.dtype) for array, factor in pairs]
