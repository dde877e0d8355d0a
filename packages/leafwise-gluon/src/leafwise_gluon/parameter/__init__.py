"""`mxnet.gluon.parameter`: parameters, constants, and the dictionaries of parameters of MXNet 1.x."""

from leafwise_gluon.base import DeferredInitializationError
from leafwise_gluon.parameter.constant import Constant
from leafwise_gluon.parameter.dictionary import ParameterDict
from leafwise_gluon.parameter.handle import Parameter

__all__ = ["Constant", "DeferredInitializationError", "Parameter", "ParameterDict"]
