"""Normalization with MXNet's variances and updates of running statistics."""

from typing import Any

import numpy
import torch

from leafwise.gluon.arrays.random_stream import STREAM
from leafwise.gluon.base import MXNetError, refusal
from leafwise.gluon.dialect import is_v1
from leafwise.gluon.ops.legacy.gradients import with_zero_gradient
from leafwise.gluon.ops.neural_checks import axis_of, check_shape, floating, one_of


def batch_norm(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    moving_mean: torch.Tensor,
    moving_var: torch.Tensor,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    training: bool = False,
    updates_in_forward: bool = False,
) -> Any:
    """Normalizes each channel by the statistics of the batch in training, and by the running ones otherwise.

    As in MXNet, variances are biased, and the backward pass updates the running statistics, in place; with
    `updates_in_forward`, which layers use for plain tensors, the forward pass does. `fix_gamma` sets gamma to 1.
    """
    floating("BatchNorm", data)
    axis = axis_of("BatchNorm", axis, data.ndim)
    channels = data.shape[axis]
    for what, tensor in (("gamma", gamma), ("beta", beta), ("moving_mean", moving_mean), ("moving_var", moving_var)):
        check_shape("BatchNorm", what, tensor.shape, (channels,))
    if fix_gamma:
        with torch.no_grad():
            gamma.fill_(1)
        gamma = torch.ones_like(gamma)
    from_batch = training and not use_global_stats
    wide = data.to(torch.promote_types(data.dtype, gamma.dtype))  # half-precision data has parameters in float32
    others = [number for number in range(data.ndim) if number != axis]
    if from_batch:
        var, mean = torch.var_mean(wide, others, correction=0)
    else:
        mean, var = moving_mean.detach().to(wide.dtype), moving_var.detach().to(wide.dtype)
    shape = [-1 if number == axis else 1 for number in range(data.ndim)]
    scale = gamma * torch.rsqrt(var + eps)
    result = (wide - mean.reshape(shape)) * scale.reshape(shape) + beta.reshape(shape)
    result = result.to(data.dtype)
    if from_batch:
        update = _Update(moving_mean, moving_var, mean.detach(), var.detach(), momentum)
        if updates_in_forward:
            update()
        elif result.requires_grad:
            result.register_hook(lambda gradient: update())  # type: ignore[no-untyped-call]
    if not output_mean_var:
        return result
    return result, with_zero_gradient(mean, data), with_zero_gradient(torch.rsqrt(var + eps), data)


class _Update:
    """Moves running statistics towards those of a batch."""

    def __init__(
        self, mean: torch.Tensor, var: torch.Tensor, batch_mean: torch.Tensor, batch_var: torch.Tensor, momentum: float
    ) -> None:
        self._pairs = ((mean, batch_mean), (var, batch_var))
        self._momentum = momentum

    def __call__(self) -> None:
        with torch.no_grad():
            for running, batch in self._pairs:
                running.mul_(self._momentum).add_(batch, alpha=1 - self._momentum)


def layer_norm(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    axis: int = -1,
    eps: float = 1e-5,
    output_mean_var: bool = False,
) -> Any:
    """Normalizes along one axis."""
    floating("LayerNorm", data)
    axis = axis_of("LayerNorm", axis, data.ndim)
    check_shape("LayerNorm", "gamma", gamma.shape, (data.shape[axis],))
    check_shape("LayerNorm", "beta", beta.shape, (data.shape[axis],))
    if axis == data.ndim - 1 and not output_mean_var and gamma.dtype == data.dtype:
        return torch.nn.functional.layer_norm(data, (data.shape[-1],), gamma, beta, eps)
    var, mean = torch.var_mean(data, axis, correction=0, keepdim=True)
    shape = [-1 if number == axis else 1 for number in range(data.ndim)]
    deviation = torch.sqrt(var + eps)
    result = (data - mean) / deviation * gamma.reshape(shape) + beta.reshape(shape)
    return (result, with_zero_gradient(mean, data), with_zero_gradient(deviation, data)) if output_mean_var else result


def group_norm(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    num_groups: int = 1,
    eps: float = 1e-5,
    output_mean_var: bool = False,
) -> Any:
    """Normalizes groups of channels. In 1.x there is one gamma and beta for each group, in 2.x for each channel."""
    channels = data.shape[1]
    if channels % num_groups:
        raise MXNetError(f"GroupNorm: {channels} channels cannot be divided into {num_groups} groups")
    size = num_groups if is_v1() else channels
    check_shape("GroupNorm", "gamma", gamma.shape, (size,))
    check_shape("GroupNorm", "beta", beta.shape, (size,))
    if not is_v1() and not output_mean_var:
        return torch.nn.functional.group_norm(data, num_groups, gamma, beta, eps)
    grouped = floating("GroupNorm", data).reshape(data.shape[0], num_groups, -1)
    var, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    deviation = torch.sqrt(var + eps)
    normal = (grouped - mean) / deviation
    if is_v1():
        result = (normal * gamma[:, None] + beta[:, None]).reshape(data.shape)
    else:
        shape = (-1, *[1] * (data.ndim - 2))
        result = normal.reshape(data.shape) * gamma.reshape(shape) + beta.reshape(shape)
    statistics = (with_zero_gradient(mean.squeeze(2), data), with_zero_gradient(deviation.squeeze(2), data))
    return (result, *statistics) if output_mean_var else result


def instance_norm(data: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-3) -> torch.Tensor:
    """Normalizes each channel of each example."""
    check_shape("InstanceNorm", "gamma", gamma.shape, (data.shape[1],))
    check_shape("InstanceNorm", "beta", beta.shape, (data.shape[1],))
    flat = floating("InstanceNorm", data).reshape(*data.shape[:2], -1)
    var, mean = torch.var_mean(flat, 2, correction=0, keepdim=True)
    normal = (flat - mean) * torch.rsqrt(var + eps)
    return (normal * gamma[:, None] + beta[:, None]).reshape(data.shape)


def lrn(
    data: torch.Tensor, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0, nsize: int | None = None
) -> torch.Tensor:
    """Local response normalization across `nsize` neighbouring channels."""
    if nsize is None:
        raise MXNetError("LRN: Required parameter nsize of int is not presented; give it")
    if nsize % 2 == 0:
        raise MXNetError(f"LRN: nsize must be odd, not {nsize}")
    return torch.nn.functional.local_response_norm(data, nsize, alpha, beta, knorm)


def dropout(
    data: torch.Tensor, p: float = 0.5, mode: str = "training", axes: Any = (), training: bool = False
) -> torch.Tensor:
    """Zeroes elements with probability `p` and scales the others by 1 / (1 - p): in training, or with mode="always".
    Along `axes`, all elements share one decision."""
    one_of("Dropout", "mode", mode, ("training", "always"))
    if not 0 <= p <= 1:
        raise MXNetError(f"Dropout: p, the fraction that gets dropped, must be in [0, 1], not {p}")
    if (mode == "training" and not training) or p == 0:
        return data.clone()
    shared = [axis % data.ndim for axis in axes or ()]
    shape = tuple(1 if number in shared else size for number, size in enumerate(data.shape))
    return data * _dropout_mask(data, shape, p, shared=bool(shared))


def _dropout_mask(data: torch.Tensor, shape: tuple[int, ...], p: float, shared: bool) -> torch.Tensor:
    """On a CPU, the mask that MXNet draws. On a GPU and in compiled code, one of PyTorch's random numbers."""
    if data.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.nn.functional.dropout(torch.ones(shape, dtype=data.dtype, device=data.device), p, training=True)
    kinds = {torch.float16: numpy.float16, torch.float64: numpy.float64}
    mask = STREAM.dropout_mask(shape, p, kinds.get(data.dtype, numpy.float32), shared)
    return torch.from_numpy(mask).to(data.dtype)


def batch_norm_with_relu(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    moving_mean: torch.Tensor,
    moving_var: torch.Tensor,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    axis: int = 1,
    training: bool = False,
) -> torch.Tensor:
    """`batch_norm`, followed by relu."""
    return torch.relu(
        batch_norm(
            data,
            gamma,
            beta,
            moving_mean,
            moving_var,
            eps,
            momentum,
            fix_gamma,
            use_global_stats,
            axis=axis,
            training=training,
        )
    )


def sync_batch_norm(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    moving_mean: torch.Tensor,
    moving_var: torch.Tensor,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    ndev: int = 1,
    key: Any = None,
    training: bool = False,
) -> torch.Tensor:
    """`batch_norm` on one device."""
    if ndev != 1:
        raise refusal(f"SyncBatchNorm over {ndev} devices", "use ndev=1; there is one device")
    result: torch.Tensor = batch_norm(
        data, gamma, beta, moving_mean, moving_var, eps, momentum, fix_gamma, use_global_stats, training=training
    )
    return result
