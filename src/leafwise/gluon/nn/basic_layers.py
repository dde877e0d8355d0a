"""Dense."""

import math
from typing import Any

import torch

from leafwise.core.role_table import add_roles
from leafwise.gluon.arrays.choosing import wrap_like
from leafwise.gluon.arrays.values import plain
from leafwise.gluon.base import MXNetError
from leafwise.gluon.block import HybridBlock
from leafwise.gluon.nn.activations import Activation


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
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._units, self._flatten = units, flatten
        shape = (units, in_units)
        self.weight = self.own_parameter(
            "weight", shape=shape, dtype=dtype, init=weight_initializer, allow_deferred_init=True
        )
        self.bias = (
            self.own_parameter("bias", shape=(units,), dtype=dtype, init=bias_initializer, allow_deferred_init=True)
            if use_bias
            else None
        )
        with self.child_names():
            prefix = None if self._scope is None else f"{activation}_"
            self.act = None if activation is None else Activation(activation, prefix=prefix)

    def infer_shape(self, x: Any) -> None:
        self.weight.shape = (self._units, self._in_units(x))

    def _in_units(self, x: Any) -> int:
        shape = tuple(x.shape)
        return math.prod(shape[1:]) if self._flatten else shape[-1]

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        weight, bias = self.tensor_for("weight", x), self.tensor_for("bias", x)
        assert weight is not None
        units, width = weight.shape
        if self._in_units(x) != width:
            raise MXNetError(
                f"Shape inconsistent, Provided = [{units},{width}], inferred shape=({units},{self._in_units(x)}): "
                f"an input of shape {tuple(x.shape)} does not fit a weight of shape {(units, width)}"
            )
        data = plain(x)
        flat = data.reshape(data.shape[0], width) if self._flatten else data
        y = wrap_like(x, torch.nn.functional.linear(flat, weight, bias))
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        shape = self.weight.shape
        activation = "linear" if self.act is None else repr(self.act)
        return f"Dense({shape[1] if shape and shape[1] else None} -> {shape[0] if shape else None}, {activation})"


add_roles(Dense, {"weight": ("linear.weight", ("out", "in")), "bias": ("bias", ("out",))})
