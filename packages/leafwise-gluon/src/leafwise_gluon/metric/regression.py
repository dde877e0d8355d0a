"""Metrics of numbers: errors, distances, correlation."""

import math
from typing import Any

import numpy

from leafwise_gluon import dialect
from leafwise_gluon.base import MXNetError
from leafwise_gluon.metric.base import EvalMetric, alias, check_label_shapes, pairs, register


class _MeanOfErrors(EvalMetric):
    """An error whose mean is the metric: in MXNet 1.x the mean of batches, in 2.x of examples."""

    def __init__(self, name: str, output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True)

    def errors(self, difference: Any) -> Any:
        raise NotImplementedError

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            if dialect.is_v1():
                label, pred = (array.reshape(-1, 1) if array.ndim == 1 else array for array in (label, pred))
                self.count_in(self.of_batch(float(self.errors(_difference(label, pred)).mean())), 1)
            else:
                errors = self.errors(_difference(label, pred))
                self.count_in(float(errors.reshape(len(label), -1).mean(axis=-1).sum()), len(label))

    def of_batch(self, mean: float) -> float:
        return mean


def _difference(label: Any, pred: Any) -> Any:
    try:
        return label - pred
    except ValueError as error:
        raise MXNetError(f"labels of shape {label.shape} do not fit predictions of shape {pred.shape}") from error


@register
class MAE(_MeanOfErrors):
    """The mean absolute error."""

    def __init__(self, name: str = "mae", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)

    def errors(self, difference: Any) -> Any:
        return numpy.abs(difference)


@register
class MSE(_MeanOfErrors):
    """The mean squared error."""

    def __init__(self, name: str = "mse", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)

    def errors(self, difference: Any) -> Any:
        return difference**2.0


@register
class RMSE(MSE):
    """The root of the mean squared error; in MXNet 1.x, the mean of the roots of batches."""

    def __init__(self, name: str = "rmse", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)

    def of_batch(self, mean: float) -> float:
        return math.sqrt(mean)

    def value(self, total: Any, count: Any) -> Any:
        mean = super().value(total, count)
        return mean if dialect.is_v1() else math.sqrt(mean)


@register
class MeanPairwiseDistance(EvalMetric):
    """The mean distance of labels and predictions, in the p-norm."""

    versions = (2,)

    def __init__(self, name: str = "mpd", output_names: Any = None, label_names: Any = None, p: float = 2) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names)
        self.p = p

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            label, pred = (array.reshape(len(array), -1) for array in (label, pred))
            distances = (_difference(label, pred) ** self.p).sum(axis=-1) ** (1.0 / self.p)
            self.count_in(float(distances.sum()), len(label))


@register
class MeanCosineSimilarity(EvalMetric):
    """The mean cosine similarity of labels and predictions."""

    versions = (2,)

    def __init__(
        self, name: str = "cos_sim", output_names: Any = None, label_names: Any = None, eps: float = 1e-8
    ) -> None:
        super().__init__(name, output_names=output_names, label_names=label_names)
        self.eps = eps

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            label, pred = (array.reshape(1, -1) if array.ndim == 1 else array for array in (label, pred))
            norms = numpy.linalg.norm(label, axis=-1) * numpy.linalg.norm(pred, axis=-1)
            similarity = (label * pred).sum(axis=-1) / numpy.maximum(norms, self.eps)
            self.count_in(float(similarity.sum()), label.size // label.shape[-1])


@register
@alias("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Pearson's correlation coefficient. In MXNet 1.x, `average` is "macro" for the mean of batches, or "micro"."""

    def __init__(
        self, name: str = "pearsonr", output_names: Any = None, label_names: Any = None, average: str = "macro"
    ) -> None:
        if not dialect.is_v1() and average != "macro":
            raise TypeError("PearsonCorrelation has no argument average in MXNet 2.x")
        self.average = average if dialect.is_v1() else "micro"
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True)

    def reset(self) -> None:
        super().reset()
        self._label, self._pred = _Spread(), _Spread()
        self._covariance = 0.0

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in pairs(labels, preds):
            check_label_shapes(label, pred, False, True)
            label, pred = label.ravel().astype("float64"), pred.ravel().astype("float64")
            if self.average == "macro":
                self.count_in(float(numpy.corrcoef(pred, label)[0, 1]), 1)
                continue
            self.count_in(0.0, 1)
            self._label.add(label)
            self._covariance += float(((label - self._label.mean) * (pred - self._pred.mean)).sum())
            self._pred.add(pred)

    def get(self) -> tuple[Any, Any]:
        if self.average == "macro" or self.num_inst == 0:
            return super().get()
        return self.name, self._covariance / math.sqrt(self._label.squares * self._pred.squares)


class _Spread:
    """The mean and the sum of squared deviations of values that come in batches."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Any) -> None:
        self.count += len(values)
        before = values - self.mean
        self.mean += float((before / self.count).sum())
        self.squares += float((before * (values - self.mean)).sum())
