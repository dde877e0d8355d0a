"""`mxnet.nd.op`: the operations of `nd`, under the same names."""

from leafwise.gluon.nd.functions import operations

globals().update(operations())
