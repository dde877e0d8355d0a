"""Optimizers with a learning rate for each element: AdaGrad, AdaDelta, RMSProp, Ftrl, FTML, GroupAdaGrad."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.ops import weight_updates
from leafwise_gluon.optimizer.base import register
from leafwise_gluon.optimizer.formula import FormulaOptimizer


@register
class AdaGrad(FormulaOptimizer):
    """Steps divided by the root of the sum of all squared gradients. Its epsilon is called `eps` in MXNet 1.x.

    >>> from leafwise_gluon import optimizer
    >>> optimizer.AdaGrad(learning_rate=0.1).epsilon
    1e-06
    """

    def __init__(self, **kwargs: Any) -> None:
        if dialect.is_v1():
            self.float_stable_eps: float = kwargs.pop("eps", 1e-7)
        else:
            if kwargs.get("eps") is not None:
                raise DeprecationWarning("parameter 'eps' is deprecated. Please use 'epsilon' instead...")
            self.epsilon: float = kwargs.pop("epsilon", 1e-6)
            kwargs.setdefault("learning_rate", 0.01)
        super().__init__(**kwargs)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.zeros_like(weight, torch.float32)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, _ = self.counted(index)
        if self.is_v1:
            grad = self.scaled_copy(grad)
            state.addcmul_(grad, grad)
            return weight - lr * (grad / (state + self.float_stable_eps).sqrt() + weight * wd)
        grad = self.scaled_in_place(grad, weight, wd)
        state.addcmul_(grad, grad)
        return weight - lr * (grad / (state.sqrt() + self.epsilon))


@register
class AdaDelta(FormulaOptimizer):
    """Steps by the ratio of the running means of squared steps and squared gradients."""

    is_fused = False

    def __init__(self, *, rho: float = 0.9, epsilon: float | None = None, **kwargs: Any) -> None:
        if not dialect.is_v1():
            kwargs.setdefault("learning_rate", 1.0)
        super().__init__(**kwargs)
        self.rho = rho
        self.epsilon = (1e-5 if self.is_v1 else 1e-6) if epsilon is None else epsilon

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.zeros_like(weight, torch.float32), self.zeros_like(weight, torch.float32)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, _ = self.counted(index)
        # MXNet 1.x decays the weight apart from the gradient, and ignores the learning rate.
        grad = self.scaled_in_place(grad, weight, 0.0 if self.is_v1 else wd)
        squared_grads, squared_steps = state
        squared_grads.mul_(self.rho).addcmul_(grad, grad, value=1 - self.rho)
        step = (squared_steps + self.epsilon).sqrt() / (squared_grads + self.epsilon).sqrt() * grad
        squared_steps.mul_(self.rho).addcmul_(step, step, value=1 - self.rho)
        return weight - (step + wd * weight if self.is_v1 else lr * step)


@register
class RMSProp(FormulaOptimizer):
    """Steps divided by the root of the running mean of squared gradients. MXNet 1.x calls `rho` and `momentum` gamma1
    and gamma2; they are the decay of the means, and the momentum of the centered form."""

    def __init__(
        self,
        learning_rate: float | None = 0.001,
        *,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: Any,
    ) -> None:
        names = ("gamma1", "gamma2") if dialect.is_v1() else ("rho", "momentum")
        for old, new in (("gamma1", "rho"), ("gamma2", "momentum")):
            if not dialect.is_v1() and kwargs.get(old) is not None:
                raise DeprecationWarning(f"parameter '{old}' is deprecated. Please use '{new}' instead...")
        for name in names:
            setattr(self, name, kwargs.pop(name, 0.9))
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.epsilon, self.centered, self.clip_weights = epsilon, centered, clip_weights

    def create_state(self, index: Any, weight: Any) -> Any:
        states = tuple(self.zeros_like(weight, torch.float32) for _ in range(3 if self.centered else 1))
        return states if self.centered or self.is_v1 else states[0]

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        options |= {"epsilon": self.epsilon, "clip_weights": self.clip_weights or None}
        rho, momentum = (getattr(self, name) for name in (("gamma1", "gamma2") if self.is_v1 else ("rho", "momentum")))
        if self.centered:
            n, g, delta = state
            return weight_updates.rmspropalex(weight, grad, n, g, delta, rho=rho, momentum=momentum, **options)
        n = state[0] if self.is_v1 else state
        return weight_updates.rmsprop(weight, grad, n, rho=rho, **options)


@register
class Ftrl(FormulaOptimizer):
    """Follow the regularized leader, with an L1 penalty."""

    def __init__(
        self, *, learning_rate: float | None = 0.1, lamda1: float = 0.01, beta: float = 1.0, **kwargs: Any
    ) -> None:
        if dialect.is_v1():
            super().__init__(**kwargs)
            self.lr = learning_rate  # as in MXNet 1.x, it does not replace that of an lr_scheduler
        else:
            super().__init__(learning_rate=learning_rate, **kwargs)
        self.lamda1, self.beta = lamda1, beta

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.zeros_like(weight, torch.float32), self.zeros_like(weight, torch.float32)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        z, n = state
        return weight_updates.ftrl(weight, grad, z, n, lamda1=self.lamda1, beta=self.beta, **options)


@register
class FTML(FormulaOptimizer):
    """Follow the moving leader."""

    def __init__(self, *, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any) -> None:
        if not dialect.is_v1():
            kwargs.setdefault("learning_rate", 0.0025)
        super().__init__(**kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: Any, weight: Any) -> Any:
        return tuple(self.zeros_like(weight) for _ in range(3))

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        scales = self.counted(index)
        d, v, z = state
        options = self.fused(scales)
        options["clip_grad"] = options.pop("clip_gradient")
        betas: dict[str, Any] = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return weight_updates.ftml(weight, grad, d, v, z, t=scales.t, **betas, **options)


@register
class GroupAdaGrad(FormulaOptimizer):
    """AdaGrad with one learning rate for each row of a matrix, such as an embedding."""

    def __init__(self, **kwargs: Any) -> None:
        if dialect.is_v1():
            self.float_stable_eps: float = kwargs.pop("eps", 1e-5)
        else:
            self.epsilon: float = kwargs.pop("epsilon", 1e-6)
            kwargs.setdefault("learning_rate", 0.01)
        super().__init__(**kwargs)

    def create_state(self, index: Any, weight: Any) -> Any:
        assert len(weight.shape) == 2
        return wrap_legacy(torch.zeros((weight.shape[0], 1), device=weight.tensor.device), weight.ctx)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, _ = self.counted(index)
        assert wd == 0, "Weight decay is not supported for GroupAdaGrad"
        grad = self.scaled_copy(grad)
        state.add_((grad * grad).mean(dim=1, keepdim=True))
        root = (state + self.float_stable_eps).sqrt() if self.is_v1 else state.sqrt() + self.epsilon
        return weight - lr * grad / root
