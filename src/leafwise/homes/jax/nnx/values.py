"""Statistics, averages and clipped gradients of Flax NNX, whose arrays are in Variables."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from leafwise.core import registry as homes
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.results.moments import Moments
from leafwise.core.work.progress import Count
from leafwise.homes.jax.nnx.home import array_in, put_array
from leafwise.homes.jax.values.computing import JaxAveraging, JaxClipping


class NnxMeasuring(Measuring):
    """The home of the arrays in the Variables measures them: that of JAX, or that of NumPy."""

    def cannot_measure(self, value: Any) -> str:
        return _measuring(array_in(value)).cannot_measure(array_in(value))

    def measure(self, values: list[Any], histogram: bool, count: Count) -> Callable[[], list[Moments]]:
        arrays = list(map(array_in, values))
        numbers: dict[Measuring, list[int]] = {}
        for number, array in enumerate(arrays):
            numbers.setdefault(_measuring(array), []).append(number)
        started = [
            (which, measuring.measure([arrays[number] for number in which], histogram, count))
            for measuring, which in numbers.items()
        ]

        def wait() -> list[Moments]:
            by_number = {
                number: moments for which, results in started for number, moments in zip(which, results(), strict=True)
            }
            return [by_number[number] for number in range(len(arrays))]

        return wait


def _measuring(array: Any) -> Measuring:
    return homes.home_of(array).capability(Measuring)


class NnxAveraging(JaxAveraging):
    def with_array(self, value: Any, array: Any) -> Any:
        put_array(value, array)
        return value

    def copy_with(self, value: Any, array: Any) -> Any:
        return value.copy(array)


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

    def copy_with(self, value: Any, array: Any) -> Any:
        return value.copy(array)
