"""Losses for numbers: L2, L1, Huber, Poisson."""

import math
from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.loss.base import Loss, reshaped_like


class L2Loss(Loss):
    """Half the square of the difference.

    >>> from leafwise_gluon import loss, np
    >>> loss.L2Loss()(np.array([[1, 2], [3, 4]]), np.array([[1, 0], [3, 3]]))
    array([1.  , 0.25])
    """

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        loss = (reshaped_like(label, pred) - pred).square()
        return self.mean_of_examples(self.weighted(loss, sample_weight, 0.5))


class L1Loss(Loss):
    """The absolute difference."""

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        loss = (reshaped_like(label, pred) - pred).abs()
        return self.mean_of_examples(self.weighted(loss, sample_weight))


class HuberLoss(Loss):
    """The absolute difference, but a square where it is less than `rho`."""

    def __init__(self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._rho = rho

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        distance = (reshaped_like(label, pred) - pred).abs()
        loss = torch.where(distance > self._rho, distance - 0.5 * self._rho, 0.5 / self._rho * distance.square())
        return self.mean_of_examples(self.weighted(loss, sample_weight))


class PoissonNLLLoss(Loss):
    """The negative logarithm of the likelihood of a Poisson distribution. In MXNet 1.x, the mean of all examples."""

    def __init__(
        self,
        weight: float | None = None,
        from_logits: bool = True,
        batch_axis: int = 0,
        compute_full: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._compute_full = from_logits, compute_full

    def compute(
        self, pred: torch.Tensor, target: torch.Tensor, sample_weight: Any = None, epsilon: float = 1e-8
    ) -> torch.Tensor:
        target = reshaped_like(target, pred)
        loss = pred.exp() - target * pred if self._from_logits else pred - target * (pred + epsilon).log()
        if self._compute_full:
            stirling = target * target.log() - target + 0.5 * (2 * target * math.pi).log()
            loss = loss + stirling * (target > 1)
        loss = self.weighted(loss, sample_weight)
        return loss.mean() if dialect.is_v1() else self.mean_of_examples(loss)
