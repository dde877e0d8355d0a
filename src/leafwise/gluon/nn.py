"""`mxnet.gluon.nn`: the layers of the deck."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from leafwise.gluon.array import ndarray, through_torch
from leafwise.gluon.base import MXNetError, missing
from leafwise.gluon.block import Block, HybridBlock
from leafwise.gluon.parameter import Parameter
from leafwise.homes.torch.roles import add_roles

__all__ = ["Activation", "Block", "Dense", "HybridBlock", "HybridSequential", "Sequential"]

_ACTIVATIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softrelu": torch.nn.functional.softplus,
    "softsign": torch.nn.functional.softsign,
}


class Sequential(Block):
    """Blocks one after another.

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
        """Adds blocks at the end; a plain torch module is a block too."""
        for block in blocks:
            if not isinstance(block, torch.nn.Module):
                raise TypeError(f"{type(self).__name__}.add takes Blocks or torch modules, not {type(block).__name__}")
            self.register_child(block)

    def forward(self, x: Any, *args: Any) -> Any:
        for block in self._modules.values():
            # Plain modules are PyTorch's own code: they get tensors, and what they give are arrays again.
            is_plain = isinstance(x, ndarray) and not isinstance(block, Block)
            x = through_torch(block, x, *args) if is_plain else block(x, *args)  # type: ignore[arg-type, misc]
            args = ()
        return x

    def __getitem__(self, key: Any) -> Any:
        found = list(self._modules.values())[key]
        if not isinstance(found, list):
            return found
        part = type(self)()
        part.add(*found)
        return part

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


class HybridSequential(Sequential, HybridBlock):
    """A Sequential that could be hybridized."""


class Activation(HybridBlock):
    """A function as a layer: relu, sigmoid, tanh, softrelu, softsign."""

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
    """A fully connected layer; `in_units` may be told by the first input.

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
        self._finish_deferred_init(x)
        for parameter in self._reg_params.values():
            parameter._check_initialized()
        # From where PyTorch looks too, so that torch.func.functional_call can put others in their place.
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

__getattr__ = missing("gluon.nn", {}, "a Sequential takes torch modules too: torch.nn may have what {name} does")
