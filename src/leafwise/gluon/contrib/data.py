"""`mxnet.gluon.contrib.data`."""

from leafwise.gluon.data.sampler import IntervalSampler

__all__ = ["IntervalSampler"]
