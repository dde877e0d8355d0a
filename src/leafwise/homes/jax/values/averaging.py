"""Arithmetic for moving averages, on the devices of the arrays.

Averages are always arrays of their own: a training step may donate the arrays of the model, which deletes them.
"""

from typing import Any

import jax.numpy as jnp

from leafwise.core.capabilities.averaging import Averaging
from leafwise.homes.jax.values.batches import in_batches, in_order, jitted
from leafwise.homes.jax.values.random_keys import is_key_dtype


class JaxAveraging(Averaging):
    """For arrays, and for Variables of Flax NNX, whose arrays are replaced."""

    def array_in(self, value: Any) -> Any:
        return value

    def with_array(self, value: Any, array: Any) -> Any:
        """The array in place of `value`."""
        return array

    def copy_with(self, value: Any, array: Any) -> Any:
        """A copy of `value` with another array."""
        return array

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        arrays = list(map(self.array_in, values))
        copies = in_order(in_batches(_widened if precise else _copied, arrays))
        return list(map(self.copy_with, values, copies))

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        arrays, like = list(map(self.array_in, values)), list(map(self.array_in, targets))
        return list(map(self.with_array, targets, in_order(in_batches(_copied_as, like, arrays))))

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        arrays, before = list(map(self.array_in, values)), list(map(self.array_in, targets))
        moved = in_order(in_batches(_moved, before, arrays, shared=(weight,)))
        return list(map(self.with_array, targets, moved))


def _wide(array: Any) -> Any:
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
    return jnp.float32 if is_narrow else array.dtype


@jitted
def _copied(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


@jitted
def _widened(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) if is_key_dtype(array.dtype) else jnp.array(array, _wide(array)) for array in arrays]


@jitted
def _copied_as(targets: list[Any], arrays: list[Any]) -> list[Any]:
    pairs = zip(targets, arrays, strict=True)
    return [jnp.copy(array) if array.dtype == target.dtype else array.astype(target.dtype) for target, array in pairs]


@jitted
def _moved(targets: list[Any], arrays: list[Any], weight: Any) -> list[Any]:
    """As `torch.lerp`, which begins at the nearer end, so that a weight of 1 would give exactly the new value."""
    moved = []
    for target, array in zip(targets, arrays, strict=True):
        end = array.astype(target.dtype)
        step = end - target
        fraction = jnp.asarray(weight, jnp.finfo(target.dtype).dtype)
        moved.append(jnp.where(fraction < 0.5, target + fraction * step, end - step * (1 - fraction)))
    return moved
