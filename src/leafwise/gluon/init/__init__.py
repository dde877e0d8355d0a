"""`mxnet.init`: initializers, with MXNet's numbers."""

from leafwise.gluon.init.basic import Constant, Normal, One, Uniform, Zero
from leafwise.gluon.init.combined import Load, Mixed
from leafwise.gluon.init.initializer import InitDesc, Initializer
from leafwise.gluon.init.recurrent import FusedRNN, LSTMBias, RNNFused
from leafwise.gluon.init.registry import alias, create, register
from leafwise.gluon.init.scaled import Bilinear, MSRAPrelu, Orthogonal, Xavier
from leafwise.gluon.names.lookup import names_of

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
