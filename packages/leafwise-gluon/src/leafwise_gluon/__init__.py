"""A Gluon front end on PyTorch: code written for MXNet's Gluon runs here, and every Block is a `torch.nn.Module`.

>>> from leafwise_gluon import nn, np
>>> import leafwise as lw
>>> net = nn.Sequential()
>>> net.add(nn.Dense(8, activation="relu"), nn.Dense(1))
>>> net.initialize()
>>> net(np.random.uniform(size=(2, 4))).shape
(2, 1)
>>> lw.tree(net)["1.weight"].shape
(1, 8)

`python -m leafwise_gluon [--mxnet 1] script.py` runs a script in which `import mxnet` imports this front end;
`as_mxnet(version)` does the same from Python.
"""

from typing import Any

from leafwise import register
from leafwise_gluon import array_home, autograd, data, dialect, home, init, nd, nn, np, npx, utils
from leafwise_gluon.base import DeferredInitializationError, MXNetError, absent
from leafwise_gluon.block import Block, HybridBlock, SymbolBlock
from leafwise_gluon.context import Context, cpu, current_context, gpu
from leafwise_gluon.dialect import Version
from leafwise_gluon.names.lookup import find
from leafwise_gluon.parameter import Constant, Parameter, ParameterDict
from leafwise_gluon.stand_in import as_mxnet
from leafwise_gluon.trainer import Trainer

__version__ = "0.1.0"

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

# The home of Blocks is asked first: a Block is a torch.nn.Module, too.
register(array_home.HOME)
register(home.HOME)


def __getattr__(name: str) -> Any:
    """The other modules and names of `mxnet` and `mxnet.gluon`, such as `loss`, `rnn`, `Trainer`, `optimizer`."""
    versions: tuple[Version, Version] = (1, 2) if dialect.is_v1() else (2, 1)
    value, why_not = find(("mxnet.gluon", "mxnet"), name, versions)
    if why_not:
        raise absent(why_not, name)
    return value
