"""`mxnet.gluon.Constant`: a parameter that is not trained."""

import warnings
from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.class_names import shown_as
from leafwise_gluon.init import Initializer
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.nd.creation import array as nd_array
from leafwise_gluon.np.creation import array as np_array
from leafwise_gluon.parameter.handle import Parameter


class Given(Initializer):
    """Writes the value of a constant."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def _init_weight(self, name: Any, arr: Any) -> None:
        with torch.no_grad():
            arr.tensor.copy_(self.value.tensor)


@shown_as("Constant")
class ConstantParameter(Parameter):
    """A parameter that keeps its value: `Constant(value)` in MXNet 2.x, `Constant(name, value)` in 1.x.

    >>> from leafwise_gluon import Constant
    >>> c = Constant([[1, 2], [3, 4]])
    >>> c.initialize()
    >>> c.data()
    array([[1., 2.],
           [3., 4.]])
    >>> c.grad_req
    'null'
    """

    def __init__(self, *name_and_value: Any, **keywords: Any) -> None:
        names = ("name", "value") if dialect.is_v1() else ("value",)
        given = dict(zip(names, name_and_value, strict=False)) | keywords
        if len(name_and_value) > len(names) or set(given) != set(names):
            raise TypeError(f"Constant takes the arguments {' and '.join(names)} in this version of MXNet")
        value = given["value"]
        if not isinstance(value, ArrayValues):
            value = np_array(value) if is_np_array() else nd_array(value)
        self.value = value
        super().__init__(
            given.get("name", "const"), grad_req="null", shape=value.shape, dtype=value.dtype, init=Given(value)
        )

    def __repr__(self) -> str:
        return super().__repr__().replace("Parameter", "Constant", 1)

    @property
    def grad_req(self) -> str:
        return "null"

    @grad_req.setter
    def grad_req(self, grad_req: str) -> None:
        if grad_req != "null":
            warnings.warn(
                f'Constant parameter "{self.name}" does not support grad_req other than "null", and new value '
                f'"{grad_req}" is ignored.',
                stacklevel=2,
            )


Constant = ConstantParameter
