"""Calls PyTorch's functions with arrays."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped


def through_torch(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls PyTorch's code with tensors in place of arrays, and returns arrays in place of tensors, of the class of the
    first array among the arguments."""
    arrays: list[ArrayValues] = []
    originals: dict[int, Any] = {}

    def to_tensor(value: Any) -> Any:
        if not isinstance(value, ArrayValues):
            return value
        arrays.append(value)
        tensor = plain(value)
        originals[id(tensor)] = (tensor, value)
        return tensor

    def to_array(value: Any) -> Any:
        if id(value) in originals:
            return originals[id(value)][1]  # an argument that was changed in place and returned
        return wrapped(type(arrays[0]), value, arrays[0].ctx) if isinstance(value, torch.Tensor) and arrays else value

    with torch.set_grad_enabled(differentiating()):
        return _mapped(to_array, func(*_mapped(to_tensor, args), **_mapped(to_tensor, kwargs)))


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(change, item) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(change, item) for item in value)
    if type(value) is dict:
        return {name: _mapped(change, item) for name, item in value.items()}
    return change(value)
