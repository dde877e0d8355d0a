"""The operations of `nd.contrib` that Gluon code uses."""

import math
from typing import Any

import torch

from leafwise_gluon.base import MXNetError
from leafwise_gluon.ops.legacy.gradients import with_scaled_gradient, with_zero_gradient


def arange_like(
    data: torch.Tensor, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: int | None = None
) -> torch.Tensor:
    """Numbers in the shape of an array, or as many as one of its axes is long."""
    count = data.numel() if axis is None else data.shape[axis]
    numbers = torch.arange(math.ceil(count / repeat), dtype=torch.float64).repeat_interleave(repeat)[:count]
    result = (start + step * numbers).to(device=data.device, dtype=data.dtype)
    return with_zero_gradient(result.reshape(data.shape) if axis is None else result, data)


def div_sqrt_dim(data: torch.Tensor) -> torch.Tensor:
    """Divides by the root of the size of the last axis."""
    return data / math.sqrt(data.shape[-1])


def quadratic(data: torch.Tensor, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> torch.Tensor:
    return a * data * data + b * data + c


def gradientmultiplier(data: torch.Tensor, scalar: float = 0.0) -> torch.Tensor:
    """A copy whose gradient is multiplied by a number."""
    return with_scaled_gradient(data, scalar)


def boolean_mask(data: torch.Tensor, index: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """The rows for which the mask is not zero."""
    if axis != 0:
        raise MXNetError("nd.contrib.boolean_mask works along axis 0 only")
    return data[index != 0]


def index_copy(old_tensor: torch.Tensor, index_vector: torch.Tensor, new_tensor: torch.Tensor) -> torch.Tensor:
    """A copy with some rows replaced."""
    return old_tensor.index_copy(0, index_vector.long(), new_tensor)


def index_array(data: torch.Tensor, axes: Any = None) -> torch.Tensor:
    """The position of each element, along a new last axis, as int64."""
    grids = torch.meshgrid(*(torch.arange(size) for size in data.shape), indexing="ij")
    return torch.stack([grids[axis] for axis in (range(data.ndim) if axes is None else axes)], -1)


def isnan(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.isnan(data).to(data.dtype), data)


def isinf(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.isinf(data).to(data.dtype), data)


def isfinite(data: torch.Tensor) -> torch.Tensor:
    return with_zero_gradient(torch.isfinite(data).to(data.dtype), data)


def allclose(
    a: torch.Tensor, b: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = True
) -> torch.Tensor:
    """1 if all elements are close to each other, and 0 otherwise, as an array of uint8 and shape ()."""
    return torch.tensor(int(torch.allclose(a, b, rtol, atol, equal_nan)), dtype=torch.uint8)


def box_iou(lhs: torch.Tensor, rhs: torch.Tensor, format: str = "corner") -> torch.Tensor:
    """The area of the intersection of each pair of boxes, divided by that of their union."""
    if format not in ("corner", "center"):
        raise MXNetError(f"nd.contrib.box_iou: format must be 'corner' or 'center', not {format!r}")
    boxes = [side if format == "corner" else _corners(side) for side in (lhs.detach(), rhs.detach())]
    first = boxes[0].reshape(-1, 1, 4)
    second = boxes[1].reshape(1, -1, 4)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (first, second)]
    return (shared / (areas[0] + areas[1] - shared)).reshape(*lhs.shape[:-1], *rhs.shape[:-1])


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)
