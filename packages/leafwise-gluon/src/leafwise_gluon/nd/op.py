"""`mxnet.nd.op`: the operations of `nd`, under the same names."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("leafwise_gluon.nd"), name)
