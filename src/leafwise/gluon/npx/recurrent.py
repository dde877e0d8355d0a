"""`npx.rnn`."""

from leafwise.gluon.arrays.ndarray import ndarray
from leafwise.gluon.npx.over_arrays import over_arrays
from leafwise.gluon.ops import recurrent

__all__ = ["rnn"]

rnn = over_arrays(recurrent.rnn, ndarray, "rnn")
