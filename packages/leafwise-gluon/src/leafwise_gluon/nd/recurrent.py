"""`nd.RNN`."""

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.npx.over_arrays import over_arrays
from leafwise_gluon.ops import recurrent

__all__ = ["RNN"]

RNN = over_arrays(recurrent.rnn, NDArray, "RNN")
