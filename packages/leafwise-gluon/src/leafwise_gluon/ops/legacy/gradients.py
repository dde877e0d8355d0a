"""Gradients that PyTorch computes differently."""

from typing import Any

import torch


class _WithZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.sources = [(source.shape, source.dtype, source.device) for source in sources]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.sources)


def with_zero_gradient(value: torch.Tensor, *sources: Any) -> torch.Tensor:
    """A value that is in the graph of its sources and whose gradient with respect to them is zero, as for a comparison.

    PyTorch leaves such a value out of the graph, so that a backward from it would fail.
    """
    tensors = [source for source in sources if isinstance(source, torch.Tensor) and source.requires_grad]
    if not tensors:
        return value
    return _WithZeroGradient.apply(value.detach(), *tensors)  # type: ignore[no-any-return, no-untyped-call]


class _LossGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.full_like(grads[0], ctx.scale), None


def with_loss_gradient(value: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """A copy whose gradient is a constant, whatever gradient arrives from above."""
    return _LossGradient.apply(value, scale)  # type: ignore[no-any-return, no-untyped-call]


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.scale, None


def with_scaled_gradient(value: torch.Tensor, scale: float) -> torch.Tensor:
    return _ScaledGradient.apply(value, scale)  # type: ignore[no-any-return, no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        result = data
        for axis in axes:
            result = torch.prod(result, axis, keepdim=True, dtype=data.dtype)
        ctx.save_for_backward(data, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        data, result = ctx.saved_tensors
        return grads[0] * (result / data), None


def product(data: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The product over some axes, which are kept. As in MXNet, the gradient at 0 is NaN."""
    return _Product.apply(data, axes)  # type: ignore[no-any-return, no-untyped-call]


def straight_through(source: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value whose gradient passes to its source unchanged."""
    return _StraightThrough.apply(source, value.detach())  # type: ignore[no-any-return, no-untyped-call]
