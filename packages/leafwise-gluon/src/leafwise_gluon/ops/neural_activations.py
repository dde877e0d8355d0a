"""Activation functions, and elementwise functions of MXNet that NumPy does not have."""

from collections.abc import Callable

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.neural_checks import check_shape, floating, one_of

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softrelu": lambda data: torch.logaddexp(data, torch.zeros_like(data)),
    "softsign": torch.nn.functional.softsign,
}
_NEW_ACTIVATIONS = {"log_sigmoid": torch.nn.functional.logsigmoid, "mish": torch.nn.functional.mish}


def activation(data: torch.Tensor, act_type: str = "relu") -> torch.Tensor:
    """relu, sigmoid, tanh, softrelu or softsign; in 2.x also log_sigmoid and mish."""
    known = _ACTIVATIONS if is_v1() else {**_ACTIVATIONS, **_NEW_ACTIVATIONS}
    if act_type not in known:
        raise MXNetError(f"Invalid Input: {act_type!r}, valid values are: {sorted(known)}, in operator Activation")
    return known[act_type](floating("Activation", data))


def leaky_relu(
    data: torch.Tensor,
    gamma: torch.Tensor | None = None,
    act_type: str = "leaky",
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
) -> torch.Tensor:
    """leaky, prelu (with the slopes `gamma`), elu, selu or gelu. The bounds are those of rrelu, which is refused."""
    one_of("LeakyReLU", "act_type", act_type, ("leaky", "prelu", "elu", "selu", "gelu", "rrelu"))
    functional = torch.nn.functional
    floating("LeakyReLU", data)
    if gamma is not None and act_type != "prelu":
        raise MXNetError(f"LeakyReLU takes gamma for act_type 'prelu' only, not for {act_type!r}; leave it out")
    if act_type == "leaky":
        return functional.leaky_relu(data, slope)
    if act_type == "elu":
        return torch.where(data > 0, data, slope * torch.expm1(data.clamp(max=0)))
    if act_type == "selu":
        return _selu(data)
    if act_type == "gelu":
        return functional.gelu(data)
    if act_type == "rrelu":  # MXNet returns a list: the result, and the slopes that it has drawn
        instead = f"use act_type='leaky' with slope={(lower_bound + upper_bound) / 2:g}, the mean of the bounds"
        raise refusal("LeakyReLU with act_type 'rrelu'", instead)
    if gamma is None:
        raise MXNetError("LeakyReLU with act_type 'prelu' needs gamma, the slopes")
    if gamma.ndim == 1 and gamma.shape[0] > 1 and data.ndim > 1:
        check_shape("LeakyReLU", "gamma", gamma.shape, (data.shape[1],))
        gamma = gamma.reshape(-1, *[1] * (data.ndim - 2))
    return torch.where(data > 0, data, gamma * data)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _selu(data: torch.Tensor) -> torch.Tensor:
    """selu with MXNet's gradient, which for negative numbers is scale · (result + alpha): the scale is in it twice."""
    result = torch.nn.functional.selu(data.detach())
    if not data.requires_grad:
        return result
    slope = torch.where(result > 0, _SELU_SCALE, _SELU_SCALE * (result + _SELU_ALPHA))
    linear = data * slope
    return linear + (result - linear).detach()
