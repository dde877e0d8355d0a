"""A Gluon front end on PyTorch: code written for MXNet's Gluon runs here, and every Block is a `torch.nn.Module`.

>>> from leafwise.gluon import nn, np
>>> import leafwise as lw
>>> net = nn.Sequential()
>>> net.add(nn.Dense(8, activation="relu"), nn.Dense(1))
>>> net.initialize()
>>> net(np.random.uniform(size=(2, 4))).shape
(2, 1)
>>> lw.tree(net)["1.weight"].shape
(1, 8)

`python -m leafwise.gluon script.py` runs a script in which `import mxnet` imports this front end;
`as_mxnet()` does the same from Python.
"""

from leafwise.gluon import autograd, init, loss, lr_scheduler, metric, nn, np, npx, optimizer
from leafwise.gluon.base import DeferredInitializationError, MXNetError, missing
from leafwise.gluon.block import Block, HybridBlock, SymbolBlock
from leafwise.gluon.parameter import Constant, Parameter, ParameterDict
from leafwise.gluon.stand_in import as_mxnet
from leafwise.gluon.trainer import Trainer

__all__ = [
    "Block",
    "Constant",
    "DeferredInitializationError",
    "HybridBlock",
    "MXNetError",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "as_mxnet",
    "autograd",
    "init",
    "loss",
    "lr_scheduler",
    "metric",
    "nn",
    "np",
    "npx",
    "optimizer",
]

__getattr__ = missing("gluon", {}, "torch may have an equivalent")
