"""`mxnet.gluon.model_zoo`: the networks of MXNet's model zoo, without their weights."""

from leafwise_gluon.model_zoo import model_store, vision

__all__ = ["model_store", "vision"]
