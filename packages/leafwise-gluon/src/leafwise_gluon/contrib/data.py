"""`mxnet.gluon.contrib.data`."""

from leafwise_gluon.data.sampler import IntervalSampler

__all__ = ["IntervalSampler"]
