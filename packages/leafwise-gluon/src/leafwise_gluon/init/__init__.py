"""`mxnet.init`: initializers, with MXNet's numbers."""

from leafwise_gluon.init.basic import Constant, Normal, One, Uniform, Zero
from leafwise_gluon.init.combined import Load, Mixed
from leafwise_gluon.init.initializer import InitDesc, Initializer
from leafwise_gluon.init.recurrent import FusedRNN, LSTMBias, RNNFused
from leafwise_gluon.init.registry import alias, create, register
from leafwise_gluon.init.scaled import Bilinear, MSRAPrelu, Orthogonal, Xavier
from leafwise_gluon.names.lookup import names_of

__all__ = [
    "Bilinear",
    "Constant",
    "FusedRNN",
    "InitDesc",
    "Initializer",
    "LSTMBias",
    "Load",
    "MSRAPrelu",
    "Mixed",
    "Normal",
    "One",
    "Orthogonal",
    "RNNFused",
    "Uniform",
    "Xavier",
    "Zero",
    "alias",
    "create",
    "register",
]

__getattr__ = names_of("mxnet.initializer")
