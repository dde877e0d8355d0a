"""Activation functions as layers."""

from typing import Any

import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.init import Constant
from leafwise_gluon.ops import neural_activations


class Activation(HybridBlock):
    """An activation function as a layer: relu, sigmoid, tanh, softrelu, softsign; in 2.x also log_sigmoid, mish."""

    def __init__(self, activation: str, **kwargs: Any) -> None:
        self.__dict__["_act_type"] = activation  # the block is named after it
        super().__init__(**kwargs)
        self._act_type = activation

    def _alias(self) -> str:
        return self._act_type

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_activations.activation(plain(x), self._act_type))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class LeakyReLU(HybridBlock):
    """`x` where it is positive, and `alpha · x` elsewhere."""

    def __init__(self, alpha: float, **kwargs: Any) -> None:
        assert alpha >= 0, "Slope coefficient for LeakyReLU must be no less than 0."
        super().__init__(**kwargs)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_activations.leaky_relu(plain(x), act_type="leaky", slope=self._alpha))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._alpha})"


class PReLU(HybridBlock):
    """`x` where it is positive, and a learned slope times `x` elsewhere; one slope, or one for each channel."""

    def __init__(self, alpha_initializer: Any = None, in_channels: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        init = Constant(0.25) if alpha_initializer is None else alpha_initializer
        with self.child_names():
            self.alpha = self.own_parameter("alpha", shape=(in_channels,), init=init)

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        slopes = self.tensor_for("alpha", x)
        return wrap_like(x, neural_activations.leaky_relu(plain(x), slopes, act_type="prelu"))


class ELU(HybridBlock):
    """`x` where it is positive, and `alpha · (exp(x) - 1)` elsewhere."""

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._alpha = alpha

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_activations.leaky_relu(plain(x), act_type="elu", slope=self._alpha))


class SELU(HybridBlock):
    """The self-normalizing variant of ELU."""

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_activations.leaky_relu(plain(x), act_type="selu"))


class GELU(HybridBlock):
    """`x` times the normal distribution function of `x`."""

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_activations.leaky_relu(plain(x), act_type="gelu"))


class Swish(HybridBlock):
    """`x · sigmoid(beta · x)`."""

    def __init__(self, beta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._beta = beta

    def forward(self, x: Any) -> Any:
        data = plain(x)
        return wrap_like(x, data * torch.sigmoid(self._beta * data))


class SiLU(HybridBlock):
    """`x · sigmoid(x)`."""

    def forward(self, x: Any) -> Any:
        return wrap_like(x, torch.nn.functional.silu(plain(x)))


add_roles(PReLU, {"alpha": ("activation.slope", ("features",))})
