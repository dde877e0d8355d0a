"""softmax and its relatives, with MXNet's lengths, masks and temperatures."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.neural_checks import axis_of, floating, one_of


def softmax(
    data: torch.Tensor,
    length: torch.Tensor | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: bool = False,
) -> torch.Tensor:
    """exp(data / temperature), divided by its sum; with `use_length`, only over the first `length` elements, and 0
    after them."""
    scores = _scores("softmax", data, temperature, dtype)
    axis = axis_of("softmax", axis, max(data.ndim, 1))
    if (length is not None) != use_length:
        raise MXNetError("softmax needs length if use_length=True, and takes none otherwise")
    if length is None:
        return torch.softmax(scores, axis)
    return _over(_within(length, data, axis), scores, axis)


def log_softmax(
    data: torch.Tensor,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: bool = False,
) -> torch.Tensor:
    """The logarithm of softmax. MXNet has no lengths here."""
    if use_length:
        raise MXNetError("log_softmax does not support use_length; use softmax, or mask the loss")
    scores = _scores("log_softmax", data, temperature, dtype)
    return torch.log_softmax(scores, axis_of("log_softmax", axis, max(data.ndim, 1)))


def softmin(
    data: torch.Tensor,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: bool = False,
) -> torch.Tensor:
    if use_length:
        raise MXNetError("softmin does not support use_length; use softmax of -data")
    return softmax(-data, None, axis, temperature, dtype)


def softmax_activation(data: torch.Tensor, mode: str = "instance") -> torch.Tensor:
    """softmax over the last axis, or with mode="channel" over the second axis."""
    one_of("SoftmaxActivation", "mode", mode, ("instance", "channel"))
    if mode == "channel":
        return torch.softmax(data, 1)
    if data.ndim > 2:
        raise refusal("SoftmaxActivation of more than two dimensions", "use softmax(axis=...)")
    return torch.softmax(data, -1)


def masked_softmax(
    data: torch.Tensor, mask: torch.Tensor, axis: int = -1, temperature: float = 1.0, normalize: bool = True
) -> torch.Tensor:
    """softmax over the elements where the mask is true, and 0 elsewhere."""
    return _masked("masked_softmax", _over, data, mask, axis, temperature)


def masked_log_softmax(
    data: torch.Tensor, mask: torch.Tensor, axis: int = -1, temperature: float = 1.0, normalize: bool = True
) -> torch.Tensor:
    """The logarithm of `masked_softmax`: -inf where the mask is false."""
    return _masked("masked_log_softmax", _log_over, data, mask, axis, temperature)


def _masked(
    name: str,
    over: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    data: torch.Tensor,
    mask: torch.Tensor,
    axis: int,
    temperature: float | None,
) -> torch.Tensor:
    scores = _scores(name, data, temperature, None)
    return over(mask.to(torch.bool).broadcast_to(data.shape), scores, axis_of(name, axis, data.ndim))


def _scores(name: str, data: torch.Tensor, temperature: float | None, dtype: Any) -> torch.Tensor:
    scores = floating(name, data) if temperature in (None, 1.0) else floating(name, data) / temperature
    return scores if dtype is None else scores.to(torch_dtype(dtype))


def _within(length: torch.Tensor, data: torch.Tensor, axis: int) -> torch.Tensor:
    """Where the position along the axis is below the length; lengths have the shape of the data without that axis."""
    positions = torch.arange(data.shape[axis], device=data.device)
    positions = positions.reshape([-1 if number == axis else 1 for number in range(data.ndim)])
    return positions < length.unsqueeze(axis)


def _over(mask: torch.Tensor, scores: torch.Tensor, axis: int) -> torch.Tensor:
    # Rows without any element are zeros; their scores are left finite, so that their gradients are zeros, too.
    empty = ~mask.any(axis, keepdim=True)
    hidden = scores.masked_fill(~(mask | empty), -torch.inf)
    return torch.softmax(hidden, axis).masked_fill(~mask, 0)


def _log_over(mask: torch.Tensor, scores: torch.Tensor, axis: int) -> torch.Tensor:
    empty = ~mask.any(axis, keepdim=True)
    hidden = scores.masked_fill(~(mask | empty), -torch.inf)
    return torch.log_softmax(hidden, axis).masked_fill(~mask, -torch.inf)
