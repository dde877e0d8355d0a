"""Constant and random initial values whose scale does not depend on the shape."""

import json
from typing import Any

import numpy

from leafwise_gluon.init.draws import fill_normal, fill_uniform, write
from leafwise_gluon.init.initializer import Initializer
from leafwise_gluon.init.registry import alias, register


@register
@alias("zeros")
class Zero(Initializer):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: Any, arr: Any) -> None:
        write(arr, 0.0)


@register
@alias("ones")
class One(Initializer):
    """Ones."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: Any, arr: Any) -> None:
        write(arr, 1.0)


@register
class Constant(Initializer):
    """One value for all elements, or an array of the same shape."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: Any, arr: Any) -> None:
        write(arr, self.value)

    def dumps(self) -> str:
        value = self.value
        if not numpy.isscalar(value):
            value = numpy.asarray(value).tolist()
        return json.dumps([type(self).__name__.lower(), {"value": value}])


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale]; Gluon's default, with a scale of 0.07."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: Any, arr: Any) -> None:
        fill_uniform(arr, -self.scale, self.scale)


@register
class Normal(Initializer):
    """Normal with mean zero and standard deviation sigma."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: Any, arr: Any) -> None:
        fill_normal(arr, 0, self.sigma)
