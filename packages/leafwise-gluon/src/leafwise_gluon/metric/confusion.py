"""How often classes were predicted rightly and wrongly, and scores made of that."""

import math
from typing import Any

import numpy

from leafwise_gluon import dialect
from leafwise_gluon.metric.base import as_numpy, check_label_shapes


def above(pred: Any, threshold: Any) -> Any:
    """Whether predictions are above a threshold, or above one for each class."""
    if isinstance(threshold, float):
        return pred > threshold
    if not hasattr(threshold, "shape"):
        raise ValueError(f"{type(threshold)} is a wrong type for threshold!")
    limits = as_numpy(threshold)
    assert limits.shape[-1] == pred.shape[-1], f"shape mismatch: {pred.shape[-1]} vs. {limits.shape[-1]}"
    return pred > limits


class Confusion:
    """Counts of true and false positives and negatives, for each class."""

    def __init__(self, class_type: str = "binary", threshold: Any = 0.5, beta: float = 1) -> None:
        self.class_type, self.threshold, self.beta = class_type, threshold, beta
        self.reset()

    def reset(self) -> None:
        self.counts: Any = None  # true positives, false positives, false negatives, true negatives, by class

    def add(self, label: Any, pred: Any) -> None:
        """Counts in a batch, given as NumPy arrays."""
        hits, wanted = self._binary_v1(label, pred) if dialect.is_v1() else self._as_flags(label.astype("int32"), pred)
        check_label_shapes(wanted, hits)
        batch = [hits & wanted, hits & ~wanted, ~hits & wanted, ~hits & ~wanted]
        counts = numpy.array([flags.sum(axis=0, dtype="float64") for flags in batch]).reshape(4, -1)
        if self.counts is not None:
            before, now = self.counts.shape[1], counts.shape[1]
            assert before == now, f"Input number of classes has changed from {before} to {now}"
        self.counts = counts if self.counts is None else self.counts + counts

    def _binary_v1(self, label: Any, pred: Any) -> tuple[Any, Any]:
        label = label.astype("int32")
        check_label_shapes(label, pred)
        if len(numpy.unique(label)) > 2:
            raise ValueError("F1 and MCC currently only support binary classification.")
        return pred.argmax(axis=1) == 1, label == 1

    def _as_flags(self, label: Any, pred: Any) -> tuple[Any, Any]:
        """For each example and class, whether it was predicted, and whether it was right to."""
        classes = pred.shape[-1]
        if self.class_type == "binary":
            if label.max() > 1:
                raise ValueError("Wrong label for binary classification.")
            if pred.shape != label.shape and classes > 2:
                raise ValueError(f"The shape of prediction {pred.shape} is wrong for binary classification.")
            if pred.shape != label.shape and classes == 2:
                pred = pred.reshape(-1, 2)[:, 1]
            return above(pred, self.threshold).reshape(-1), label.reshape(-1) == 1
        if self.class_type == "multiclass":
            assert label.max() < classes, "pred contains fewer classes than label!"
            every = numpy.arange(classes)
            return every == pred.argmax(axis=-1).reshape(-1, 1), every == label.reshape(-1, 1)
        if self.class_type == "multilabel":
            assert pred.shape == label.shape, (
                "The shape of label should be same as that of prediction for multilabel classification."
            )
            return above(pred, self.threshold).reshape(-1, classes), label.reshape(-1, classes) == 1
        raise ValueError(f"Wrong class_type {self.class_type}! Only supports ['binary', 'multiclass', 'multilabel']")

    @property
    def total_examples(self) -> int:
        return 0 if self.counts is None else int(self.counts[:, 0].sum())

    def fscores(self, average: str | None) -> Any:
        """The F scores: of all classes together ("micro"), their mean ("macro"), or of each class."""
        if self.counts is None:
            return 0.0
        counts = self.counts.sum(axis=1, keepdims=True) if average == "micro" else self.counts
        hits, wrong, missed, _ = counts
        precision = hits / numpy.maximum(hits + wrong, 1e-12)
        recall = hits / numpy.maximum(hits + missed, 1e-12)
        square = self.beta**2
        scores = (1 + square) * precision * recall / numpy.maximum(square * precision + recall, 1e-12)
        return float(scores.mean()) if average in ("micro", "macro") else scores

    def matthews(self) -> float:
        """Matthews' correlation coefficient of two classes."""
        if not self.total_examples:
            return 0.0
        hits, wrong, missed, left = self.counts[:, 0]
        terms = (hits + wrong, hits + missed, left + wrong, left + missed)
        return float((hits * left - wrong * missed) / math.sqrt(math.prod(term for term in terms if term != 0)))
