"""`npx.rnn`."""

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.npx.over_arrays import over_arrays
from leafwise_gluon.ops import recurrent

__all__ = ["rnn"]

rnn = over_arrays(recurrent.rnn, ndarray, "rnn")
