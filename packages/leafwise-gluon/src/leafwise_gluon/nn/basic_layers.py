"""Dense, Dropout, Embedding and Flatten."""

import math
from typing import Any

import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.nn.activations import Activation
from leafwise_gluon.ops import neural_norms, neural_picking
from leafwise_gluon.ops.legacy import shaping
from leafwise_gluon.ops.neural_checks import check_dtype


class Dense(HybridBlock):
    """A fully connected layer. If `in_units` is not given, it is inferred from the first input.

    >>> from leafwise_gluon import nn, np
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._units, self._flatten, self._in_units = units, flatten, in_units
        self.weight = self.own_parameter(
            "weight", shape=(units, in_units), dtype=dtype, init=weight_initializer, allow_deferred_init=True
        )
        self.bias = (
            self.own_parameter("bias", shape=(units,), dtype=dtype, init=bias_initializer, allow_deferred_init=True)
            if use_bias
            else None
        )
        self.act = activation_of(self, activation)

    def infer_shape(self, x: Any) -> None:
        self.weight.shape = (self._units, self._width(x.shape))

    def _width(self, shape: Any) -> int:
        return math.prod(shape[1:]) if self._flatten else shape[-1]

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        weight, bias = self.tensor_for("weight", x), self.tensor_for("bias", x)
        assert weight is not None
        data = plain(x)
        units, width = weight.shape
        if self._width(data.shape) != width:
            raise MXNetError(
                f"Shape inconsistent, Provided = [{units},{width}], inferred shape=({units},{self._width(data.shape)}):"
                f" an input of shape {tuple(data.shape)} does not fit a weight of shape {(units, width)}"
            )
        if data.dtype != weight.dtype:
            check_dtype("FullyConnected", data, weight)
        flat = data.reshape(data.shape[0], width) if self._flatten else data
        y = wrap_like(x, torch.nn.functional.linear(flat, weight, bias))
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        shape = self.weight.shape
        activation = "linear" if self.act is None else repr(self.act)
        sizes = f"{shape[1] if shape and shape[1] else None} -> {shape[0] if shape else None}"
        return f"{type(self).__name__}({sizes}, {activation})"


def activation_of(layer: HybridBlock, activation: str | None) -> Activation | None:
    """The activation that a layer applies to its result; in MXNet 1.x it is named after the function."""
    if activation is None:
        return None
    with layer.child_names():
        return Activation(activation, prefix=f"{activation}_") if is_v1() else Activation(activation)


class Dropout(HybridBlock):
    """In training, zeroes elements with a probability and scales the others up; along `axes`, all of them together."""

    def __init__(self, rate: float, axes: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rate, self._axes = rate, axes

    def forward(self, x: Any) -> Any:
        is_array = isinstance(x, ArrayValues)
        training = STATE.training if is_array else self.training
        result = neural_norms.dropout(plain(x), self._rate, axes=self._axes, training=training, from_torch=not is_array)
        return wrap_like(x, result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p = {self._rate}, axes={self._axes})"


class Embedding(HybridBlock):
    """Rows of a table, at the indices that are its input.

    >>> from leafwise_gluon import nn, np
    >>> layer = nn.Embedding(10, 3)
    >>> layer.initialize()
    >>> layer(np.array([1, 2])).shape
    (2, 3)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        sparse_grad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if sparse_grad:
            raise refusal("Embedding with sparse_grad=True", "leave it out; the gradient is the same, but dense")
        self._kwargs = {
            "input_dim": input_dim,
            "output_dim": output_dim,
            "dtype": dtype,
            "sparse_grad": sparse_grad,
        }
        self.weight = self.own_parameter(
            "weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, allow_deferred_init=True
        )

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        weight = self.tensor_for("weight", x)
        assert weight is not None
        return wrap_like(x, neural_picking.embedding(plain(x), weight))

    def __repr__(self) -> str:
        facts = self._kwargs
        return f"{type(self).__name__}({facts['input_dim']} -> {facts['output_dim']}, {facts['dtype']})"


class Flatten(HybridBlock):
    """Makes all axes but the first one axis."""

    def forward(self, x: Any) -> Any:
        return wrap_like(x, shaping.flatten(plain(x)))

    def __repr__(self) -> str:
        return type(self).__name__


add_roles(Dense, {"weight": ("linear.weight", ("out", "in")), "bias": ("bias", ("out",))})
add_roles(Embedding, {"weight": ("embedding.table", ("vocab", "features"))})
