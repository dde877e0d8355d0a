"""`mxnet.nd`: the functions over the arrays of MXNet 1.x, which 2.x has, too.

>>> from leafwise_gluon import nd
>>> x = nd.array([[1, 2], [3, 4]])
>>> nd.concat(x, x * 10, dim=0)
<BLANKLINE>
[[ 1.  2.]
 [ 3.  4.]
 [10. 20.]
 [30. 40.]]
<NDArray 4x2 @cpu(0)>
"""

import importlib
from typing import Any

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.nd import contrib, image, linalg, neural, op, optimizer_updates, random, random_operators
from leafwise_gluon.nd.creation import (
    arange,
    array,
    concatenate,
    empty,
    eye,
    from_dlpack,
    from_numpy,
    full,
    histogram,
    linspace,
    moveaxis,
    onehot_encode,
    ones,
    to_dlpack_for_read,
    to_dlpack_for_write,
    waitall,
    zeros,
)
from leafwise_gluon.nd.functions import SINCE_2, operations
from leafwise_gluon.nd.recurrent import RNN
from leafwise_gluon.nd.saving import load, save

__all__ = [
    "RNN",
    "NDArray",
    "arange",
    "array",
    "concatenate",
    "contrib",
    "empty",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "histogram",
    "image",
    "linalg",
    "linspace",
    "load",
    "moveaxis",
    "onehot_encode",
    "ones",
    "op",
    "random",
    "save",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "waitall",
    "zeros",
]

globals().update(operations())
globals().update({name: getattr(neural, name) for name in neural.__all__})
globals().update({name: getattr(random_operators, name) for name in random_operators.__all__})
globals().update({name: getattr(optimizer_updates, name) for name in optimizer_updates.__all__})
globals().update({f"linalg_{name}": getattr(linalg, name) for name in linalg.__all__})

# In `hybrid_forward(self, F, x)`, F is this module, and F.np and F.npx are the functions over np arrays.
_MODULES = {"np": "np", "numpy": "np", "npx": "npx", "numpy_extension": "npx"}
_other_names = names_of("mxnet.ndarray")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"leafwise_gluon.{_MODULES[name]}")
    if name in SINCE_2 and not dialect.is_v1():
        return SINCE_2[name]
    return _other_names(name)
