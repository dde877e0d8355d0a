"""`mxnet.npx`: common functions of MXNet that NumPy does not have."""

from typing import Any

import torch

from leafwise.gluon.arrays.ndarray import ndarray, wrap
from leafwise.gluon.arrays.values import plain
from leafwise.gluon.base import missing, refusal
from leafwise.gluon.context import cpu, gpu, num_gpus
from leafwise.gluon.modes import is_np_array, is_np_shape, reset_np, set_np, use_np
from leafwise.gluon.npx import random

__all__ = ["cpu", "gpu", "num_gpus", "random", "relu", "reset_np", "set_np", "sigmoid", "softmax", "waitall"]


def relu(data: ndarray) -> ndarray:
    return wrap(torch.relu(plain(data)))


def sigmoid(data: ndarray) -> ndarray:
    return wrap(torch.sigmoid(_floating("sigmoid", data)))


def softmax(data: ndarray, length: Any = None, axis: int = -1) -> ndarray:
    if length is not None:
        raise refusal("npx.softmax with length", "use npx.softmax(data, axis=...)")
    return wrap(torch.softmax(_floating("softmax", data), dim=axis))


def _floating(name: str, data: ndarray) -> torch.Tensor:
    tensor: torch.Tensor = plain(data)
    if not tensor.dtype.is_floating_point:
        raise refusal(f"npx.{name} of integers", "use .astype('float32') first")
    return tensor


def waitall() -> None:
    """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""


_INSTEAD: dict[str, Any] = {"fully_connected": "use nn.Dense, or torch.nn.functional.linear"}
__getattr__ = missing("npx", _INSTEAD, "arrays are tensors, so use torch.nn.functional.{name} if PyTorch has it")
