"""Fully connected layers, convolutions and transposed convolutions, with the arguments of MXNet's operators."""

import math
from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.neural_checks import check_dtype, check_shape, spatial

_CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
_TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}
CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def _check_bias(name: str, bias: torch.Tensor | None, no_bias: bool) -> None:
    if (bias is None) != bool(no_bias):
        expected, got = ("2 inputs, but got 3", "no_bias=False") if no_bias else ("3 inputs, but got 2", "no_bias=True")
        raise MXNetError(f"Operator {name} expects {expected} instead; use {got}, or change the bias")


def fully_connected(
    data: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    num_hidden: int | None = None,
    no_bias: bool = False,
    flatten: bool = True,
) -> torch.Tensor:
    """`data · weightᵀ + bias`; with `flatten`, all axes of the data but the first are one."""
    if num_hidden is None:
        raise MXNetError("FullyConnected: required parameter num_hidden of int is not presented; give it")
    _check_bias("FullyConnected", bias, no_bias)
    width = math.prod(data.shape[1:]) if flatten else data.shape[-1]
    check_shape("FullyConnected", "a weight", weight.shape, (num_hidden, width))
    if bias is not None:
        check_shape("FullyConnected", "a bias", bias.shape, (num_hidden,))
    check_dtype("FullyConnected", data, weight, bias)
    return torch.nn.functional.linear(data.reshape(data.shape[0], width) if flatten else data, weight, bias)


def convolution(
    data: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kernel: Any = None,
    stride: Any = None,
    dilate: Any = None,
    pad: Any = None,
    num_filter: int = 1,
    num_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    cudnn_tune: Any = None,
    cudnn_off: bool = False,
    layout: str | None = None,
) -> torch.Tensor:
    """A convolution over one to three spatial dimensions. With channels last, the weight has its channels last, too."""
    sizes = _kernel("Convolution", kernel, data)
    dimensions = len(sizes)
    _check_bias("Convolution", bias, no_bias)
    last = channels_last("Convolution", layout, dimensions)
    data, weight = (_channels_to_second(tensor) if last else tensor for tensor in (data, weight))
    check_shape("Convolution", "a weight", weight.shape, (num_filter, data.shape[1] // num_group, *sizes))
    check_dtype("Convolution", data, weight, bias)
    result = _CONVOLUTIONS[dimensions](
        data,
        weight,
        bias,
        spatial(stride, dimensions, 1),
        spatial(pad, dimensions, 0),
        spatial(dilate, dimensions, 1),
        num_group,
    )
    return _channels_to_last(result) if last else result


def deconvolution(
    data: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kernel: Any = None,
    stride: Any = None,
    dilate: Any = None,
    pad: Any = None,
    adj: Any = None,
    target_shape: Any = None,
    num_filter: int = 1,
    num_group: int = 1,
    workspace: int = 512,
    no_bias: bool = True,
    cudnn_tune: Any = None,
    cudnn_off: bool = False,
    layout: str | None = None,
) -> torch.Tensor:
    """A transposed convolution. `target_shape`, the spatial size of the result, replaces `pad` and `adj`."""
    sizes = _kernel("Deconvolution", kernel, data)
    dimensions = len(sizes)
    _check_bias("Deconvolution", bias, no_bias)
    last = channels_last("Deconvolution", layout, dimensions)
    data, weight = (_channels_to_second(tensor) if last else tensor for tensor in (data, weight))
    check_shape("Deconvolution", "a weight", weight.shape, (data.shape[1], num_filter // num_group, *sizes))
    check_dtype("Deconvolution", data, weight, bias)
    steps, gaps = spatial(stride, dimensions, 1), spatial(dilate, dimensions, 1)
    pads, extra = spatial(pad, dimensions, 0), spatial(adj, dimensions, 0)
    if target_shape is not None and any(spatial(target_shape, dimensions, 0)):
        full = [
            step * (size - 1) + gap * (width - 1) + 1
            for step, size, gap, width in zip(steps, data.shape[2:], gaps, sizes, strict=True)
        ]
        over = [size - target for size, target in zip(full, spatial(target_shape, dimensions, 0), strict=True)]
        if min(over) < 0:
            raise MXNetError(f"Deconvolution: too big target shape {tuple(target_shape)}; at most {tuple(full)}")
        pads, extra = tuple((size + 1) // 2 for size in over), tuple(size % 2 for size in over)
    if any(more >= step for more, step in zip(extra, steps, strict=True) if more):
        raise MXNetError(f"Deconvolution: adj {extra} must be smaller than the stride {steps}")
    result = _TRANSPOSED[dimensions](data, weight, bias, steps, pads, extra, num_group, gaps)
    return _channels_to_last(result) if last else result


def _kernel(name: str, kernel: Any, data: torch.Tensor) -> tuple[int, ...]:
    if kernel is None:
        raise MXNetError(f"{name}: Required parameter kernel of Shape(tuple) is not presented; give it")
    sizes = (kernel,) * (data.ndim - 2) if isinstance(kernel, int) else tuple(int(size) for size in kernel)
    if len(sizes) not in _CONVOLUTIONS or data.ndim != len(sizes) + 2:
        raise MXNetError(
            f"{name}: a kernel of {len(sizes)} dimensions needs data of {len(sizes) + 2} dimensions, not of shape "
            f"{tuple(data.shape)}"
        )
    return sizes


def channels_last(name: str, layout: str | None, dimensions: int) -> bool:
    """Whether a layout has its channels last; layouts that MXNet does not have are refused."""
    if layout in (None, "None", CHANNELS_FIRST[dimensions]):
        return False
    if layout == CHANNELS_LAST[dimensions]:
        return True
    layouts = f"{CHANNELS_FIRST[dimensions]} or {CHANNELS_LAST[dimensions]}"
    raise refusal(f"{name} with layout {layout!r}", f"use {layouts}")


def _channels_to_second(data: torch.Tensor) -> torch.Tensor:
    return data.movedim(-1, 1)


def _channels_to_last(data: torch.Tensor) -> torch.Tensor:
    return data.movedim(1, -1).contiguous()
