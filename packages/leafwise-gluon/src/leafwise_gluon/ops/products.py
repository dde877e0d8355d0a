"""Products of arrays and linear algebra, over plain tensors."""

from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.arithmetic import check_product
from leafwise_gluon.ops.arithmetic import dot as product


def inner(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    check_product("inner", left, right)
    if not (left.ndim and right.ndim):
        return left * right
    return _tensordot("inner", left, right, ([-1], [-1]))


def outer(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    check_product("outer", left, right)
    return torch.outer(left.reshape(-1), right.reshape(-1))


def vdot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    check_product("vdot", left, right)
    return product(left.reshape(-1), right.reshape(-1))


def tensordot(left: torch.Tensor, right: torch.Tensor, axes: Any) -> torch.Tensor:
    check_product("tensordot", left, right)
    if isinstance(axes, int):
        dims = (list(range(left.ndim - axes, left.ndim)), list(range(axes)))
    else:
        if len(axes) != 2:
            raise ValueError("Axes must consist of two arrays.")
        dims = tuple([side] if isinstance(side, int) else list(side) for side in axes)  # type: ignore[assignment]
    return _tensordot("tensordot", left, right, dims)


def _tensordot(name: str, left: torch.Tensor, right: torch.Tensor, dims: Any) -> torch.Tensor:
    try:
        return torch.tensordot(left, right, dims=dims)  # type: ignore[no-any-return]
    except (RuntimeError, IndexError) as error:
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise MXNetError(f"np.{name}: the shapes {shapes} do not fit along the axes {dims}") from error


def einsum(subscripts: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise MXNetError("np.einsum needs arrays of the same dtype; use .astype()")
    try:
        return torch.einsum(subscripts, *tensors).clone()
    except RuntimeError as error:
        raise MXNetError(f"np.einsum: {error}") from error


def kron(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    check_product("kron", left, right)
    return torch.kron(left, right)


def cross(left: torch.Tensor, right: torch.Tensor, axes: tuple[int, int, int]) -> torch.Tensor:
    """The cross product of vectors of 2 or 3 elements; of two vectors of 2 elements, a number."""
    if left.dtype != right.dtype:
        raise MXNetError("np.cross needs arrays of the same dtype; use .astype()")
    left, right = (side.movedim(axis, -1) for side, axis in zip((left, right), axes[:2], strict=True))
    widths = (left.shape[-1], right.shape[-1])
    if any(width not in (2, 3) for width in widths):
        raise MXNetError(f"np.cross needs vectors of 2 or 3 elements, not {widths[0]} and {widths[1]}")
    if widths == (2, 2):
        return left[..., 0] * right[..., 1] - left[..., 1] * right[..., 0]
    left, right = (torch.nn.functional.pad(side, (0, 3 - side.shape[-1])) for side in (left, right))
    if left.ndim != right.ndim:
        left, right = torch.broadcast_tensors(left, right)  # type: ignore[no-untyped-call]
    computed: torch.Tensor = torch.linalg.cross(left, right)
    return computed.movedim(-1, axes[2]).clone()


def floating(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; an error if it has no dtype that linear algebra is defined for."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise MXNetError(f"np.linalg.{name} needs float32 or float64, not {dtype_name(tensor.dtype)}; use .astype()")
    return tensor


def square(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise MXNetError(f"np.linalg.{name} needs square matrices, not an array of shape {tuple(tensor.shape)}")
    return floating(name, tensor)


def without_gradient(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; an error if a gradient is needed that MXNet does not have."""
    if tensor.requires_grad:
        raise refusal(f"the gradient of np.linalg.{name}", "use x.detach() if you need no gradient")
    return tensor
