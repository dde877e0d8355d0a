"""`mxnet.gluon.block`: the base classes of layers and models."""

from leafwise_gluon.block.hybrid_block import HybridBlock
from leafwise_gluon.block.plain_block import Block
from leafwise_gluon.block.symbol_block import SymbolBlock

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
