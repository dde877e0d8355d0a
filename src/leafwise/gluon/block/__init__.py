"""`mxnet.gluon.block`: the base classes of layers and models."""

from leafwise.gluon.block.hybrid_block import HybridBlock
from leafwise.gluon.block.plain_block import Block
from leafwise.gluon.block.symbol_block import SymbolBlock

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
