"""How leafwise reaches the leaves of a Block: as those of the module that it is, through Gluon's own words."""

from functools import partial
from typing import Any, Literal

from leafwise.core.path import Entry
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


def _tensor_at(name: str, block: Block) -> Any:
    return block._parameters[name]


HOME = GluonHome()
