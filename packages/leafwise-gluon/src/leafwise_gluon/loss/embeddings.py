"""Losses that compare vectors: triplets, cosine similarity, smoothed deep metric learning."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.loss.base import Loss, reshaped_like
from leafwise_gluon.loss.classification import KLDivLoss


class TripletLoss(Loss):
    """How much closer, by less than `margin`, the prediction is to the positive than to the negative example."""

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def compute(
        self, pred: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor, sample_weight: Any = None
    ) -> torch.Tensor:
        if sample_weight is not None and dialect.is_v1():
            raise TypeError("TripletLoss has no sample_weight in MXNet 1.x")
        near = (reshaped_like(positive, pred) - pred).square()
        far = (reshaped_like(negative, pred) - pred).square()
        return self.weighted((self.sum_of_examples(near - far) + self._margin).relu(), sample_weight)


class CosineEmbeddingLoss(Loss):
    """1 minus the cosine similarity for the label 1; for the label -1, how much it is above `margin`."""

    def __init__(self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def compute(
        self, input1: torch.Tensor, input2: torch.Tensor, label: torch.Tensor, sample_weight: Any = None
    ) -> torch.Tensor:
        similarity = _cosine(reshaped_like(input1, input2), input2)
        if dialect.is_v1():
            label = label.reshape(-1, 1)
            apart = ((label == -1) * (similarity - self._margin)).relu()
            return self.weighted((1 - similarity) * (label == 1) + apart, sample_weight)
        apart = (similarity - self._margin).clamp(0, 1 - self._margin)
        loss = torch.where(reshaped_like(label, similarity) == 1, 1 - similarity, apart)
        return self.mean_of_examples(self.weighted(loss, sample_weight))


def _cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = x.norm(dim=-1).reshape(-1, 1) * y.norm(dim=-1).reshape(-1, 1)
    return (x * y).sum(dim=-1).reshape(-1, 1) / norms.clamp(min=1e-12)


class SDMLLoss(Loss):
    """Smoothed deep metric learning: rows of two batches belong together in pairs, all others apart."""

    def __init__(
        self, smoothing_parameter: float = 0.3, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self.kl_loss = KLDivLoss(from_logits=True)
        self.smoothing_parameter = smoothing_parameter

    def compute(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        size = x1.shape[0]
        pairs = torch.eye(size, device=x1.device)
        labels = pairs * (1 - self.smoothing_parameter) + (1 - pairs) * self.smoothing_parameter / (size - 1)
        self.kl_loss.has_np_arrays = self.has_np_arrays
        distances = (x1.unsqueeze(1) - x2.unsqueeze(0)).square().sum(dim=2)
        return KLDivLoss.compute(self.kl_loss, (-distances).log_softmax(dim=1), labels)
