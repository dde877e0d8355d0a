"""Losses for classes: cross entropies, hinges, logistic loss, Kullback-Leibler divergence."""

from typing import Any

import torch
from torch.nn.functional import softplus

from leafwise_gluon import dialect
from leafwise_gluon.base import MXNetError
from leafwise_gluon.loss.base import Loss, reshaped_like


class SigmoidBinaryCrossEntropyLoss(Loss):
    """The cross entropy of two classes. Predictions are scores before the sigmoid, unless `from_sigmoid`."""

    def __init__(
        self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def compute(
        self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None, pos_weight: Any = None
    ) -> torch.Tensor:
        label = reshaped_like(label, pred)
        if self._from_sigmoid:
            eps = 1e-12
            positive = (pred + eps).log() * label
            if pos_weight is not None:
                positive = positive * pos_weight
            loss = -(positive + (1.0 - pred + eps).log() * (1.0 - label))
        elif pos_weight is None:
            loss = _logistic(pred, label)
        else:
            factor = 1 + (pos_weight - 1) * label
            loss = pred - pred * label + factor * (softplus(-pred.abs()) + (-pred).relu())
        return self.mean_of_examples(self.weighted(loss, sample_weight))


def _logistic(pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The cross entropy of the sigmoid of `pred` and labels between 0 and 1, without overflow."""
    return pred.relu() - pred * label + softplus(-pred.abs())


class SoftmaxCrossEntropyLoss(Loss):
    """The cross entropy of the softmax of scores, and classes (`sparse_label`) or their probabilities.

    >>> from leafwise_gluon import loss, np
    >>> loss.SoftmaxCrossEntropyLoss()(np.array([[0, 0], [0, 100]]), np.array([0, 1]))
    array([0.6931472, 0.       ])
    """

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        if not self._from_logits:
            pred = pred.log_softmax(dim=self._axis)
        if self._sparse_label:
            loss = -_picked(pred, label, self._axis)
        else:
            loss = -(pred * reshaped_like(label, pred)).sum(dim=self._axis, keepdim=True)
        return self.mean_of_examples(self.weighted(loss, sample_weight))


def _picked(scores: torch.Tensor, classes: torch.Tensor, axis: int) -> torch.Tensor:
    """The score of each example's class; as in MXNet, classes out of range become the nearest class."""
    expected = list(scores.shape)
    expected[axis] = 1
    without = expected[: axis % scores.dim()] + expected[axis % scores.dim() + 1 :]
    if list(classes.shape) not in (expected, without):
        raise MXNetError(
            f"SoftmaxCrossEntropyLoss: labels of shape {tuple(classes.shape)} do not fit predictions of shape "
            f"{tuple(scores.shape)} with the classes along axis {axis}"
        )
    index = classes.detach().reshape(expected).long().clamp(0, scores.shape[axis] - 1)
    return scores.gather(axis, index)


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence. In MXNet 1.x the sum over the classes, in 2.x their mean."""

    def __init__(
        self, from_logits: bool = True, axis: int = -1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._axis = from_logits, axis

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        if not self._from_logits:
            pred = pred.log_softmax(dim=self._axis)
        loss = self.weighted(label * ((label + 1e-12).log() - pred), sample_weight)
        return self.sum_of_examples(loss) if dialect.is_v1() else self.mean_of_examples(loss)


class HingeLoss(Loss):
    """The hinge loss; labels are -1 and 1."""

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        return self.mean_of_examples(self.weighted(self.hinge(pred, label), sample_weight))

    def hinge(self, pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (self._margin - pred * reshaped_like(label, pred)).relu()


class SquaredHingeLoss(HingeLoss):
    """The square of the hinge loss."""

    def hinge(self, pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().hinge(pred, label).square()


class LogisticLoss(Loss):
    """The logistic loss; labels are -1 and 1, or 0 and 1 with `label_format="binary"`."""

    def __init__(
        self, weight: float | None = None, batch_axis: int = 0, label_format: str = "signed", **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        if label_format not in ("signed", "binary"):
            raise ValueError(f"label_format can only be signed or binary, received {label_format}.")
        self._label_format = label_format

    def compute(self, pred: torch.Tensor, label: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:
        label = reshaped_like(label, pred)
        if self._label_format == "signed":
            label = (label + 1.0) / 2.0
        return self.mean_of_examples(self.weighted(_logistic(pred, label), sample_weight))
