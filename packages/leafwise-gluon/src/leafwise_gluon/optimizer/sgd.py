"""Gradient descent: SGD, NAG, Signum, DCASGD, LARS."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.ops import weight_updates
from leafwise_gluon.optimizer.base import register
from leafwise_gluon.optimizer.formula import FormulaOptimizer


class _Momentum(FormulaOptimizer):
    """An optimizer whose state is the momentum, or None without momentum."""

    def __init__(self, *, momentum: float, **kwargs: Any) -> None:
        if not dialect.is_v1():
            kwargs.setdefault("learning_rate", 0.1)
        super().__init__(**kwargs)
        self.momentum = momentum

    def create_state(self, index: Any, weight: Any) -> Any:
        return None if self.momentum == 0 else self.zeros_like(weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        state = super().create_state_multi_precision(index, weight)
        # In MXNet 1.x the copy in float32 is the second part of the state.
        return state[::-1] if self.is_v1 and self.multi_precision and weight.tensor.dtype == torch.float16 else state

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if self.is_v1 and self.multi_precision:
            many = isinstance(index, list | tuple)
            parts = [(index, weight, grad, state)] if not many else zip(index, weight, grad, state, strict=True)
            for each, array, gradient, pair in parts:
                pair = pair[::-1] if array.tensor.dtype == torch.float16 else pair
                super().update_multi_precision(each, array, gradient, pair)
        else:
            super().update_multi_precision(index, weight, grad, state)

    @property
    def effective_momentum(self) -> float:
        return self.momentum if self.momentum > 0 else 0.0


@register
class SGD(_Momentum):
    """Gradient descent, with momentum if `momentum` is not 0.

    >>> from leafwise_gluon import optimizer
    >>> optimizer.SGD(learning_rate=0.1, momentum=0.9).learning_rate
    0.1
    """

    def __init__(self, *, momentum: float = 0.0, lazy_update: bool | None = None, **kwargs: Any) -> None:
        super().__init__(momentum=momentum, **kwargs)
        self.lazy_update = self.is_v1 if lazy_update is None else lazy_update
        if self.is_v1:
            self.aggregate_num = 4

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        if state is None:
            return weight_updates.sgd(weight, grad, **options)
        return weight_updates.sgd_mom(weight, grad, state, momentum=self.effective_momentum, **options)


@register
class ccSGD(SGD):  # noqa: N801
    """An old name of SGD, of MXNet 1.x."""

    versions = (1,)


@register
class NAG(_Momentum):
    """Gradient descent with Nesterov's momentum."""

    def __init__(self, *, momentum: float | None = None, **kwargs: Any) -> None:
        default = 0.0 if dialect.is_v1() else 0.9
        super().__init__(momentum=default if momentum is None else momentum, **kwargs)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        if state is None:
            return weight_updates.sgd(weight, grad, **options)
        return weight_updates.nag_mom(weight, grad, state, momentum=self.effective_momentum, **options)


@register
class Signum(FormulaOptimizer):
    """Steps of one size, in the direction of the sign of the momentum."""

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum, self.wd_lh = momentum, wd_lh

    def create_state(self, index: Any, weight: Any) -> Any:
        return None if self.momentum == 0 else self.zeros_like(weight)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        if state is not None:
            momentum = self.momentum if self.momentum > 0 else 0.0
            return weight_updates.signum(weight, grad, state, momentum=momentum, wd_lh=self.wd_lh, **options)
        if not self.is_v1:
            options["wd"] += self.wd_lh
        elif self.wd_lh:
            raise TypeError("Signum without momentum has no wd_lh in MXNet 1.x")
        return weight_updates.signsgd(weight, grad, **options)


@register
class DCASGD(_Momentum):
    """Gradient descent with compensation for delayed gradients."""

    is_fused = False

    def __init__(self, *, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any) -> None:
        super().__init__(momentum=momentum, **kwargs)
        self.lamda = lamda

    def create_state(self, index: Any, weight: Any) -> Any:
        return super().create_state(index, weight), wrap_legacy(weight.tensor.detach().clone(), weight.ctx)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        lr, wd, _ = self.counted(index)
        mom, previous = state
        if self.is_v1:
            grad = self.scaled_copy(grad)
            step = grad + wd * weight + self.lamda * grad * grad * (weight - previous)
        else:
            grad = self.scaled_in_place(grad, weight, wd)
            step = grad + self.lamda * grad * grad * (weight - previous)
        change = -lr * step if mom is None else mom.mul_(self.momentum).sub_(step, alpha=lr)
        previous.copy_(weight)
        return weight + change


@register
class LARS(_Momentum):
    """Gradient descent with a learning rate for each weight, from the norms of the weight and of its gradient."""

    def __init__(
        self,
        *,
        momentum: float = 0.0,
        eta: float = 0.001,
        lazy_update: bool | None = None,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        name, default = ("eps", 0.0) if dialect.is_v1() else ("epsilon", 1e-8)
        self.epsilon: float = kwargs.pop(name, default)
        super().__init__(momentum=momentum, **kwargs)
        if not self.is_v1 and not momentum_correction:
            raise TypeError("LARS has no argument momentum_correction in MXNet 2.x")
        self.eta, self.momentum_correction = eta, momentum_correction
        self.lazy_update = self.is_v1 if lazy_update is None else lazy_update
        self.last_lr: float | None = None
        self.cur_lr: float | None = None
        if self.is_v1:
            self.aggregate_num = 4

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        options = self.fused(self.counted(index))
        options["lr"] *= self._ratio(index, weight, grad, options["wd"])
        if state is None:
            return weight_updates.sgd(weight, grad, **options)
        return weight_updates.sgd_mom(weight, grad, state, momentum=self._corrected_momentum(), **options)

    def _ratio(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, wd: float) -> float:
        if self.idx2name.get(index, str(index)).endswith(("gamma", "beta", "bias")):
            return 1.0
        w_norm, g_norm = float(weight.float().norm()), float(grad.float().norm())
        if not (w_norm > 0 and g_norm > 0):
            return 1.0
        return self.eta * w_norm / (g_norm * float(self.rescale_grad) + wd * w_norm + self.epsilon)

    def _corrected_momentum(self) -> float:
        """In MXNet 1.x, the momentum grows and shrinks with the learning rate, for the update after a change."""
        if not (self.is_v1 and self.momentum_correction):
            return self.effective_momentum
        lr = self.learning_rate
        self.last_lr = lr if self.cur_lr is None else self.cur_lr
        self.cur_lr = lr
        return self.effective_momentum * (lr / self.last_lr) if self.last_lr else self.effective_momentum
