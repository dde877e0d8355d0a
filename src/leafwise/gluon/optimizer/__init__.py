"""`mxnet.optimizer`: how a Trainer changes parameters."""

from leafwise.gluon.names.lookup import names_of
from leafwise.gluon.optimizer import contrib
from leafwise.gluon.optimizer.adam import LAMB, AdaBelief, Adam, Adamax, AdamW, Nadam
from leafwise.gluon.optimizer.adaptive import FTML, AdaDelta, AdaGrad, Ftrl, RMSProp
from leafwise.gluon.optimizer.base import Optimizer, create, register
from leafwise.gluon.optimizer.example import Test
from leafwise.gluon.optimizer.sgd import DCASGD, LARS, NAG, SGD, Signum, ccSGD
from leafwise.gluon.optimizer.updater import Updater, get_updater

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
