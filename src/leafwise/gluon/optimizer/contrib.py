"""`mxnet.optimizer.contrib`."""

from leafwise.gluon.optimizer.adaptive import GroupAdaGrad

__all__ = ["GroupAdaGrad"]
