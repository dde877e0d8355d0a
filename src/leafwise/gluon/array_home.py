"""How leafwise reaches arrays in containers: as the tensors beneath, whose methods arrays do not have."""

from collections.abc import Callable
from typing import Any, Literal

from leafwise.core.home import Spec
from leafwise.errors import Unsupported
from leafwise.gluon.array import ndarray
from leafwise.gluon.array_values import plain
from leafwise.homes.torch import TorchHome

# What is asked about values and memory; for all of it, the tensor beneath answers.
_OF_VALUES = (
    "buffer",
    "cannot_compare",
    "cannot_fill",
    "cannot_measure",
    "cannot_read",
    "cannot_write",
    "clone_many",
    "copy_many",
    "draw",
    "drawn_at_a_time",
    "fill",
    "fingerprint",
    "first_of_other_shape",
    "lerp_many",
    "lies_at",
    "local_parts",
    "measure",
    "memory",
    "norms",
    "numpy",
    "pieces",
    "read",
    "reads_parts",
    "run",
    "same_bits",
    "scale_many",
    "seen_through",
    "snapshot",
    "storage",
    "storages",
    "write",
    "wrote",
)


class ArrayHome(TorchHome):
    name = "gluon arrays"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if issubclass(cls, ndarray) else None

    def spec(self, value: Any) -> Spec:
        return super().spec(plain(value).detach())._replace(trainable=value.requires_grad or None)

    def specs(self, values: list[Any]) -> list[Spec]:
        return [self.spec(value) for value in values]

    def grads(self, values: list[Any]) -> list[Any]:
        return [value.grad for value in values]

    def own_gradient(self, value: Any) -> bool:
        return bool(value.requires_grad and value.is_leaf)

    def cannot_train(self, value: Any, trainable: bool) -> str:
        return "it is an array; use attach_grad() and drop_grad()"

    def clip_together(self, values: list[Any], max_norm: float) -> list[float] | None:
        return None

    def cannot_pack(self, value: Any) -> str:
        return "it is an array; pack the Block that has parameters"

    def blank(self, value: Any, shape: tuple[int, ...]) -> Any:
        raise Unsupported(self.name, "give a new array of another shape", "np.zeros does")


def _beneath(name: str) -> Callable[..., Any]:
    def method(self: ArrayHome, *args: Any, **kwargs: Any) -> Any:
        tensors = [[plain(one) for one in arg] if isinstance(arg, list) else plain(arg) for arg in args]
        return getattr(TorchHome, name)(self, *tensors, **kwargs)

    method.__name__ = name
    return method


for _name in _OF_VALUES:
    setattr(ArrayHome, _name, _beneath(_name))

HOME = ArrayHome()
