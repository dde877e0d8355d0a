"""How leafwise reaches the weights of toynet."""

from typing import Any, ClassVar, Literal

from toynet import Layer, Weight

from leafwise import WriteError
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.home import Capabilities, Home, Spec, Visit


class ToynetRebuilding(Rebuilding):
    """New weights, which `lw.Average` and others need."""

    def from_numpy(self, value: Weight, array: Any) -> Weight:
        return Weight(array)


class ToynetHome(Home):
    name = "toynet"
    walks = "a toynet layer"
    capabilities: ClassVar[Capabilities] = {Rebuilding: ToynetRebuilding}

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, Layer) else "leaf" if cls is Weight else None

    def visit(self, obj: Layer) -> Visit:
        return (), vars(obj).items(), None  # its children; which of them are weights is known by their type

    def spec(self, value: Weight) -> Spec:
        values = value.values
        return Spec(values.shape, "float32", "cpu", values.size, values.nbytes, trainable=True)

    def read(self, value: Weight, index: Any = ()) -> Any:
        return value.values[index]

    def write(self, value: Weight, array: Any) -> None:
        if (array.shape, array.dtype) != (value.values.shape, value.values.dtype):
            raise WriteError(f"cannot write {array.dtype} of shape {array.shape}")
        value.values[...] = array


HOME = ToynetHome()
