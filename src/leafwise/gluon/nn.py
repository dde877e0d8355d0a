"""`mxnet.gluon.nn`: Sequential, Dense and Activation."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from leafwise.core.role_table import add_roles
from leafwise.gluon.array import ndarray, through_torch
from leafwise.gluon.base import MXNetError, missing
from leafwise.gluon.block import Block, HybridBlock
from leafwise.gluon.parameter import Parameter

__all__ = ["Activation", "Block", "Dense", "HybridBlock", "HybridSequential", "Sequential"]

_ACTIVATIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softrelu": torch.nn.functional.softplus,
    "softsign": torch.nn.functional.softsign,
}


class Sequential(Block):
    """Calls its blocks one after another.

    >>> from leafwise.gluon import nn
    >>> net = nn.Sequential()
    >>> net.add(nn.Dense(8, activation="relu"), nn.Dense(1))
    >>> net
    Sequential(
      (0): Dense(-1 -> 8, Activation(relu))
      (1): Dense(-1 -> 1, linear)
    )
    >>> len(net), net[-1]
    (2, Dense(-1 -> 1, linear))
    """

    def add(self, *blocks: torch.nn.Module) -> None:
        """Adds blocks at the end; torch modules are accepted, too."""
        for block in blocks:
            if not isinstance(block, torch.nn.Module):
                raise TypeError(
                    f"{type(self).__name__}.add accepts Blocks and torch modules, not {type(block).__name__}"
                )
            self.register_child(block)

    def forward(self, x: Any, *args: Any) -> Any:
        for block in self._modules.values():
            # A torch module gets tensors, and its results become arrays again.
            is_plain = isinstance(x, ndarray) and not isinstance(block, Block)
            x = through_torch(block, x, *args) if is_plain else block(x, *args)  # type: ignore[arg-type, misc]
            args = ()
        return x

    def __getitem__(self, key: Any) -> Any:
        blocks = list(self._modules.values())[key]
        if not isinstance(blocks, list):
            return blocks
        part = type(self)()
        part.add(*blocks)
        return part

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


class HybridSequential(Sequential, HybridBlock):
    """The same as a Sequential; `hybridize()` does nothing."""


class Activation(HybridBlock):
    """An activation function as a layer: relu, sigmoid, tanh, softrelu or softsign."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self._act_type = activation

    def forward(self, x: Any) -> Any:
        if self._act_type not in _ACTIVATIONS:
            raise MXNetError(f"Invalid activation {self._act_type!r}; use one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[self._act_type](x)

    def __repr__(self) -> str:
        return f"Activation({self._act_type})"


class Dense(HybridBlock):
    """A fully connected layer. If `in_units` is not given, it is inferred from the first input.

    >>> from leafwise.gluon import nn, np
    >>> layer = nn.Dense(3)
    >>> layer.initialize()
    >>> layer(np.ones((2, 4))).shape
    (2, 3)
    >>> layer
    Dense(4 -> 3, linear)
    """

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_units: int = 0,
    ) -> None:
        super().__init__()
        self._units, self._flatten = units, flatten
        shape = (units, in_units or -1)
        self.weight = Parameter("weight", shape=shape, dtype=dtype, init=weight_initializer, allow_deferred_init=True)
        self.bias = (
            Parameter("bias", shape=(units,), dtype=dtype, init=bias_initializer, allow_deferred_init=True)
            if use_bias
            else None
        )
        self.act = None if activation is None else Activation(activation)

    def infer_shape(self, x: Any) -> None:
        self.weight.shape = (self._units, self._in_units(x))

    def _in_units(self, x: Any) -> int:
        shape = tuple(x.shape)
        return math.prod(shape[1:]) if self._flatten else shape[-1]

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        # Read from PyTorch's own dict, because torch.func.functional_call replaces the tensors there.
        weight, bias = self._parameters["weight"], self._parameters.get("bias")
        assert weight is not None
        units, width = weight.shape
        if self._in_units(x) != width:
            raise MXNetError(
                f"Shape inconsistent, Provided = [{units},{width}], inferred shape=({units},{self._in_units(x)}): "
                f"an input of shape {tuple(x.shape)} does not fit a weight of shape {(units, width)}"
            )
        flat = torch.reshape(x, (x.shape[0], width)) if self._flatten else x
        y = torch.nn.functional.linear(flat, weight, bias)
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        shape = self.weight.shape
        activation = "linear" if self.act is None else repr(self.act)
        return f"Dense({shape[1] if shape and shape[1] else None} -> {shape[0] if shape else None}, {activation})"


add_roles(Dense, {"weight": ("linear.weight", ("out", "in")), "bias": ("bias", ("out",))})

__getattr__ = missing("gluon.nn", {}, "torch.nn may have an equivalent, which can be added to a Sequential")
