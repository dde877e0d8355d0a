"""`mxnet.metric.EvalMetric`: the base class of metrics, and their registry."""

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy
import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.ndarray import wrap
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import refusal

_KNOWN: dict[str, type["EvalMetric"]] = {}


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Raises if labels and predictions differ in length, or in shape with `shape`; with `wrap`, returns lists."""
    ours, theirs = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if ours != theirs:
        raise ValueError(f"Shape of labels {ours} does not match shape of predictions {theirs}")
    if wrap:
        labels, preds = ([value] if isinstance(value, ArrayValues) else value for value in (labels, preds))
    return labels, preds


def as_numpy(value: Any) -> Any:
    """An array, a tensor or a NumPy array as a NumPy array."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value.asnumpy() if isinstance(value, ArrayValues) else numpy.asarray(value)


def pairs(labels: Any, preds: Any) -> Iterator[tuple[Any, Any]]:
    """Labels and predictions as NumPy arrays, in pairs."""
    labels, preds = check_label_shapes(labels, preds, True)
    for label, pred in zip(labels, preds, strict=True):
        yield as_numpy(label), as_numpy(pred)


class EvalMetric:
    """The base class of metrics. Users' own implement `update`, which adds to `sum_metric` and `num_inst`.

    >>> from leafwise_gluon import metric, np
    >>> accuracy = metric.Accuracy()
    >>> accuracy.update(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]))
    >>> accuracy.get()
    ('accuracy', 0.5)
    """

    versions: ClassVar[tuple[int, ...]] = (1, 2)  # the versions of MXNet that have it

    def __init__(self, name: str, output_names: Any = None, label_names: Any = None, **kwargs: Any) -> None:
        if dialect.version() not in self.versions:
            raise refusal(f"the metric {type(self).__name__} in MXNet {dialect.version()}.x", "it does not have it")
        self.name = str(name)
        self.output_names, self.label_names = output_names, label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self) -> dict[str, Any]:
        """The arguments with which `create` makes the same metric."""
        names = {"output_names": self.output_names, "label_names": self.label_names}
        return {**self._kwargs, "metric": type(self).__name__, "name": self.name, **names}

    def update_dict(self, label: dict[str, Any], pred: dict[str, Any]) -> None:
        """Updates with labels and predictions by name."""
        preds = list(pred.values()) if self.output_names is None else [pred[name] for name in self.output_names]
        labels = list(label.values()) if self.label_names is None else [label[name] for name in self.label_names]
        self.update(labels, preds)

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch of labels and predictions: arrays, or lists of them."""
        raise NotImplementedError

    def count_in(self, total: Any, count: Any) -> None:
        """Adds to the sum and to the number of examples, and to those since the last full reset."""
        self.sum_metric += total
        self.num_inst += count
        self.global_sum_metric += total
        self.global_num_inst += count

    def reset(self) -> None:
        """Forgets everything."""
        self.reset_local()
        self.global_num_inst: Any = 0
        self.global_sum_metric: Any = 0.0

    def reset_local(self) -> None:
        """Forgets everything but what `get_global` returns."""
        self.num_inst: Any = 0
        self.sum_metric: Any = 0.0

    def get(self) -> tuple[Any, Any]:
        """The name and the value; nan before the first update."""
        return self.name, self.value(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """The name and the value since the last full reset."""
        if not self._has_global_stats:
            return self.get()
        return self.name, self.value(self.global_sum_metric, self.global_num_inst)

    def value(self, total: Any, count: Any) -> Any:
        """The value for a sum and a number of examples."""
        if count == 0:
            return float("nan")
        mean = total / count
        if not getattr(mean, "shape", ()):
            return float(mean)
        return wrap(torch.from_numpy(mean)) if isinstance(mean, numpy.ndarray) and not dialect.is_v1() else mean

    def get_name_value(self) -> list[tuple[str, Any]]:
        """Pairs of name and value."""
        return _as_pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, Any]]:
        return _as_pairs(*self.get_global())


def _as_pairs(name: Any, value: Any) -> list[tuple[str, Any]]:
    names, values = (item if isinstance(item, list) else [item] for item in (name, value))
    return list(zip(names, values, strict=True))


# -- the registry ------------------------------------------------------------------------------------------------------


def register(klass: type[EvalMetric], name: str | None = None) -> type[EvalMetric]:
    """Makes a metric known by the name of its class, in any case."""
    assert issubclass(klass, EvalMetric), f"Can only register subclass of EvalMetric, not {klass}"
    key = (name or klass.__name__).lower()
    if key in _KNOWN and _KNOWN[key] is not klass:
        warnings.warn(
            f"New metric {klass.__module__}.{klass.__name__} registered with name {key} is overriding existing metric "
            f"{_KNOWN[key].__module__}.{_KNOWN[key].__name__}",
            stacklevel=2,
        )
    _KNOWN[key] = klass
    return klass


def alias(*names: str) -> Callable[[type[EvalMetric]], type[EvalMetric]]:
    """A decorator that makes a metric known by other names, too."""

    def decorated(klass: type[EvalMetric]) -> type[EvalMetric]:
        for name in names:
            register(klass, name)
        return klass

    return decorated


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """A metric from its name, a function of labels and predictions, a config, or a list of those.

    >>> from leafwise_gluon import metric
    >>> metric.create("acc").name
    'accuracy'
    """
    if isinstance(metric, EvalMetric):
        assert not args, "a metric that exists already takes no arguments"
        assert not kwargs, "a metric that exists already takes no arguments"
        return metric
    if isinstance(metric, type):
        return metric(*args, **kwargs)  # type: ignore[no-any-return]
    if callable(metric):
        return _KNOWN["custommetric"](metric, *args, **kwargs)
    if isinstance(metric, list):
        return _KNOWN["composite"]([create(child, *args, **kwargs) for child in metric])  # type: ignore[arg-type]
    if isinstance(metric, str) and metric.startswith(("{", "[")):
        metric = json.loads(metric)
        if isinstance(metric, list):
            return create(metric[0], **metric[1])
    if isinstance(metric, dict):
        config = dict(metric)
        return create(config.pop("metric"), *args, **config, **kwargs)
    assert isinstance(metric, str), f"metric must be of type string, got {metric}"
    klass = _KNOWN.get(metric.lower())
    assert klass is not None, f"{metric} is not registered. Please register with metric.register first"
    return klass(*args, **kwargs)
