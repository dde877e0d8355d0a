"""The leaves of a Block: handled like those of any PyTorch module, but with paths as Gluon writes them."""

from functools import partial
from typing import Any, ClassVar, Literal

from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.naming import Naming
from leafwise.core.capabilities.tying import Tying
from leafwise.core.home import Capabilities, Visit
from leafwise.core.path import Entry
from leafwise.errors import Unsupported
from leafwise.homes.torch.checkpoints.loading import TorchLoading
from leafwise.homes.torch.home import TorchHome
from leafwise_gluon.block import Block
from leafwise_gluon.nn.containers import LayerStack
from leafwise_gluon.symbol_names import GluonNaming
from leafwise_gluon.tying import GluonTying


class GluonLoading(TorchLoading):
    def reads_its_own(self, cls: Any) -> bool:
        # The method of Block is for PyTorch's load_state_dict; a parameter notices itself that its tensor was filled.
        return cls._load_from_state_dict is not Block._load_from_state_dict and super().reads_its_own(cls)


class GluonHome(TorchHome):
    name = "gluon"
    capabilities: ClassVar[Capabilities] = {
        **TorchHome.capabilities,
        Loading: GluonLoading,
        Naming: GluonNaming,
        Tying: GluonTying,
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, Block) else None

    def visit(self, obj: Any) -> Visit:
        for name, parameter in obj._reg_params.items():
            if len(parameter.tensors) > 1:
                reason = f"{name} of a {type(obj).__name__} is on {parameter.list_device()}; use reset_ctx() first"
                raise Unsupported(self.name, "walk a parameter on several contexts", reason)
        return super().visit(obj)

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if name in owner._reg_params and value is owner._parameters.get(name):
            return Entry(name, "step", partial(_tensor_at, name), spelling=f"{{root}}.{name}.tensor")
        if isinstance(owner, LayerStack) and name.isdecimal():
            return Entry(name, "index", list(owner._modules).index(name))
        return super().entry(owner, name, value)


def _tensor_at(name: str, block: Block) -> Any:
    return block._parameters[name]


HOME = GluonHome()
