"""`mxnet.gluon.contrib.rnn`."""

from leafwise.gluon.rnn import LSTMPCell, VariationalDropoutCell

__all__ = ["LSTMPCell", "VariationalDropoutCell"]
