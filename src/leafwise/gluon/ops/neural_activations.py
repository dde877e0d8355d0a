"""Activation functions, and elementwise functions of MXNet that NumPy does not have."""

import math
from collections.abc import Callable
from typing import Any

import torch

from leafwise.gluon.arrays.autograd_state import STATE
from leafwise.gluon.base import MXNetError, refusal
from leafwise.gluon.dialect import is_v1
from leafwise.gluon.ops.neural_checks import floating, one_of

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
    """leaky, prelu (with the slopes `gamma`), elu, selu or gelu; rrelu is leaky with the mean slope, except in
    training."""
    one_of("LeakyReLU", "act_type", act_type, ("leaky", "prelu", "elu", "selu", "gelu", "rrelu"))
    functional = torch.nn.functional
    floating("LeakyReLU", data)
    if act_type == "leaky":
        return functional.leaky_relu(data, slope)
    if act_type == "elu":
        return torch.where(data > 0, data, slope * torch.expm1(data.clamp(max=0)))
    if act_type == "selu":
        return _selu(data)
    if act_type == "gelu":
        return functional.gelu(data)
    if act_type == "rrelu":
        if STATE.training:
            raise refusal("LeakyReLU with act_type 'rrelu' in training", "use 'leaky' or 'prelu'")
        return functional.leaky_relu(data, (lower_bound + upper_bound) / 2)
    if gamma is None:
        raise MXNetError("LeakyReLU with act_type 'prelu' needs gamma, the slopes")
    if gamma.ndim == 1 and gamma.shape[0] > 1 and data.ndim > 1:
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


def relu(data: torch.Tensor) -> torch.Tensor:
    return torch.relu(data)


def sigmoid(data: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(floating("sigmoid", data))


def softsign(data: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softsign(floating("softsign", data))


def log_sigmoid(data: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.logsigmoid(floating("log_sigmoid", data))


def mish(data: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mish(floating("mish", data))


def hard_sigmoid(data: torch.Tensor, alpha: float = 0.2, beta: float = 0.5) -> torch.Tensor:
    return torch.clamp(alpha * floating("hard_sigmoid", data) + beta, 0, 1)


def smooth_l1(data: torch.Tensor, scalar: float = 1.0) -> torch.Tensor:
    """Quadratic near zero and linear beyond 1/scalar²."""
    square = scalar * scalar
    size = floating("smooth_l1", data).abs()
    return torch.where(size < 1 / square, 0.5 * square * data * data, size - 0.5 / square)


def erf(data: torch.Tensor) -> torch.Tensor:
    return torch.erf(floating("erf", data))


def erfinv(data: torch.Tensor) -> torch.Tensor:
    return torch.erfinv(floating("erfinv", data))


def gamma(data: torch.Tensor) -> torch.Tensor:
    """The gamma function."""
    value = floating("gamma", data)
    if bool((value <= 0).any()):
        return _reflected_gamma(value)
    return torch.exp(torch.lgamma(value))


def _reflected_gamma(value: torch.Tensor) -> torch.Tensor:
    """Γ(x) for any x; for x < 1/2 from Γ(x)·Γ(1-x) = π / sin(πx)."""
    negative = value < 0.5
    mirrored = torch.where(negative, 1 - value, value)
    size = torch.exp(torch.lgamma(mirrored))
    return torch.where(negative, math.pi / (torch.sin(math.pi * value) * size), size)


def gammaln(data: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(floating("gammaln", data))


def digamma(data: torch.Tensor) -> torch.Tensor:
    return torch.digamma(floating("digamma", data))


class _StraightThrough(torch.autograd.Function):
    """A value whose gradient is passed on to its source unchanged."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def round_ste(data: torch.Tensor) -> torch.Tensor:
    """Rounds halves away from zero; the gradient is that of the identity."""
    value = torch.sign(data) * torch.floor(data.abs() + 0.5)
    return _StraightThrough.apply(data, value.detach())  # type: ignore[no-any-return, no-untyped-call]


def sign_ste(data: torch.Tensor) -> torch.Tensor:
    """The sign; the gradient is that of the identity."""
    return _StraightThrough.apply(data, torch.sign(data).detach())  # type: ignore[no-any-return, no-untyped-call]


def stop_gradient(data: torch.Tensor) -> torch.Tensor:
    """A copy through which no gradient flows."""
    return data.detach().clone()
