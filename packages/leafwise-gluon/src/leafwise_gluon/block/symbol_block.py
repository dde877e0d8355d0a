"""`mxnet.gluon.SymbolBlock`, which does not exist here."""

from typing import Any, NoReturn

from leafwise_gluon.base import refusal
from leafwise_gluon.block.hybrid_block import HybridBlock

_INSTEAD = "write the network as a Block; the values of a .params file can be loaded into it"


class SymbolBlock(HybridBlock):
    """A block made from a symbolic graph. The front end has no symbols, so it refuses to make one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal("gluon.SymbolBlock", _INSTEAD)

    @staticmethod
    def imports(*args: Any, **kwargs: Any) -> NoReturn:
        raise refusal("gluon.SymbolBlock.imports", _INSTEAD)
