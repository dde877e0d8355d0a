"""`mxnet.gluon.contrib`: in MXNet 1.x, layers and cells that 2.x has in `gluon.nn` and `gluon.rnn`."""

from leafwise_gluon.contrib import data, nn, rnn

__all__ = ["data", "nn", "rnn"]
