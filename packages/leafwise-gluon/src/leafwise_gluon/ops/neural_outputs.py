"""Output layers of MXNet whose gradient is that of a loss, whatever gradient reaches them."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.neural_checks import one_of

_NORMALIZATIONS = ("null", "batch", "valid")


class _OwnGradient(torch.autograd.Function):
    """`value`, with a given gradient with respect to `data`; the gradient of the value is ignored."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *ctx.saved_tensors, None, None


def _with_gradient(data: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return _OwnGradient.apply(data, value, gradient)  # type: ignore[no-any-return, no-untyped-call]


def softmax_output(
    data: torch.Tensor,
    label: torch.Tensor,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: str = "null",
    out_grad: bool = False,
    smooth_alpha: float = 0.0,
) -> torch.Tensor:
    """softmax, whose gradient is that of the cross-entropy with `label`."""
    one_of("SoftmaxOutput", "normalization", normalization, _NORMALIZATIONS)
    if out_grad:
        raise refusal("SoftmaxOutput with out_grad=True", "use softmax and a loss of your own")
    with torch.no_grad():
        if multi_output:
            axis, shape = 1, data.shape
        elif preserve_shape:
            axis, shape = data.ndim - 1, data.shape
        else:
            axis, shape = 1, torch.Size((data.shape[0], data[0].numel()))
        scores = data.detach().reshape(shape)
        result = torch.softmax(scores, axis)
        if tuple(label.shape) == tuple(data.shape) and data.shape[axis] != 1:
            gradient, kept = result - label.detach().reshape(shape), None
        else:
            gradient, kept = _cross_entropy_gradient(
                result, label.detach(), axis, smooth_alpha, use_ignore, ignore_label
            )
        gradient = gradient * grad_scale
        if normalization == "batch":
            gradient = gradient / data.shape[0]
        elif normalization == "valid":
            count = label.numel() if kept is None else int(kept.sum())
            gradient = gradient / max(count, 1)
        if multi_output and normalization == "null":
            gradient = gradient / max(result[0, 0].numel(), 1) if result.ndim > 2 else gradient
    return _with_gradient(data, result.reshape(data.shape), gradient.reshape(data.shape))


def _cross_entropy_gradient(
    result: torch.Tensor, label: torch.Tensor, axis: int, smooth: float, use_ignore: bool, ignored: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    classes = result.shape[axis]
    shape = [size for number, size in enumerate(result.shape) if number != axis]
    if label.numel() != result.numel() // classes:
        raise MXNetError(
            f"SoftmaxOutput: a label of shape {tuple(label.shape)} does not fit data with {classes} classes of shape "
            f"{tuple(result.shape)}"
        )
    numbers = label.reshape(shape).to(torch.int64)
    kept = (numbers != int(ignored)) if use_ignore else None
    chosen = numbers.clamp(0, classes - 1).unsqueeze(axis)
    target = torch.full_like(result, smooth / (classes - 1) if smooth else 0.0)
    target.scatter_(axis, chosen, 1 - smooth)
    gradient = result - target
    return (gradient if kept is None else gradient * kept.unsqueeze(axis)), kept


def linear_regression_output(data: torch.Tensor, label: torch.Tensor, grad_scale: float = 1.0) -> torch.Tensor:
    """The data; its gradient is that of half the squared error."""
    return _regression(data, data.detach(), data.detach() - _fitted(label, data), grad_scale)


def logistic_regression_output(data: torch.Tensor, label: torch.Tensor, grad_scale: float = 1.0) -> torch.Tensor:
    """sigmoid; its gradient is that of the binary cross-entropy."""
    value = torch.sigmoid(data.detach())
    return _regression(data, value, value - _fitted(label, data), grad_scale)


def mae_regression_output(data: torch.Tensor, label: torch.Tensor, grad_scale: float = 1.0) -> torch.Tensor:
    """The data; its gradient is that of the absolute error."""
    return _regression(data, data.detach(), torch.sign(data.detach() - _fitted(label, data)), grad_scale)


def _fitted(label: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    if label.numel() != data.numel():
        raise MXNetError(f"the label of shape {tuple(label.shape)} does not fit the data of shape {tuple(data.shape)}")
    return label.detach().reshape(data.shape)


def _regression(data: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor, scale: float) -> torch.Tensor:
    outputs = max(data[0].numel(), 1) if data.ndim else 1
    return _with_gradient(data, value, gradient * (scale / outputs))


def svm_output(
    data: torch.Tensor,
    label: torch.Tensor,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
) -> torch.Tensor:
    """The data; its gradient is that of a support vector machine's hinge loss."""
    values = data.detach()
    is_label = torch.nn.functional.one_hot(label.detach().to(torch.int64), data.shape[1]).to(torch.bool)
    if use_linear:
        right = -(values < margin).to(data.dtype) * regularization_coefficient
        wrong = (values > -margin).to(data.dtype) * regularization_coefficient
    else:
        right = -2 * regularization_coefficient * (margin - values).clamp(min=0)
        wrong = 2 * regularization_coefficient * (margin + values).clamp(min=0)
    return _with_gradient(data, values, torch.where(is_label, right, wrong))
