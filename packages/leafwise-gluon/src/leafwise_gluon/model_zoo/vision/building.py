"""How the networks of the model zoo are put together, in both dialects: only MXNet 1.x has prefixes and scopes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from leafwise_gluon import dialect, nn
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.model_zoo.model_store import get_model_file

ROOT = "~/.mxnet/models"


def with_prefix(prefix: str) -> dict[str, Any]:
    """The argument `prefix` in MXNet 1.x; none in 2.x."""
    return {"prefix": prefix} if dialect.is_v1() else {}


def scope(block: Any) -> AbstractContextManager[Any]:
    """The scope in which the children of a block are named after it, in MXNet 1.x."""
    return block.name_scope() if dialect.is_v1() else nullcontext()


def sequence(*blocks: Any) -> Any:
    """Blocks one after another, which are named as if they were not in a sequence."""
    made = nn.HybridSequential(**with_prefix(""))
    made.add(*blocks)
    return made


def side_by_side(*blocks: Any, prefix: str = "") -> Any:
    """Blocks that all get the same input, and whose outputs are concatenated."""
    if dialect.is_v1():
        from leafwise_gluon.contrib.nn import HybridConcurrent

        made: Any = HybridConcurrent(axis=1, prefix=prefix)
    else:
        made = nn.HybridConcatenate(axis=1)
    made.add(*blocks)
    return made


class ZooNet(HybridBlock):
    """A network of features and an output, as all networks of the model zoo are."""

    features: Any
    output: Any

    def forward(self, x: Any) -> Any:
        return self.output(self.features(x))


def loaded(net: Any, name: str, pretrained: bool, ctx: Any, root: str) -> Any:
    """The network, with the weights from a file if `pretrained`."""
    if pretrained:
        net.load_parameters(get_model_file(name, root), ctx)
    return net
