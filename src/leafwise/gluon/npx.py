"""`mxnet.npx`: common functions of MXNet that NumPy does not have."""

from typing import Any

import torch

from leafwise.gluon import random
from leafwise.gluon.array import ndarray, wrap
from leafwise.gluon.array_values import plain
from leafwise.gluon.base import missing, refusal

__all__ = ["cpu", "gpu", "num_gpus", "random", "relu", "reset_np", "set_np", "sigmoid", "softmax", "waitall"]


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Does nothing: the front end always has NumPy semantics. float64 cannot be made the default dtype."""
    if dtype:
        raise refusal("npx.set_np(dtype=True)", "float32 is always the default; pass dtype='float64' where you need it")


def reset_np() -> None:
    """Does nothing: the front end does not have the arrays of MXNet 1.x."""


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


def cpu(device_id: int = 0) -> torch.device:
    return torch.device("cpu")


def gpu(device_id: int = 0) -> torch.device:
    return torch.device("cuda", device_id)


def num_gpus() -> int:
    return torch.cuda.device_count()


def waitall() -> None:
    """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""


_INSTEAD: dict[str, Any] = {"fully_connected": "use nn.Dense, or torch.nn.functional.linear"}
__getattr__ = missing("npx", _INSTEAD, "arrays are tensors, so use torch.nn.functional.{name} if PyTorch has it")
