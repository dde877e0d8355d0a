"""`mxnet.optimizer.contrib`."""

from leafwise_gluon.optimizer.adaptive import GroupAdaGrad

__all__ = ["GroupAdaGrad"]
