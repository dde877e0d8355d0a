"""Turns operations over plain tensors into functions and methods of NDArrays."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import differentiating
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped
from leafwise_gluon.base import MXNetError, refusal

Operation = Callable[..., Any]


def exposed(operation: Operation, name: str | None = None) -> Operation:
    """A function of NDArrays that computes with an operation over tensors; as an attribute of a class, a method.

    Its results are arrays of the class and context of its first array, or tensors if it gets only tensors. Like every
    function of `mxnet.nd`, it has the arguments `out`, an array to write the result to, and `name`, which is ignored.
    """
    title = f"nd.{name or operation.__name__}"

    @functools.wraps(operation)
    def call(*args: Any, out: Any = None, name: Any = None, **kwargs: Any) -> Any:
        arrays: list[ArrayValues] = []
        tensors = [_tensor(title, arg, arrays) for arg in args]
        named = {key: _tensor(title, value, arrays) for key, value in kwargs.items()}
        try:
            result = operation(*tensors, **named)
        except (MXNetError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, IndexError) as error:  # PyTorch's message does not name the operation
            raise MXNetError(f"{title}: {error}") from error
        except AttributeError as error:
            raise AssertionError(f"{title}: Argument must have NDArray type: {error}") from error
        except TypeError as error:
            if str(error).startswith("nd."):
                raise
            raise MXNetError(f"{title}: {error}") from error
        if out is not None:
            return _written(title, result, out)
        if not arrays:
            return result
        kind, ctx = type(arrays[0]), arrays[0].ctx
        if isinstance(result, list):
            return [wrapped(kind, part, ctx) for part in result]
        return wrapped(kind, result, ctx)

    if name is not None:
        call.__name__ = call.__qualname__ = name
    return call


def _tensor(title: str, value: Any, arrays: list[ArrayValues]) -> Any:
    if isinstance(value, ndarray):
        raise TypeError(f"{title} needs an NDArray, not an np.ndarray; use x.as_nd_ndarray()")
    if isinstance(value, ArrayValues):
        arrays.append(value)
        return plain(value)
    return value


def _written(title: str, result: Any, out: Any) -> Any:
    """Writes results to the arrays that were passed as `out`."""
    if isinstance(result, list):
        if not isinstance(out, list | tuple) or len(out) != len(result):
            raise MXNetError(f"{title} needs {len(result)} arrays as out")
        for part, target in zip(result, out, strict=True):
            write_whole(title, target, part)
        return out
    target = out[0] if isinstance(out, list | tuple) else out
    write_whole(title, target, result)
    return out


def write_whole(title: str, target: Any, result: torch.Tensor) -> None:
    """Writes a result to a whole array of the same shape and dtype, which becomes part of the graph of the result."""
    if not isinstance(target, ArrayValues):
        raise TypeError(f"{title}: out must be an NDArray, not {type(target).__name__}")
    if target.tensor.shape != result.shape or target.tensor.dtype != result.dtype:
        kinds = f"{result.dtype} of shape {tuple(result.shape)} to {target.tensor.dtype} of {target.shape}"
        raise MXNetError(f"{title}: cannot write {kinds}")
    check_not_in_graph(title, target)
    if differentiating() and result.requires_grad:
        # Views of the array share its memory, but they do not become part of the graph.
        memory = target.tensor.detach()
        memory.copy_(result.clone())
        target.tensor = memory
        return
    with torch.no_grad():
        target.tensor.detach().copy_(result)


def check_not_in_graph(title: str, target: ArrayValues) -> None:
    """Raises if operations are recorded and the array is part of a graph, or has a gradient attached."""
    if differentiating() and target.tensor.requires_grad:
        raise MXNetError(
            f"{title}: Inplace operations (+=, -=, x[:]=, etc) are not supported when recording with autograd; "
            "compute a new array, or write under autograd.pause()"
        )


def check_no_graph_enters(title: str, value: Any) -> None:
    """Raises if operations are recorded and a value to be written into a part of an array is part of a graph."""
    tensor = plain(value)
    if differentiating() and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
        raise refusal(
            f"{title} with a value that needs a gradient under autograd.record()", "use nd.concat or nd.stack"
        )
