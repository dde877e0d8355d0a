"""`mxnet.gluon.rnn.rnn_cell`: the cells of all kinds."""

from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.rnn.basic_cells import GRUCell, LSTMCell, LSTMPCell, RNNCell
from leafwise_gluon.rnn.bidirectional import BidirectionalCell
from leafwise_gluon.rnn.dynamic import dynamic_unroll
from leafwise_gluon.rnn.modifiers import DropoutCell, ModifierCell, ResidualCell, VariationalDropoutCell, ZoneoutCell
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell
from leafwise_gluon.rnn.stacks import HybridSequentialRNNCell, SequentialRNNCell

__all__ = [
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
    "dynamic_unroll",
]

__getattr__ = names_of("mxnet.gluon.rnn.rnn_cell")
