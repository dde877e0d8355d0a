"""The leaves of a Block: as those of the PyTorch module that it is, with paths as Gluon spells them."""

from functools import partial
from typing import Any, ClassVar, Literal

from leafwise.core.capabilities.tying import Keep, Place, TiedPlaces, Tying
from leafwise.core.home import Capabilities
from leafwise.core.memory import Op
from leafwise.core.path import Entry
from leafwise.errors import Unsupported
from leafwise.gluon.block import Block
from leafwise.gluon.nn import Sequential
from leafwise.homes.torch.home import TorchHome
from leafwise.homes.torch.tying import TorchTying


class GluonTying(TorchTying):
    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        raise Unsupported(self.home.name, "tie", "share_parameters() of a Block does")

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        raise Unsupported(self.home.name, "untie", "the parameters of a Block are shared by share_parameters()")

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        raise Unsupported(self.home.name, "untie", "the parameters of a Block are shared by share_parameters()")

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        reason = "Blocks share Parameter objects, which hold on to their tensors"
        raise Unsupported(self.home.name, "keep ties", reason)


class GluonHome(TorchHome):
    name = "gluon"
    capabilities: ClassVar[Capabilities] = {**TorchHome.capabilities, Tying: GluonTying}

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, Block) else None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if name in owner.params and value is owner._parameters.get(name):
            return Entry(name, "step", partial(_tensor_at, name), spelling=f"{{root}}.{name}.tensor")
        if isinstance(owner, Sequential) and name.isdecimal():
            return Entry(name, "index", list(owner._modules).index(name))
        return super().entry(owner, name, value)


def _tensor_at(name: str, block: Block) -> Any:
    return block._parameters[name]


HOME = GluonHome()
