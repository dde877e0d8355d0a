"""`mxnet.gluon.parameter`: parameters, constants, and the dictionaries of parameters of MXNet 1.x."""

from leafwise.gluon.base import DeferredInitializationError
from leafwise.gluon.parameter.constant import Constant
from leafwise.gluon.parameter.dictionary import ParameterDict
from leafwise.gluon.parameter.handle import Parameter

__all__ = ["Constant", "DeferredInitializationError", "Parameter", "ParameterDict"]
