"""How leafwise reaches the leaves of a Block: as those of the module that it is, through Gluon's own words."""

from functools import partial
from typing import Any, Literal

from leafwise.core.memory import Op
from leafwise.core.path import Entry
from leafwise.core.sharing import Group, Keep, Place
from leafwise.errors import Unsupported
from leafwise.gluon.block import Block
from leafwise.gluon.nn import Sequential
from leafwise.homes.torch import TorchHome


class GluonHome(TorchHome):
    name = "gluon"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, Block) else None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if name in owner._reg_params and value is owner._parameters.get(name):
            return Entry(name, "step", partial(_tensor_at, name), spelling=f"{{root}}.{name}.tensor")
        if isinstance(owner, Sequential) and name.isdecimal():
            return Entry(name, "index", list(owner._modules).index(name))
        return super().entry(owner, name, value)

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        raise Unsupported(self.name, "tie", "share_parameters() of a Block does")

    def unbind(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        raise Unsupported(self.name, "untie", "the parameters of a Block are shared by share_parameters()")

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        raise Unsupported(self.name, "untie", "the parameters of a Block are shared by share_parameters()")

    def guard_ties(self, root: Any, objects: list[Any], groups: list[Group], keep: Keep | None) -> Any:
        raise Unsupported(self.name, "keep ties", "Blocks share Parameter objects, which hold on to their tensors")


def _tensor_at(name: str, block: Block) -> Any:
    return block._parameters[name]


HOME = GluonHome()
