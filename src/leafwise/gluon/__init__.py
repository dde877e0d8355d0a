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

`python -m leafwise.gluon [--mxnet 1] script.py` runs a script in which `import mxnet` imports this front end;
`as_mxnet(version)` does the same from Python.
"""

from typing import Any

from leafwise.gluon import autograd, data, dialect, init, nd, nn, np, npx, utils
from leafwise.gluon.base import DeferredInitializationError, MXNetError, absent
from leafwise.gluon.block import Block, HybridBlock, SymbolBlock
from leafwise.gluon.context import Context, cpu, current_context, gpu
from leafwise.gluon.dialect import Version
from leafwise.gluon.names.lookup import find
from leafwise.gluon.parameter import Constant, Parameter, ParameterDict
from leafwise.gluon.stand_in import as_mxnet
from leafwise.gluon.trainer import Trainer

__all__ = [
    "Block",
    "Constant",
    "Context",
    "DeferredInitializationError",
    "HybridBlock",
    "MXNetError",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "as_mxnet",
    "autograd",
    "cpu",
    "current_context",
    "data",
    "gpu",
    "init",
    "nd",
    "nn",
    "np",
    "npx",
    "utils",
]


def __getattr__(name: str) -> Any:
    """The other modules and names of `mxnet` and `mxnet.gluon`, such as `loss`, `rnn`, `Trainer`, `optimizer`."""
    versions: tuple[Version, Version] = (1, 2) if dialect.is_v1() else (2, 1)
    value, why_not = find(("mxnet.gluon", "mxnet"), name, versions)
    if why_not:
        raise absent(why_not, name)
    return value
