"""The update formulas of MXNet's optimizers, over plain tensors.

Each function returns the new weight, and changes the tensors of the optimizer's state in place. MXNet 1.x and 2.x
differ in the order of clipping and weight decay, and in the place of epsilon; such functions ask the dialect.
"""

import math

import numpy
import torch
from torch import Tensor

from leafwise_gluon import dialect


def clipped(values: Tensor, limit: float | None) -> Tensor:
    """Values between -limit and limit; a negative limit, or None, means no limit."""
    return values if limit is None or limit < 0 else values.clamp(-limit, limit)


def _gradient(
    weight: Tensor, grad: Tensor, wd: float, rescale_grad: float, clip_gradient: float | None, decay_first: bool = False
) -> Tensor:
    """The gradient, rescaled, clipped and with weight decay; the gradient itself if nothing of that is asked for."""
    scaled = grad if rescale_grad == 1 else grad * rescale_grad
    if not wd:
        return clipped(scaled, clip_gradient)
    if decay_first:
        return clipped(torch.add(scaled, weight, alpha=wd), clip_gradient)
    return torch.add(clipped(scaled, clip_gradient), weight, alpha=wd)


def _rest(beta: float, weight: Tensor) -> float:
    """1 - beta, where beta is rounded to float32, as MXNet does: for 0.999 the rounding is visible in the result."""
    single = numpy.float32(beta)
    return 1 - float(single) if weight.dtype == torch.float64 else float(numpy.float32(1) - single)


def sgd(
    weight: Tensor,
    grad: Tensor,
    lr: float,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    return torch.sub(weight, _gradient(weight, grad, wd, rescale_grad, clip_gradient), alpha=lr)


def sgd_mom(
    weight: Tensor,
    grad: Tensor,
    mom: Tensor,
    lr: float,
    momentum: float = 0.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    mom.mul_(momentum).sub_(_gradient(weight, grad, wd, rescale_grad, clip_gradient), alpha=lr)
    return weight + mom


def nag_mom(
    weight: Tensor,
    grad: Tensor,
    mom: Tensor,
    lr: float,
    momentum: float = 0.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    """In MXNet 1.x, the momentum gets the weight decay of the new weight, which has replaced the old one by then."""
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient)
    mom.mul_(momentum)
    new = torch.add(weight, mom, alpha=momentum).sub_(scaled, alpha=lr * (1 + momentum))
    mom.sub_(scaled + wd * (new - weight) if dialect.is_v1() else scaled, alpha=lr)
    return new


def adam(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient, decay_first=dialect.is_v1())
    mean.mul_(beta1).add_(scaled, alpha=_rest(beta1, weight))
    var.mul_(beta2).addcmul_(scaled, scaled, value=_rest(beta2, weight))
    return weight - lr * mean / (var.sqrt() + epsilon)


def adamw(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    eta: float,
    lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    """Adam with decoupled weight decay; `eta` is the learning rate, which multiplies both parts."""
    scaled = clipped(grad * rescale_grad, clip_gradient)
    mean.sub_(scaled).mul_(beta1).add_(scaled)
    square = scaled * scaled
    var.sub_(square).mul_(beta2).add_(square)
    return weight - eta * (lr * mean / (var.sqrt() + epsilon) + wd * weight)


def adabelief(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    eta: float,
    lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient, decay_first=True)
    mean.sub_(scaled).mul_(beta1).add_(scaled)
    square = (mean - scaled).square()
    var.sub_(square).mul_(beta2).add_(square).add_(epsilon)
    return weight - eta * (lr * mean / (var.sqrt() + epsilon))


def rmsprop(
    weight: Tensor,
    grad: Tensor,
    n: Tensor,
    lr: float,
    rho: float = 0.95,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
    clip_weights: float | None = None,
) -> Tensor:
    """`rho` is called gamma1 in MXNet 1.x."""
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient, decay_first=dialect.is_v1())
    n.mul_(rho).addcmul_(scaled, scaled, value=_rest(rho, weight))
    root = (n + epsilon).sqrt() if dialect.is_v1() else n.sqrt() + epsilon
    return clipped(weight - lr * scaled / root, clip_weights)


def rmspropalex(
    weight: Tensor,
    grad: Tensor,
    n: Tensor,
    g: Tensor,
    delta: Tensor,
    lr: float,
    rho: float = 0.95,
    momentum: float = 0.9,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
    clip_weights: float | None = None,
) -> Tensor:
    """Centered RMSProp. `rho` and `momentum` are called gamma1 and gamma2 in MXNet 1.x.

    The state is the mean of squared gradients, the mean of gradients, and the last step; in MXNet 2.x, the means are
    the other way round.
    """
    if not dialect.is_v1():
        n, g = g, n
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient, decay_first=dialect.is_v1())
    n.mul_(rho).addcmul_(scaled, scaled, value=_rest(rho, weight))
    g.mul_(rho).add_(scaled, alpha=_rest(rho, weight))
    delta.mul_(momentum).sub_(lr * scaled / (n - g * g + epsilon).sqrt())
    return clipped(weight + delta, clip_weights)


def ftrl(
    weight: Tensor,
    grad: Tensor,
    z: Tensor,
    n: Tensor,
    lr: float,
    lamda1: float = 0.01,
    beta: float = 1.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    scaled = clipped(grad * rescale_grad, clip_gradient)
    total = n + scaled * scaled
    z.add_(scaled - (total.sqrt() - n.sqrt()) * weight / lr)
    n.copy_(total)
    return -z.sign() * (z.abs() - lamda1).clamp(min=0) / ((beta + n.sqrt()) / lr + wd)


def ftml(
    weight: Tensor,
    grad: Tensor,
    d: Tensor,
    v: Tensor,
    z: Tensor,
    lr: float,
    t: int,
    beta1: float = 0.6,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_grad: float | None = None,
) -> Tensor:
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_grad, decay_first=dialect.is_v1())
    v.mul_(beta2).addcmul_(scaled, scaled, value=_rest(beta2, weight))
    # With a learning rate of 0, the weight becomes nan, as in MXNet.
    new_d = ((1 - beta1**t) / lr if lr else math.inf) * ((v / _bias(beta2, t, weight)).sqrt() + epsilon)
    z.mul_(beta1).add_(scaled, alpha=_rest(beta1, weight)).sub_((new_d - beta1 * d) * weight)
    d.copy_(new_d)
    return -z / new_d


def _bias(beta: float, t: int, weight: Tensor) -> float:
    """1 - beta^t, where beta is rounded to float32, as MXNet does."""
    single = numpy.float32(beta)
    if weight.dtype == torch.float64:
        return 1.0 - float(single) ** t
    return float(numpy.float32(1) - single ** numpy.float32(t))


def signsgd(
    weight: Tensor,
    grad: Tensor,
    lr: float,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    """Only the sign of the gradient counts, so rescaling and clipping have no effect."""
    return (1 - lr * wd) * weight - lr * grad.sign()


def signum(
    weight: Tensor,
    grad: Tensor,
    mom: Tensor,
    lr: float,
    momentum: float = 0.0,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
    wd_lh: float = 0.0,
) -> Tensor:
    scaled = _gradient(weight, grad, wd, rescale_grad, clip_gradient)
    mom.mul_(momentum).sub_(scaled, alpha=1 - momentum)
    return (1 - lr * wd_lh) * weight + lr * mom.sign()


def lamb_phase1(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    t: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = True,
    wd: float = 0.0,
    rescale_grad: float = 1.0,
    clip_gradient: float | None = None,
) -> Tensor:
    """The direction of LAMB's update, before it is scaled by the ratio of the norms."""
    scaled = clipped(grad * rescale_grad, clip_gradient)
    mean.mul_(beta1).add_(scaled, alpha=_rest(beta1, weight))
    var.mul_(beta2).addcmul_(scaled, scaled, value=_rest(beta2, weight))
    if not bias_correction:
        return mean / (var.sqrt() + epsilon) + wd * weight
    mean_hat, var_hat = mean / _bias(beta1, t, weight), var / _bias(beta2, t, weight)
    return mean_hat / (var_hat.sqrt() + epsilon) + wd * weight


def lamb_phase2(
    weight: Tensor,
    g: Tensor,
    r1: Tensor,
    r2: Tensor,
    lr: float,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
) -> Tensor:
    """The new weight, from LAMB's direction `g` and the norms of the weight (`r1`) and of `g` (`r2`)."""
    norm = r1.reshape(())
    if lower_bound is not None and lower_bound >= 0:
        norm = norm.clamp(min=lower_bound)
    if upper_bound is not None and upper_bound >= 0:
        norm = norm.clamp(max=upper_bound)
    other = r2.reshape(())
    ratio = torch.where((norm == 0) | (other == 0), torch.ones_like(norm), norm / other)
    return weight - lr * ratio * g
