"""The shapes of parameters that follow from the operations of a `hybrid_forward`, as MXNet 1.x infers them.

A copy of the block runs with stand-ins for the parameters whose shapes are not known. The functions of `nd` that get a
stand-in determine its shape from their other arguments.
"""

import copy
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from leafwise_gluon import autograd
from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.base import refusal


class UnknownValues(NDArray):
    """Stands for the values of a parameter until an operation determines its shape.

    It is an NDArray, so that Python asks it first, and not the array on the left of an operator.
    """

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter

    def values(self, shape: Any, operation: str) -> Any:
        """Zeros, now that the shape is known."""
        if shape is None or not self.parameter.merge_shape(shape) or 0 in self.parameter.known_sizes:
            raise _cannot_infer(self.parameter, operation)
        return wrap_by_mode(torch.zeros(self.parameter.known_sizes, dtype=torch_dtype(self.parameter.dtype)))

    def _operate(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        return operation(self.values(getattr(other, "shape", None), "an operator"), other)

    def __add__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: a + b)

    def __mul__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: a * b)

    def __sub__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: a - b)

    def __truediv__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: a / b)

    def __rsub__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: b - a)

    def __rtruediv__(self, other: Any) -> Any:
        return self._operate(other, lambda a, b: b / a)

    __radd__, __rmul__ = __add__, __mul__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _cannot_infer(self.parameter, f".{name}")


class ProbingFunctions:
    """The module `nd` for a probe: functions that get a stand-in determine its shape first."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return ProbingFunctions(value)
        if not callable(value) or isinstance(value, type):
            return value

        def function(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(_ARGUMENTS.get(name, ()), args, strict=False)) | kwargs
            if any(isinstance(argument, UnknownValues) for argument in (*args, *kwargs.values())):
                args = tuple(_known(argument, name, given) for argument in args)
                kwargs = {key: _known(argument, name, given) for key, argument in kwargs.items()}
            return value(*args, **kwargs)

        return function


def probe_shapes(block: Any, functions: Any, args: tuple[Any, ...]) -> None:
    """Infers the unknown shapes of a block's own parameters by running a copy of it on the inputs."""
    probe = copy.deepcopy(block)
    for parameter in probe.collect_params().values():
        parameter.defer_zeros()  # so that the copy draws no random numbers
    mine = block._reg_params
    given = {
        name: UnknownValues(parameter) if parameter.is_deferred else parameter.data()
        for name, parameter in probe._reg_params.items()
    }
    with autograd.pause():
        probe.hybrid_forward(ProbingFunctions(functions), *args, **given)
    for name, parameter in mine.items():
        parameter.merge_shape(probe._reg_params[name].known_sizes)


def _cannot_infer(parameter: Any, operation: str) -> Exception:
    return refusal(
        f"inferring the shape of {parameter.name} from {operation}",
        f"its shape is {parameter.shape}; give all of it, or define infer_shape(self, x) in the block",
    )


# -- what operations tell about the shapes of their arguments --------------------------------------------------

_Shape = tuple[int, ...]


def _known(argument: Any, operation: str, given: dict[str, Any]) -> Any:
    if not isinstance(argument, UnknownValues):
        return argument
    role = next((name for name, value in given.items() if value is argument), "")
    rule = _RULES.get(operation)
    shape = None if rule is None or isinstance(given.get("data"), UnknownValues) else rule(role, given)
    return argument.values(shape, operation)


def _dense(role: str, given: dict[str, Any]) -> _Shape:
    shape = given["data"].shape
    width = math.prod(shape[1:]) if given.get("flatten", True) else shape[-1]
    return (given["num_hidden"], width) if role == "weight" else (given["num_hidden"],)


def _convolution(role: str, given: dict[str, Any]) -> _Shape | None:
    if role != "weight":
        return (given["num_filter"],)
    layout = given.get("layout")
    if layout not in (None, "None", "NCW", "NCHW", "NCDHW"):
        return None
    return (given["num_filter"], given["data"].shape[1] // given.get("num_group", 1), *given["kernel"])


def _deconvolution(role: str, given: dict[str, Any]) -> _Shape:
    filters = given["num_filter"]
    if role != "weight":
        return (filters,)
    return (given["data"].shape[1], filters // given.get("num_group", 1), *given["kernel"])


def _embedding(role: str, given: dict[str, Any]) -> _Shape:
    return given["input_dim"], given["output_dim"]


def _along(default_axis: int) -> Callable[[str, dict[str, Any]], _Shape]:
    return lambda role, given: (given["data"].shape[given.get("axis", default_axis)],)


def _elementwise(role: str, given: dict[str, Any]) -> Any:
    return getattr(given["rhs" if role == "lhs" else "lhs"], "shape", None)


_LAYER = ("data", "weight", "bias")
_NORM = ("data", "gamma", "beta", "moving_mean", "moving_var")
_PAIR = ("lhs", "rhs")
_TABLE: dict[tuple[str, ...], tuple[tuple[str, ...], Callable[[str, dict[str, Any]], Any]]] = {
    ("FullyConnected", "fully_connected"): (_LAYER, _dense),
    ("Convolution", "convolution"): (_LAYER, _convolution),
    ("Deconvolution", "deconvolution"): (_LAYER, _deconvolution),
    ("Embedding", "embedding"): (_LAYER, _embedding),
    ("LayerNorm", "layer_norm"): (_NORM, _along(-1)),
    ("BatchNorm", "batch_norm"): (_NORM, _along(1)),
    ("InstanceNorm", "instance_norm"): (_NORM, lambda role, given: (given["data"].shape[1],)),
    ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div"): (_PAIR, _elementwise),
}
_ARGUMENTS = {name: arguments for names, (arguments, _) in _TABLE.items() for name in names}
_RULES = {name: rule for names, (_, rule) in _TABLE.items() for name in names}
