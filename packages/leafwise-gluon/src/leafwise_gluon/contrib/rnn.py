"""`mxnet.gluon.contrib.rnn`: the cells that MXNet 1.x has here, and 2.x in `gluon.rnn`."""

from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.rnn.basic_cells import LSTMPCell
from leafwise_gluon.rnn.conv_rnn_cell import (
    Conv1DGRUCell,
    Conv1DLSTMCell,
    Conv1DRNNCell,
    Conv2DGRUCell,
    Conv2DLSTMCell,
    Conv2DRNNCell,
    Conv3DGRUCell,
    Conv3DLSTMCell,
    Conv3DRNNCell,
)
from leafwise_gluon.rnn.dynamic import dynamic_unroll
from leafwise_gluon.rnn.modifiers import VariationalDropoutCell

__all__ = [
    "Conv1DGRUCell",
    "Conv1DLSTMCell",
    "Conv1DRNNCell",
    "Conv2DGRUCell",
    "Conv2DLSTMCell",
    "Conv2DRNNCell",
    "Conv3DGRUCell",
    "Conv3DLSTMCell",
    "Conv3DRNNCell",
    "LSTMPCell",
    "VariationalDropoutCell",
    "dynamic_unroll",
]

__getattr__ = names_of("mxnet.gluon.contrib.rnn")
