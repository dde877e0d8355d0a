"""Normalization with MXNet's variances and updates of running statistics."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.legacy.gradients import with_zero_gradient
from leafwise_gluon.ops.neural_checks import axis_of, check_dtype, check_shape, floating, one_of

_NUMPY_FLOATS = {torch.float16: numpy.float16, torch.float32: numpy.float32, torch.float64: numpy.float64}


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

    As in MXNet, variances are biased, and the backward pass updates the running statistics, in place. After a forward
    pass in predict mode, backward(), which is in training mode by default, takes the running statistics for those of
    the batch. With `updates_in_forward`, which layers use for plain tensors, the forward pass updates, and gradients
    are PyTorch's. `fix_gamma` sets gamma to 1.
    """
    floating("BatchNorm", data)
    axis = axis_of("BatchNorm", axis, data.ndim)
    channels = data.shape[axis]
    for what, tensor in (("gamma", gamma), ("beta", beta), ("moving_mean", moving_mean), ("moving_var", moving_var)):
        check_shape("BatchNorm", what, tensor.shape, (channels,))
    if data.dtype not in (torch.float16, torch.bfloat16):  # they have parameters in float32
        check_dtype("BatchNorm", data, gamma, beta)
    if fix_gamma:
        with torch.no_grad():
            gamma.fill_(1)
        gamma = torch.ones_like(gamma)
    from_batch = training and not use_global_stats
    wide = data.to(gamma.dtype).movedim(axis, 1)
    if from_batch:
        others = [number for number in range(data.ndim) if number != 1]
        var, mean = torch.var_mean(wide.detach(), others, correction=0)
        result = torch.batch_norm(wide, gamma, beta, None, None, True, 0.0, eps, torch.backends.cudnn.enabled)
    else:
        mean, var = moving_mean.detach().to(wide.dtype), moving_var.detach().to(wide.dtype)
        shape = (-1, *[1] * (data.ndim - 2))
        scale = torch.rsqrt(var + eps)
        if not use_global_stats and not updates_in_forward:
            wide = _AsFromBatch.apply(wide, mean.reshape(shape), scale.reshape(shape))  # type: ignore[no-untyped-call]
        result = (wide - mean.reshape(shape)) * (gamma * scale).reshape(shape) + beta.reshape(shape)
    result = result.movedim(1, axis).contiguous().to(data.dtype)
    if from_batch:
        update = _Update(moving_mean, moving_var, mean, var, momentum)
        if updates_in_forward:
            update()
        elif result.requires_grad:
            result.register_hook(update.in_backward)  # type: ignore[no-untyped-call]
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

    def in_backward(self, gradient: torch.Tensor) -> None:
        if not STATE.backward_trains:
            raise refusal(
                "BatchNorm in training mode with backward(train_mode=False), which takes the running statistics for "
                "those of the batch",
                "use backward(), or record(train_mode=False)",
            )
        self()


class _AsFromBatch(torch.autograd.Function):
    """The data that running statistics are about to normalize. A backward pass in training mode corrects its gradient
    as if the statistics had been computed from it."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(data, mean, scale)
        return data.view_as(data)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = grads
        if not STATE.backward_trains:
            return gradient, None, None
        data, mean, scale = ctx.saved_tensors
        normal = (data - mean) * scale
        others = [number for number in range(data.ndim) if number != 1]
        average = gradient.mean(others, keepdim=True)
        slope = (gradient * normal).mean(others, keepdim=True)
        return gradient - average - normal * slope, None, None


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
    check_dtype("LayerNorm", data, gamma, beta)
    if axis == data.ndim - 1 and not output_mean_var:
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
    check_dtype("GroupNorm", floating("GroupNorm", data), gamma, beta)
    if not is_v1() and not output_mean_var:
        return torch.nn.functional.group_norm(data, num_groups, gamma, beta, eps)
    grouped = data.reshape(data.shape[0], num_groups, -1)
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
    check_dtype("InstanceNorm", floating("InstanceNorm", data), gamma, beta)
    flat = data.reshape(*data.shape[:2], -1)
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
    data: torch.Tensor,
    p: float = 0.5,
    mode: str = "training",
    axes: Any = (),
    training: bool = False,
    from_torch: bool = False,
) -> torch.Tensor:
    """Zeroes elements with probability `p` and scales the others by 1 / (1 - p): in training, or with mode="always".
    Along `axes`, all elements share one decision.

    On a CPU, the decisions are those of MXNet for the same seed; with `from_torch`, which layers use for plain tensors,
    and on a GPU, they come from PyTorch's generator.
    """
    floating("Dropout", data)
    one_of("Dropout", "mode", mode, ("training", "always"))
    if not 0 <= p <= 1:
        raise MXNetError(f"Dropout: p, the fraction that gets dropped, must be in [0, 1], not {p}")
    if (mode == "training" and not training) or p == 0:
        return data.clone()
    if from_torch and not axes:
        return torch.nn.functional.dropout(data, p, training=True)
    if p == 1:
        raise refusal("Dropout with p=1, which gives nan in MXNet", "use zeros_like(x)")
    shared = [axis % data.ndim for axis in axes or ()]
    shape = tuple(1 if axis in shared else size for axis, size in enumerate(data.shape))
    if from_torch or data.device.type != "cpu" or data.dtype not in _NUMPY_FLOATS:
        return data * torch.nn.functional.dropout(data.new_ones(shape), p, training=True)
    mask = STREAM.dropout_mask(shape, p, _NUMPY_FLOATS[data.dtype], shared=bool(shared))
    return data * torch.from_numpy(mask)


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
