"""`mxnet.gluon.nn`: layers."""

from leafwise.gluon.base import missing
from leafwise.gluon.block import Block, HybridBlock
from leafwise.gluon.nn.activations import Activation
from leafwise.gluon.nn.basic_layers import Dense
from leafwise.gluon.nn.containers import HybridSequential, Sequential

__all__ = ["Activation", "Block", "Dense", "HybridBlock", "HybridSequential", "Sequential"]

__getattr__ = missing("gluon.nn", {}, "torch.nn may have an equivalent, which can be added to a Sequential")
