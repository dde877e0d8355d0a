"""Metrics of probabilities, and of losses."""

import math
from typing import Any

import numpy

from leafwise_gluon import dialect
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.metric.base import EvalMetric, alias, as_numpy, check_label_shapes, register


@register
@alias("ce")
class CrossEntropy(EvalMetric):
    """The mean of minus the logarithm of the probability of the right class."""

    def __init__(
        self,
        eps: float = 1e-12,
        ignore_label: Any = None,
        axis: int = -1,
        from_logits: bool = False,
        name: str = "cross-entropy",
        output_names: Any = None,
        label_names: Any = None,
    ) -> None:
        if dialect.is_v1() and (ignore_label, axis, from_logits) != (None, -1, False):
            raise TypeError(f"{type(self).__name__} has no ignore_label, axis and from_logits in MXNet 1.x")
        own = {"eps": eps} if dialect.is_v1() else {}
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True, **own)
        self.eps, self.ignore_label, self.axis, self.from_logits = eps, ignore_label, axis, from_logits

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds, strict=True):
            label, pred = as_numpy(label), as_numpy(pred)
            if dialect.is_v1():
                label = label.ravel()
                assert label.shape[0] == pred.shape[0]
                chosen = pred[numpy.arange(len(label)), label.astype("int64")]
                self.count_in(float(-numpy.log(chosen + self.eps).sum()), len(label))
                continue
            self.count_in(*_surprise(label, _softmax(pred, self.axis) if self.from_logits else pred, self))


def _softmax(scores: Any, axis: int) -> Any:
    exponents = numpy.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponents / exponents.sum(axis=axis, keepdims=True)


def _surprise(label: Any, pred: Any, metric: Any) -> tuple[float, int]:
    """Minus the sum of the logarithms of the probabilities of the right classes, and how many they are."""
    assert label.size == pred.size / pred.shape[-1], f"shape mismatch: {label.shape} vs. {pred.shape}"
    flat = label.reshape(-1)
    index = numpy.expand_dims(flat.astype("int64").clip(0, pred.shape[metric.axis] - 1), metric.axis)
    chosen = numpy.take_along_axis(pred, index, metric.axis).reshape(-1)
    ignored = 0
    if metric.ignore_label is not None:
        ignore = flat == metric.ignore_label
        ignored = int(ignore.sum())
        chosen = numpy.where(ignore, numpy.float32(1), chosen)
    return float(-numpy.log(numpy.maximum(metric.eps, chosen)).sum()), len(flat) - ignored


@register
@alias("nll_loss")
class NegativeLogLikelihood(CrossEntropy):
    """The cross entropy by another name, of MXNet 1.x."""

    versions = (1,)

    def __init__(
        self, eps: float = 1e-12, name: str = "nll-loss", output_names: Any = None, label_names: Any = None
    ) -> None:
        super().__init__(eps, name=name, output_names=output_names, label_names=label_names)


@register
class Perplexity(EvalMetric):
    """The exponential of the cross entropy; labels that are `ignore_label` do not count."""

    def __init__(
        self,
        *args: Any,
        ignore_label: Any = "",
        axis: int = -1,
        eps: float = 1e-12,
        from_logits: bool = False,
        name: str = "perplexity",
        output_names: Any = None,
        label_names: Any = None,
    ) -> None:
        # The first argument is ignore_label in MXNet 1.x, and eps in 2.x, which has no argument that must be given.
        first, second = ("ignore_label", "axis") if dialect.is_v1() else ("eps", "ignore_label")
        given = dict(zip((first, second), args, strict=False))
        self.ignore_label = given.get("ignore_label", ignore_label)
        self.axis = given.get("axis", axis)
        self.eps, self.from_logits = 1e-10 if dialect.is_v1() else given.get("eps", eps), from_logits
        if dialect.is_v1() and self.ignore_label == "":
            raise TypeError("Perplexity needs the argument ignore_label; None ignores no label")
        if self.ignore_label == "":
            self.ignore_label = None
        own = {"ignore_label": self.ignore_label} if dialect.is_v1() else {}
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True, **own)

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, not dialect.is_v1())
        for label, pred in zip(labels, preds, strict=True):
            values = as_numpy(pred)
            probabilities = _softmax(values, self.axis) if self.from_logits else values
            self.count_in(*_surprise(as_numpy(label), probabilities, self))

    def value(self, total: Any, count: Any) -> Any:
        return math.exp(super().value(total, count))


class LossMetric(EvalMetric):
    """The mean of losses. Its name is `Loss`."""

    def __init__(self, name: str = "loss", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True)

    def update(self, _: Any, preds: Any) -> None:
        for pred in [preds] if isinstance(preds, ArrayValues) else preds:
            values = as_numpy(pred)
            self.count_in(float(values.sum()), values.size)


LossMetric.__name__ = LossMetric.__qualname__ = "Loss"  # as in MXNet; here, Loss is the base class of losses
register(LossMetric)


@register
class Torch(LossMetric):
    """The mean of losses, by an old name."""

    def __init__(self, name: str = "torch", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)


@register
class Caffe(LossMetric):
    """The mean of losses, by an old name of MXNet 1.x."""

    versions = (1,)

    def __init__(self, name: str = "caffe", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)
