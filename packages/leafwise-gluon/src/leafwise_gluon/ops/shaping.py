"""Changes of shape, over plain tensors. As in MXNet, each result is a copy: writing to it changes no other array."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.neural_checks import axis_of
from leafwise_gluon.ops.neural_reshape import reshaped as reshaped_by_codes


def _check_order(name: str, order: Any) -> None:
    if order != "C":
        raise NotImplementedError(f"the Gluon front end does not support {name} with order {order!r}; use order 'C'")


def viewed(name: str, tensor: torch.Tensor, shape: Any, order: Any = "C") -> torch.Tensor:
    """The same elements in another shape; a view if the strides of the tensor allow it."""
    _check_order(name, order)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
        raise MXNetError(f"{name}: a shape must consist of integers, not {sizes}")
    if any(size < -1 for size in sizes):
        sizes = tuple(reshaped_by_codes(tensor, sizes).shape)
    try:
        return tensor.reshape(sizes)
    except RuntimeError as error:
        raise MXNetError(f"{name}: cannot reshape an array of shape {tuple(tensor.shape)} to {sizes}") from error


def reshaped(name: str, tensor: torch.Tensor, shape: Any, order: Any = "C") -> torch.Tensor:
    return owned(viewed(name, tensor, shape, order))


def owned(result: torch.Tensor) -> torch.Tensor:
    """A copy in row-major order; gradients pass through it."""
    return result.clone(memory_format=torch.contiguous_format)


def transposed(tensor: torch.Tensor, axes: Any = None) -> torch.Tensor:
    if axes is None:
        order = tuple(reversed(range(tensor.ndim)))
    else:
        order = tuple(axis_of("ndarray.transpose", axis, tensor.ndim) for axis in axes)
        if sorted(order) != list(range(tensor.ndim)):
            raise MXNetError(
                f"ndarray.transpose: axes must name each axis of shape {tuple(tensor.shape)} once, not {tuple(axes)}"
            )
    return owned(tensor.permute(order))


def swapped(tensor: torch.Tensor, axis1: int, axis2: int) -> torch.Tensor:
    first, second = (axis_of("ndarray.swapaxes", axis, tensor.ndim) for axis in (axis1, axis2))
    return owned(tensor.transpose(first, second))


def squeezed(tensor: torch.Tensor, axis: Any = None) -> torch.Tensor:
    if axis is None:
        return owned(tensor.squeeze())
    requested = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(axis_of("ndarray.squeeze", number, tensor.ndim) for number in requested)
    for number in axes:
        if tensor.shape[number] != 1:
            raise MXNetError(f"ndarray.squeeze: axis {number} of shape {tuple(tensor.shape)} does not have size 1")
    return owned(tensor.squeeze(axes))


def moved(tensor: torch.Tensor, source: Any, destination: Any) -> torch.Tensor:
    starts, ends = ((places,) if isinstance(places, int) else tuple(places) for places in (source, destination))
    if len(starts) != len(ends):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    starts, ends = (tuple(axis_of("np.moveaxis", axis, tensor.ndim) for axis in places) for places in (starts, ends))
    return owned(torch.movedim(tensor, starts, ends))


def rolled_axis(tensor: torch.Tensor, axis: int, start: int) -> torch.Tensor:
    axis = axis_of("np.rollaxis", axis, tensor.ndim)
    if not -tensor.ndim <= start <= tensor.ndim:
        raise MXNetError(f"np.rollaxis: start {start} is out of bounds for array of dimension {tensor.ndim}")
    start = start + tensor.ndim if start < 0 else start
    return owned(torch.movedim(tensor, axis, start - 1 if axis < start else start))


def flipped(name: str, tensor: torch.Tensor, axis: Any) -> torch.Tensor:
    axes = range(tensor.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return torch.flip(tensor, [axis_of(f"np.{name}", number, tensor.ndim) for number in axes])


def triangle(name: str, tensor: torch.Tensor, diagonal: int) -> torch.Tensor:
    """`tril` and `triu`; a vector counts as each row of a square matrix."""
    if tensor.ndim == 0:
        raise MXNetError(f"np.{name} needs an array of at least 1 dimension")
    matrix = tensor.expand(tensor.shape[0], -1) if tensor.ndim == 1 else tensor
    return (torch.tril if name == "tril" else torch.triu)(matrix, diagonal)


def expanded(tensor: torch.Tensor, axis: Any) -> torch.Tensor:
    return owned(tensor.unsqueeze(axis_of("np.expand_dims", axis, tensor.ndim + 1)))


def broadcast(tensor: torch.Tensor, shape: Any) -> torch.Tensor:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        return owned(tensor.broadcast_to(sizes))
    except RuntimeError as error:
        raise MXNetError(f"ndarray.broadcast_to: cannot broadcast shape {tuple(tensor.shape)} to {sizes}") from error


def repeated(tensor: torch.Tensor, repeats: Any, axis: Any = None) -> torch.Tensor:
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    axis = axis_of("ndarray.repeat", axis, tensor.ndim)
    if tensor.requires_grad and not (is_v1() and isinstance(repeats, int)):
        raise refusal(
            "the gradient of ndarray.repeat, which is zeros in MXNet",
            "use np.stack, or x.detach() if you need no gradient",
        )
    counts = torch.tensor(repeats, device=tensor.device) if isinstance(repeats, list | tuple) else repeats
    return torch.repeat_interleave(tensor, counts, axis)


def tiled(tensor: torch.Tensor, reps: Any) -> torch.Tensor:
    return torch.tile(tensor, (reps,) if isinstance(reps, int) else tuple(reps))


def diagonal(tensor: torch.Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> torch.Tensor:
    if tensor.ndim < 2:
        raise MXNetError(f"ndarray.diagonal needs an array of at least 2 dimensions, not {tensor.ndim}")
    return owned(torch.diagonal(tensor, offset, axis1, axis2))
