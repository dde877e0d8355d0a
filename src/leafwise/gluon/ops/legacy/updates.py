"""The steps of optimisers as operations. They change the state that they get, and return the new weight."""

import torch


def _scaled(grad: torch.Tensor, rescale_grad: float, clip_gradient: float) -> torch.Tensor:
    scaled = grad.detach() * rescale_grad
    return scaled.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else scaled


def sgd_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    lr: float,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    lazy_update: bool = True,
) -> torch.Tensor:
    return (1 - lr * wd) * weight.detach() - lr * _scaled(grad, rescale_grad, clip_gradient)


def sgd_mom_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    mom: torch.Tensor,
    lr: float,
    momentum: float = 0.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    lazy_update: bool = True,
) -> torch.Tensor:
    """SGD with momentum; `mom` is changed."""
    old = weight.detach()
    step = momentum * mom.detach() - lr * wd * old - lr * _scaled(grad, rescale_grad, clip_gradient)
    mom.detach().copy_(step)
    return old + step


def adam_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    lazy_update: bool = True,
) -> torch.Tensor:
    """Adam without the correction of its first steps; `mean` and `var` are changed."""
    old = weight.detach()
    step = grad.detach() * rescale_grad + wd * old
    step = step.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else step
    mean.detach().mul_(beta1).add_((1 - beta1) * step)
    var.detach().mul_(beta2).add_((1 - beta2) * step * step)
    return old - lr * mean.detach() / (var.detach().sqrt() + epsilon)


def signsgd_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    lr: float,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
) -> torch.Tensor:
    return (1 - lr * wd) * weight.detach() - lr * torch.sign(grad.detach())


def signum_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    mom: torch.Tensor,
    lr: float,
    momentum: float = 0.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    wd_lh: float = 0.0,
) -> torch.Tensor:
    """The sign of a momentum as a step; `mom` is changed."""
    old = weight.detach()
    step = _scaled(grad, rescale_grad, clip_gradient) + wd * old
    mom.detach().mul_(momentum).sub_((1 - momentum) * step)
    return (1 - lr * wd_lh) * old + lr * torch.sign(mom.detach())


def rmsprop_update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    n: torch.Tensor,
    lr: float,
    gamma1: float = 0.95,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    clip_weights: float = -1.0,
) -> torch.Tensor:
    """RMSProp; `n` is changed."""
    old = weight.detach()
    step = grad.detach() * rescale_grad + wd * old
    step = step.clamp(-clip_gradient, clip_gradient) if clip_gradient >= 0 else step
    n.detach().mul_(gamma1).add_((1 - gamma1) * step * step)
    new = old - lr * step / torch.sqrt(n.detach() + epsilon)
    return new.clamp(-clip_weights, clip_weights) if clip_weights >= 0 else new


def reset_arrays(*arrays: torch.Tensor, num_arrays: int = 1) -> list[torch.Tensor]:
    """Sets arrays to zero."""
    for array in arrays:
        array.detach().zero_()
    return []
