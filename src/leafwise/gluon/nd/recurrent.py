"""`nd.RNN`."""

from leafwise.gluon.arrays.legacy import NDArray
from leafwise.gluon.npx.over_arrays import over_arrays
from leafwise.gluon.ops import recurrent

__all__ = ["RNN"]

RNN = over_arrays(recurrent.rnn, NDArray, "RNN")
