"""`mxnet.gluon.rnn`: recurrent layers and cells."""

from leafwise.gluon.base import missing
from leafwise.gluon.rnn import rnn_cell, rnn_layer
from leafwise.gluon.rnn.rnn_cell import (
    BidirectionalCell,
    DropoutCell,
    GRUCell,
    HybridRecurrentCell,
    HybridSequentialRNNCell,
    LSTMCell,
    LSTMPCell,
    ModifierCell,
    RecurrentCell,
    ResidualCell,
    RNNCell,
    SequentialRNNCell,
    VariationalDropoutCell,
    ZoneoutCell,
)
from leafwise.gluon.rnn.rnn_layer import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BidirectionalCell",
    "DropoutCell",
    "GRUCell",
    "HybridRecurrentCell",
    "HybridSequentialRNNCell",
    "LSTMCell",
    "LSTMPCell",
    "ModifierCell",
    "RNNCell",
    "RecurrentCell",
    "ResidualCell",
    "SequentialRNNCell",
    "VariationalDropoutCell",
    "ZoneoutCell",
    "rnn_cell",
    "rnn_layer",
]

_CONVOLUTIONAL = "write a HybridRecurrentCell that calls npx.convolution"
_INSTEAD = {f"Conv{axes}D{kind}Cell": _CONVOLUTIONAL for axes in (1, 2, 3) for kind in ("RNN", "LSTM", "GRU")}
__getattr__ = missing("gluon.rnn", _INSTEAD, "torch.nn may have an equivalent")
