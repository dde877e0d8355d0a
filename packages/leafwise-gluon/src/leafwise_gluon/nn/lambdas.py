"""Functions as layers, the identity, and layers side by side."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.block import Block, HybridBlock
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.nn.containers import HybridSequential, Sequential


def _named(function: str) -> Callable[..., Any]:
    """A function by its name: of `nd` in MXNet 1.x, of `np` or `npx` in 2.x."""
    from leafwise_gluon import nd, np, npx  # they import the layers' operations

    if is_v1():
        assert hasattr(nd, function), f"Function name {function} is not found in ndarray."
        return getattr(nd, function)  # type: ignore[no-any-return]
    for module in (np, npx):
        if hasattr(module, function):
            return getattr(module, function)  # type: ignore[no-any-return]
    raise Exception(f"Function name {function} is not found in np/npx.")  # MXNet raises the same class


def _checked(function: Any) -> Any:
    if not callable(function):
        raise ValueError(f"Unrecognized function in lambda: {function} of type {type(function)}")
    return function


class Lambda(Block):
    """A function, or the name of one, as a layer.

    >>> from leafwise_gluon import nn, np
    >>> nn.Lambda("tanh")(np.zeros(2))
    array([0., 0.])
    """

    def __init__(self, function: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._func_impl = _named(function) if isinstance(function, str) else _checked(function)

    def forward(self, *args: Any) -> Any:
        return self._func_impl(*args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_impl.__name__})"


class HybridLambda(HybridBlock):
    """A function as a layer. In MXNet 1.x, a function gets the module `nd` as its first argument, F."""

    def __init__(self, function: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        is_name = isinstance(function, str)
        self._func = _named(function) if is_name else _checked(function)
        self._func_name = function if is_name else function.__name__
        self._takes_module = not is_name and self._scope is not None

    def forward(self, x: Any, *args: Any) -> Any:
        if not self._takes_module:
            return self._func(x, *args)
        from leafwise_gluon import nd

        return self._func(nd, x, *args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


class Identity(HybridBlock):
    """Returns its input."""

    def forward(self, x: Any) -> Any:
        return x


def _side_by_side(layers: Any, x: Any, axis: int) -> Any:
    outputs = [layer(x) for layer in layers]
    return wrap_like(outputs[0], torch.cat([plain(output) for output in outputs], axis))


class Concatenate(Sequential):
    """Calls each of its blocks with the same input, and concatenates their results along an axis."""

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return _side_by_side(self, x, self.axis)


class HybridConcatenate(HybridSequential):
    """The same as Concatenate, for hybrid blocks."""

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return _side_by_side(self, x, self.axis)


class Concurrent(Concatenate):
    """The name of Concatenate in `gluon.contrib.nn` of MXNet 1.x."""


class HybridConcurrent(HybridConcatenate):
    """The name of HybridConcatenate in `gluon.contrib.nn` of MXNet 1.x."""
