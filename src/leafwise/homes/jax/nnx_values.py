"""Averages and clipped gradients of Flax NNX: new arrays in Variables."""

from typing import Any

from flax import nnx

from leafwise.homes.jax.averaging import JaxAveraging
from leafwise.homes.jax.clipping import JaxClipping
from leafwise.homes.jax.nnx import array_in, put_array


def copy_with(variable: nnx.Variable[Any], array: Any) -> nnx.Variable[Any]:
    """A Variable of the same type, with the same metadata and another array."""
    copied: nnx.Variable[Any] = variable.copy(array)
    return copied


class NnxAveraging(JaxAveraging):
    def array_in(self, value: Any) -> Any:
        return array_in(value)

    def with_array(self, value: Any, array: Any) -> Any:
        put_array(value, array)
        return value

    def copy_with(self, value: Any, array: Any) -> Any:
        return copy_with(value, array)


class NnxClipping(JaxClipping):
    """Gradients are the Variables of an `nnx.State`; the clipped ones are new Variables."""

    @property
    def takes_gradients(self) -> bool:
        return True

    def cannot_have_gradients(self, owner: Any) -> str:
        if isinstance(owner, nnx.State):
            return ""
        return (
            f"it is in {type(owner).__name__}, a module, which has no gradients; pass the gradients that nnx.grad "
            "returns, an nnx.State"
        )

    def array_in(self, value: Any) -> Any:
        return array_in(value)

    def copy_with(self, value: Any, array: Any) -> Any:
        return copy_with(value, array)
