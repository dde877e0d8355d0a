"""Metrics made of others, and of functions."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.ndarray import wrap
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.metric.base import EvalMetric, alias, as_numpy, check_label_shapes, create, register


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics in one."""

    def __init__(
        self, metrics: Any = None, name: str = "composite", output_names: Any = None, label_names: Any = None
    ) -> None:
        self.metrics: list[EvalMetric] = []
        super().__init__(name, output_names=output_names, label_names=label_names, has_global_stats=True)
        self.metrics = [create(metric) for metric in metrics or []]

    def add(self, metric: Any) -> None:
        """Adds a metric, or the one with this name."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> Any:
        """One of the metrics. As in MXNet, a wrong index returns an error, and does not raise it."""
        try:
            return self.metrics[index]
        except IndexError:
            return ValueError(f"Metric index {index} is out of range 0 and {len(self.metrics)}")

    def update_dict(self, labels: dict[str, Any], preds: dict[str, Any]) -> None:
        if self.label_names is not None:
            labels = {name: label for name, label in labels.items() if name in self.label_names}
        if self.output_names is not None:
            preds = {name: pred for name, pred in preds.items() if name in self.output_names}
        for metric in self.metrics:
            metric.update_dict(labels, preds)

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[Any, Any]:
        return _joined([metric.get() for metric in self.metrics])

    def get_global(self) -> tuple[Any, Any]:
        return _joined([metric.get_global() for metric in self.metrics])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


def _joined(results: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    names: list[Any] = []
    values: list[Any] = []
    for name, value in results:
        names.extend([name] if isinstance(name, str) else name)
        values.extend([value] if isinstance(value, int | float) else value)
    return names, values


@register
class CustomMetric(EvalMetric):
    """A metric from a function of a label and a prediction, which returns a value, or a sum and a number of examples.

    In MXNet 1.x the function gets NumPy arrays, in 2.x arrays of `mxnet.np`.
    """

    def __init__(
        self,
        feval: Any,
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Any = None,
        label_names: Any = None,
    ) -> None:
        if name is None:
            name = feval.__name__
            if "<" in name:  # a lambda
                name = f"custom({name})"
        super().__init__(
            name,
            feval=feval,
            allow_extra_outputs=allow_extra_outputs,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self._feval, self._allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        if not self._allow_extra_outputs:
            labels, preds = check_label_shapes(labels, preds, True)
        for pred, label in zip(preds, labels, strict=False):
            result = self._feval(_argument(label), _argument(pred))
            self.count_in(*(result if isinstance(result, tuple) else (result, 1)))

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("CustomMetric cannot be serialized")


def _argument(value: Any) -> Any:
    if dialect.is_v1():
        return as_numpy(value)
    tensor = value.tensor.detach() if isinstance(value, ArrayValues) else torch.as_tensor(value)
    return wrap(tensor)


def np(numpy_feval: Any, name: str | None = None, allow_extra_outputs: bool = False) -> CustomMetric:
    """A metric from a function, as `CustomMetric`."""

    def feval(label: Any, pred: Any) -> Any:
        return numpy_feval(label, pred)

    feval.__name__ = numpy_feval.__name__
    return CustomMetric(feval, name, allow_extra_outputs)
