"""Adam and its relatives: AdamW, Adamax, Nadam, AdaBelief, LAMB."""

import math
from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.ops import weight_updates
from leafwise_gluon.optimizer.base import Scales, register
from leafwise_gluon.optimizer.formula import FormulaOptimizer


class _Moments(FormulaOptimizer):
    """An optimizer whose state is running means of the gradient and of its square."""

    def __init__(self, learning_rate: float | None, beta1: float, beta2: float, epsilon: float, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.zeros_like(weight), self.zeros_like(weight)

    def with_betas(self, scales: Scales) -> dict[str, Any]:
        return {**self.fused(scales), "beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}

    def corrected(self, scales: Scales) -> float:
        """The learning rate, corrected for the bias of the running means."""
        return scales.lr * math.sqrt(1 - self.beta2**scales.t) / (1 - self.beta1**scales.t)

    def accumulate(self, grad: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> None:
        mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        var.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)


@register
class Adam(_Moments):
    """Adam, with the bias correction as part of the learning rate.

    >>> from leafwise_gluon import optimizer
    >>> optimizer.Adam().learning_rate
    0.001
    """

    def __init__(
        self,
        learning_rate: float | None = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.lazy_update = self.is_v1 if lazy_update is None else lazy_update

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        scales = self.counted(index)
        options = {**self.with_betas(scales), "lr": self.corrected(scales)}
        return weight_updates.adam(weight, grad, *state, **options)


class _Decoupled(_Moments):
    """What AdamW and AdaBelief have in common."""

    versions = (2,)

    def __init__(
        self,
        learning_rate: float | None = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        correct_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.correct_bias, self.aggregate_num = correct_bias, 4

    def options(self, index: Any) -> dict[str, Any]:
        scales = self.counted(index)
        eta = self.corrected(scales) if self.correct_bias else scales.lr
        return {**self.with_betas(scales), "lr": 1.0, "eta": eta}


@register
class AdamW(_Decoupled):
    """Adam with weight decay that is not part of the gradient."""

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        return weight_updates.adamw(weight, grad, *state, **self.options(index))


@register
class AdaBelief(_Decoupled):
    """Adam with steps by how far gradients are from their running mean."""

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        return weight_updates.adabelief(weight, grad, *state, **self.options(index))


@register
class Adamax(_Moments):
    """Adam with the maximum norm."""

    is_fused = False

    def __init__(
        self, learning_rate: float | None = 0.002, beta1: float = 0.9, beta2: float = 0.999, **kwargs: Any
    ) -> None:
        epsilon = 0.0 if dialect.is_v1() else kwargs.pop("epsilon", 1e-8)
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, t = self.counted(index)
        mean, largest = state
        grad = decayed_first(self, grad, weight, wd) if self.is_v1 else self.scaled_in_place(grad, weight, wd)
        mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        largest.copy_(torch.maximum(self.beta2 * largest, grad.abs()))
        return weight - lr / (1 - self.beta1**t) * mean / (largest + self.epsilon)


@register
class Nadam(_Moments):
    """Adam with Nesterov's momentum."""

    is_fused = False

    def __init__(
        self,
        learning_rate: float | None = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.schedule_decay = schedule_decay
        self.m_schedule = 1.0

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, t = self.counted(index)
        mean, var = state
        grad = decayed_first(self, grad, weight, wd) if self.is_v1 else self.scaled_in_place(grad, weight, wd)
        now, following = self._momentum(t), self._momentum(t + 1)
        self.m_schedule *= now  # as in MXNet, all weights share one schedule
        self.accumulate(grad, mean, var)
        towards = (1 - now) * grad / (1 - self.m_schedule) + following * mean / (1 - self.m_schedule * following)
        return weight - lr * towards / ((var / (1 - self.beta2**t)).sqrt() + self.epsilon)

    def _momentum(self, t: int) -> float:
        return self.beta1 * float(1 - 0.5 * 0.96 ** (t * self.schedule_decay))


@register
class LAMB(_Moments):
    """Adam with a learning rate for each weight, from the norms of the weight and of its update."""

    def __init__(
        self,
        learning_rate: float | None = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        if not dialect.is_v1():
            kwargs.setdefault("aggregate_num", 4)
            assert kwargs["aggregate_num"] <= 45, "LAMB only supports aggregate_num <= 45"
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)
        self.lower_bound, self.upper_bound, self.bias_correction = lower_bound, upper_bound, bias_correction
        if self.is_v1:
            self.aggregate_num = 45

    def create_state(self, index: Any, weight: Any) -> Any:
        dtype = None if self.is_v1 else torch.float32
        return self.zeros_like(weight, dtype), self.zeros_like(weight, dtype)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        if not self.is_v1 and self.aggregate_num <= 1:
            self.counted(index)  # MXNet counts each update twice in this case
        scales = self.counted(index)
        options = self.with_betas(scales)
        lr = options.pop("lr")
        mean, var = state
        options |= {"t": scales.t, "bias_correction": self.bias_correction}
        g = weight_updates.lamb_phase1(weight, grad, mean, var, **options)
        bounds = self.lower_bound or None, self.upper_bound or None
        return weight_updates.lamb_phase2(weight, g, weight.norm(), g.norm(), lr, *bounds)


def decayed_first(optimizer: FormulaOptimizer, grad: torch.Tensor, weight: torch.Tensor, wd: float) -> torch.Tensor:
    """The gradient as some optimizers of MXNet 1.x have it: clipped after the weight decay is added."""
    grad = grad * float(optimizer.rescale_grad) + wd * weight
    limit = optimizer.clip_gradient
    return grad if limit is None else grad.clamp(-limit, limit)
