"""`mxnet.optimizer`: how a Trainer changes parameters."""

from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.optimizer import contrib
from leafwise_gluon.optimizer.adam import LAMB, AdaBelief, Adam, Adamax, AdamW, Nadam
from leafwise_gluon.optimizer.adaptive import FTML, AdaDelta, AdaGrad, Ftrl, RMSProp
from leafwise_gluon.optimizer.base import Optimizer, create, register
from leafwise_gluon.optimizer.example import Test
from leafwise_gluon.optimizer.sgd import DCASGD, LARS, NAG, SGD, Signum, ccSGD
from leafwise_gluon.optimizer.updater import Updater, get_updater

__all__ = [
    "DCASGD",
    "FTML",
    "LAMB",
    "LARS",
    "NAG",
    "SGD",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "Signum",
    "Test",
    "Updater",
    "ccSGD",
    "contrib",
    "create",
    "get_updater",
    "register",
]

__getattr__ = names_of("mxnet.optimizer")
