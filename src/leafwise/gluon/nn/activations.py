"""Activation functions as layers."""

from typing import Any

import torch

from leafwise.gluon.base import MXNetError
from leafwise.gluon.block import HybridBlock

_ACTIVATIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softrelu": torch.nn.functional.softplus,
    "softsign": torch.nn.functional.softsign,
}


class Activation(HybridBlock):
    """An activation function as a layer: relu, sigmoid, tanh, softrelu or softsign."""

    def __init__(self, activation: str, prefix: str | None = None, params: Any = None) -> None:
        self.__dict__["_act_type"] = activation  # the block is named after it
        super().__init__(prefix=prefix, params=params)
        self._act_type = activation

    def _alias(self) -> str:
        return self._act_type

    def forward(self, x: Any) -> Any:
        if self._act_type not in _ACTIVATIONS:
            raise MXNetError(f"Invalid activation {self._act_type!r}; use one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[self._act_type](x)

    def __repr__(self) -> str:
        return f"Activation({self._act_type})"
