"""Makes functions over arrays from operations over tensors: the same operation serves `npx` and `nd`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped
from leafwise_gluon.base import MXNetError
from leafwise_gluon.modes import is_np_shape

# Arguments that every operation of MXNet accepts, or many, and that do not change results.
_OF_THE_ENGINE = {"name", "cudnn_off", "cudnn_tune", "workspace"}


def over_arrays(operation: Callable[..., Any], kind: type, name: str) -> Callable[..., Any]:
    """The operation as a function over arrays of a kind, with MXNet's arguments `out` and `name`.

    Plain tensors are accepted, too, and then the results are plain tensors.
    """
    parameters = inspect.signature(operation).parameters
    takes_training = "training" in parameters
    ignored = _OF_THE_ENGINE - parameters.keys()

    @functools.wraps(operation)
    def function(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        for option in ignored & kwargs.keys():
            del kwargs[option]
        if takes_training:
            kwargs["training"] = STATE.training
        example = _example(function.__name__, kind, (*args, *kwargs.values()))
        try:
            result = operation(*map(_plain, args), **{key: _plain(value) for key, value in kwargs.items()})
        except (MXNetError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:  # PyTorch's message does not name the operation
            raise MXNetError(f"{function.__name__}: {error}") from error
        results = _like(example, result)
        return results if out is None else _written(function.__name__, out, results)

    function.__name__ = function.__qualname__ = name
    return function


def _plain(value: Any) -> Any:
    return type(value)(plain(entry) for entry in value) if type(value) in (list, tuple) else plain(value)


def _example(name: str, kind: type, values: tuple[Any, ...]) -> Any:
    """The first array or tensor among the arguments. Arrays must be of one kind, as in MXNet."""
    example = None
    for value in values:
        for entry in value if type(value) in (list, tuple) else (value,):
            # An ndarray counts as an instance of NDArray, but is not accepted as one.
            if isinstance(entry, ArrayValues) and kind not in type(entry).__mro__:
                convert = "as_np_ndarray" if kind.__name__ == "ndarray" else "as_nd_ndarray"
                raise TypeError(
                    f"Operator `{name}` needs arrays of class {kind.__name__}, not {type(entry).__name__}; "
                    f"use .{convert}()"
                )
            if example is None and isinstance(entry, ArrayValues | torch.Tensor):
                example = entry
    if example is None:
        raise TypeError(f"Operator `{name}` needs an array, not {', '.join(type(value).__name__ for value in values)}")
    return example


def _like(example: Any, result: Any) -> Any:
    if isinstance(result, list | tuple):
        return [_like(example, entry) for entry in result]
    if not isinstance(example, ArrayValues):
        return result
    if not result.ndim and not is_np_shape():
        result = result.reshape(1)  # without shape mode, MXNet has no arrays of shape ()
    return wrapped(type(example), result, example.ctx)


def _written(name: str, out: Any, results: Any) -> Any:
    """Writes results into the arrays that the caller gave for them."""
    targets, sources = (side if isinstance(side, list | tuple) else [side] for side in (out, results))
    for target, source in zip(targets, sources, strict=False):
        if target.shape != source.shape:
            raise MXNetError(f"{name}: out has shape {target.shape}, but the result has shape {source.shape}")
        with torch.no_grad():
            target.tensor.copy_(plain(source))
    return out
