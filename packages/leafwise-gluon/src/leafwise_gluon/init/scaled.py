"""Random initial values whose scale depends on the shape of the parameter."""

import math
from typing import Any

import numpy

from leafwise_gluon.class_names import shown_as
from leafwise_gluon.init.draws import draw, fill_normal, fill_uniform, write
from leafwise_gluon.init.initializer import Initializer, bilinear_kernel
from leafwise_gluon.init.registry import register
from leafwise_gluon.modes import np_array


@register
class Xavier(Initializer):
    """Xavier (Glorot) initialization: the scale depends on fan-in, fan-out or their average."""

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, float(magnitude)

    def _init_weight(self, name: Any, arr: Any) -> None:
        if arr.ndim < 2:
            raise ValueError(f"Xavier initializer cannot be applied to vector {name}. It requires at least 2D.")
        space = math.prod(arr.shape[2:])
        fan_in, fan_out = arr.shape[1] * space, arr.shape[0] * space
        factors = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}
        if self.factor_type not in factors:
            raise ValueError("Incorrect factor type")
        scale = math.sqrt(self.magnitude / factors[self.factor_type])
        if self.rnd_type == "uniform":
            fill_uniform(arr, -scale, scale)
        elif self.rnd_type == "gaussian":
            fill_normal(arr, 0, scale)
        else:
            raise ValueError("Unknown random type")


@register
class MSRAPrelu(Xavier):
    """Initialization for layers followed by a (P)ReLU with this slope (He et al. 2015)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
@shown_as("Orthogonal")
class OrthogonalMatrix(Initializer):
    """A random orthogonal matrix (Saxe et al. 2013)."""

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale, self.rand_type = scale, rand_type

    def _init_weight(self, name: Any, arr: Any) -> None:
        shape = (arr.shape[0], math.prod(arr.shape[1:]))
        bounds = {"uniform": (-1.0, 1.0), "normal": (0.0, 1.0)}[self.rand_type]
        with np_array(False):  # MXNet draws from the stream of nd here in both modes
            drawn = draw(self.rand_type, *bounds, shape).asnumpy()
        left, _, right = numpy.linalg.svd(drawn, full_matrices=False)
        chosen = left if left.shape == drawn.shape else right
        write(arr, self.scale * chosen.reshape(arr.shape))


@register
class Bilinear(Initializer):
    """Bilinear upsampling, for transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name: Any, arr: Any) -> None:
        write(arr, bilinear_kernel(arr.shape))


Orthogonal = OrthogonalMatrix
