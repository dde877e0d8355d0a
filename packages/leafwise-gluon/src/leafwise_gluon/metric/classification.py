"""Metrics of classes: accuracies, F scores, correlation coefficients."""

from typing import Any

import numpy

from leafwise_gluon import dialect
from leafwise_gluon.metric.base import EvalMetric, alias, check_label_shapes, pairs, register
from leafwise_gluon.metric.confusion import Confusion, above


@register
@alias("acc")
class Accuracy(EvalMetric):
    """The share of right classes. Predictions are classes, or scores whose largest along `axis` is the class.

    >>> from leafwise_gluon import metric, np
    >>> accuracy = metric.Accuracy()
    >>> accuracy.update(np.array([1, 0]), np.array([1, 1]))
    >>> accuracy.get()
    ('accuracy', 0.5)
    """

    def __init__(
        self, axis: int = 1, name: str = "accuracy", output_names: Any = None, label_names: Any = None
    ) -> None:
        super().__init__(name, axis=axis, output_names=output_names, label_names=label_names, has_global_stats=True)
        self.axis = axis

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            classes = pred if pred.shape == label.shape else pred.argmax(axis=self.axis)
            classes, label = classes.astype("int32").ravel(), label.astype("int32").ravel()
            check_label_shapes(label, classes)
            self.count_in(float((classes == label).sum()), len(classes))


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """The share of examples whose class is among the `top_k` with the largest scores."""

    def __init__(
        self, top_k: int = 1, name: str = "top_k_accuracy", output_names: Any = None, label_names: Any = None
    ) -> None:
        super().__init__(name, top_k=top_k, output_names=output_names, label_names=label_names, has_global_stats=True)
        self.top_k = top_k
        assert top_k > 1, "Please use Accuracy if top_k is no more than 1"
        self.name += f"_{top_k}"

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            assert pred.ndim <= 2, "Predictions should be no more than 2 dims"
            order = numpy.argpartition(pred.astype("float32"), -self.top_k)
            check_label_shapes(label, order)
            best = order if order.ndim == 1 else order[:, -self.top_k :]
            right = best == label.astype("int32").reshape(label.shape[:1] + (1,) * (best.ndim - 1))
            self.count_in(float(right.sum()), len(order))


@register
class BinaryAccuracy(EvalMetric):
    """The share of right predictions, which are 1 above a threshold."""

    versions = (2,)

    def __init__(
        self,
        name: str = "binary_accuracy",
        output_names: Any = None,
        label_names: Any = None,
        threshold: Any = 0.5,
    ) -> None:
        self.threshold = threshold
        super().__init__(name, output_names=output_names, label_names=label_names)

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            flags, label = above(pred, self.threshold).ravel(), label.astype("int32").ravel()
            check_label_shapes(label, flags)
            self.count_in(float((flags == label).sum()), len(flags))


class _OfConfusion(EvalMetric):
    """A metric of the counts of right and wrong predictions.

    In MXNet 1.x, `average` is "macro" for the mean of the scores of batches; otherwise all batches are one.
    """

    def __init__(self, confusion: Confusion, **kwargs: Any) -> None:
        self.metrics = confusion
        self.since_reset = Confusion(confusion.class_type, confusion.threshold, confusion.beta)
        super().__init__(has_global_stats=True, **kwargs)

    def score(self, confusion: Confusion) -> Any:
        raise NotImplementedError

    def update_with(self, labels: Any, preds: Any, by_batch: bool) -> None:
        for label, pred in pairs(labels, preds):
            self.metrics.add(label, pred)
            self.since_reset.add(label, pred)
        if by_batch:
            self.count_in(self.score(self.metrics), 1)
            self.metrics.reset()
            self.since_reset.reset()
            return
        self.num_inst, self.global_num_inst = self.metrics.total_examples, self.since_reset.total_examples
        self.sum_metric = self.score(self.metrics) * self.num_inst
        self.global_sum_metric = self.score(self.since_reset) * self.global_num_inst

    def reset(self) -> None:
        super().reset()
        self.since_reset.reset()

    def reset_local(self) -> None:
        super().reset_local()
        self.metrics.reset()


@register
class F1(_OfConfusion):
    """The F1 score: the harmonic mean of precision and recall."""

    def __init__(
        self,
        name: str = "f1",
        output_names: Any = None,
        label_names: Any = None,
        class_type: str = "binary",
        threshold: Any = 0.5,
        average: Any = "",
    ) -> None:
        if dialect.is_v1() and (class_type, threshold) != ("binary", 0.5):
            raise TypeError("F1 has no arguments class_type and threshold in MXNet 1.x")
        self.average = average if average != "" else "macro" if dialect.is_v1() else "micro"
        confusion = Confusion(class_type, threshold)
        super().__init__(confusion, name=name, output_names=output_names, label_names=label_names)

    def score(self, confusion: Confusion) -> Any:
        return confusion.fscores("micro" if dialect.is_v1() else self.average)

    def update(self, labels: Any, preds: Any) -> None:
        self.update_with(labels, preds, by_batch=dialect.is_v1() and self.average == "macro")


@register
class Fbeta(F1):
    """The F score that weighs recall `beta` times as much as precision."""

    versions = (2,)

    def __init__(
        self,
        name: str = "fbeta",
        output_names: Any = None,
        label_names: Any = None,
        class_type: str = "binary",
        beta: float = 1,
        threshold: Any = 0.5,
        average: Any = "micro",
    ) -> None:
        super().__init__(name, output_names, label_names, class_type, threshold, average)
        self.metrics.beta = self.since_reset.beta = beta


@register
class MCC(_OfConfusion):
    """Matthews' correlation coefficient, of two classes."""

    def __init__(
        self, name: str = "mcc", output_names: Any = None, label_names: Any = None, average: str = "macro"
    ) -> None:
        if not dialect.is_v1() and average != "macro":
            raise TypeError("MCC has no argument average in MXNet 2.x")
        self._average = average
        super().__init__(Confusion(), name=name, output_names=output_names, label_names=label_names)

    def score(self, confusion: Confusion) -> Any:
        return confusion.matthews()

    def update(self, labels: Any, preds: Any) -> None:
        self.update_with(labels, preds, by_batch=dialect.is_v1() and self._average == "macro")


@register
class PCC(EvalMetric):
    """Pearson's correlation coefficient of classes: Matthews' coefficient for any number of classes."""

    matrix: Any  # how often each class (row) was predicted for each label (column)
    global_matrix: Any

    def __init__(
        self, name: str = "pcc", output_names: Any = None, label_names: Any = None, has_global_stats: bool = True
    ) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=has_global_stats)

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            label = label.astype("int32")
            pred = (pred if pred.shape == label.shape else pred.argmax(axis=1)).astype("int32")
            size = max(int(max(pred.max(), label.max())) + 1, len(self.matrix))
            self.matrix, self.global_matrix = _grown(self.matrix, size), _grown(self.global_matrix, size)
            for matrix in (self.matrix, self.global_matrix):
                numpy.add.at(matrix, (pred.ravel(), label.ravel()), 1)
        self.num_inst += 1
        self.global_num_inst += 1

    def reset(self) -> None:
        super().reset()
        self.global_matrix = numpy.zeros((2, 2))

    def reset_local(self) -> None:
        super().reset_local()
        self.matrix = numpy.zeros((2, 2))

    def get(self) -> tuple[Any, Any]:
        return self.name, _correlation(self.matrix) if self.num_inst else float("nan")

    def get_global(self) -> tuple[Any, Any]:
        return self.name, _correlation(self.global_matrix) if self.global_num_inst else float("nan")


def _grown(matrix: Any, size: int) -> Any:
    more = size - len(matrix)
    return numpy.pad(matrix, ((0, more), (0, more)))


def _correlation(matrix: Any) -> float:
    count, rows, columns = matrix.sum(), matrix.sum(axis=1), matrix.sum(axis=0)
    spread = (rows * (count - rows)).sum() * (columns * (count - columns)).sum()
    if spread == 0:
        return float("nan")
    return float((matrix.diagonal() * count - rows * columns).sum() / spread**0.5)
