"""`mxnet.init`: initializers, with MXNet's numbers."""

import json
import math
from typing import Any

import torch

from leafwise.gluon.arrays.ndarray import ndarray
from leafwise.gluon.arrays.values import ArrayValues, plain
from leafwise.gluon.base import missing
from leafwise.gluon.np import random

_REGISTERED: dict[str, type["Initializer"]] = {}


def register(cls: type["Initializer"]) -> type["Initializer"]:
    """Registers an initializer under its lower-case name."""
    _REGISTERED[cls.__name__.lower()] = cls
    return cls


class Initializer:
    """The base class. A subclass implements `_init_weight(name, array)`, which writes into the array in place.

    >>> from leafwise.gluon import init, nn
    >>> class Halves(init.Initializer):
    ...     def _init_weight(self, name, arr):
    ...         arr[:] = 0.5
    >>> layer = nn.Dense(1, in_units=2)
    >>> layer.initialize(Halves())
    >>> layer.weight.data()
    array([[0.5, 0.5]])
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs

    def dumps(self) -> str:
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def init_weight(self, name: str, arr: ndarray) -> None:
        self._init_weight(name, arr)

    __call__ = init_weight

    def _init_weight(self, name: str, arr: ndarray) -> None:
        raise NotImplementedError("Must override it")


def create(initializer: Any) -> Initializer:
    """Returns the initializer with this name; an initializer is returned unchanged."""
    if isinstance(initializer, Initializer):
        return initializer
    assert isinstance(initializer, str), "initializer must be of string type"
    registered = _REGISTERED.get(initializer.lower())
    assert registered is not None, f"{initializer} is not registered. Please register with initializer.register first"
    return registered()


def _write(arr: ndarray, values: Any) -> None:
    with torch.no_grad():
        plain(arr).copy_(plain(values))


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale]; Gluon's default, with a scale of 0.07."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, arr: ndarray) -> None:
        _write(arr, random.uniform(-self.scale, self.scale, arr.shape))


@register
class Normal(Initializer):
    """Normal with mean zero and standard deviation sigma."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: str, arr: ndarray) -> None:
        _write(arr, random.normal(0, self.sigma, arr.shape))


@register
class Constant(Initializer):
    """One value for all elements, or an array of the same shape."""

    def __init__(self, value: Any = 0.0) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: ndarray) -> None:
        value = self.value
        _write(
            arr,
            value if isinstance(value, ArrayValues | torch.Tensor) else torch.as_tensor(value, dtype=plain(arr).dtype),
        )


@register
class Zero(Constant):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__(0.0)


@register
class One(Constant):
    """Ones."""

    def __init__(self) -> None:
        super().__init__(1.0)


_REGISTERED |= {"zeros": Zero, "ones": One, "gaussian": Normal}


@register
class Xavier(Initializer):
    """Xavier (Glorot) initialization: the scale depends on fan-in, fan-out or their average."""

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, float(magnitude)

    def _init_weight(self, name: str, arr: ndarray) -> None:
        if arr.ndim < 2:
            raise ValueError(f"Xavier initializer cannot be applied to vector {name}. It requires at least 2D.")
        space = math.prod(arr.shape[2:])
        fan_in, fan_out = arr.shape[1] * space, arr.shape[0] * space
        factors = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}
        if self.factor_type not in factors:
            raise ValueError("Incorrect factor type")
        scale = math.sqrt(self.magnitude / factors[self.factor_type])
        if self.rnd_type == "uniform":
            _write(arr, random.uniform(-scale, scale, arr.shape))
        elif self.rnd_type == "gaussian":
            _write(arr, random.normal(0, scale, arr.shape))
        else:
            raise ValueError("Unknown random type")


__getattr__ = missing(
    "init",
    {},
    "use Uniform, Normal, Zero, One, Constant or Xavier, or write a subclass of Initializer",
)
