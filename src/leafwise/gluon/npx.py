"""`mxnet.npx`: common functions that MXNet has beyond NumPy's."""

from typing import Any

import torch

from leafwise.gluon import random
from leafwise.gluon.array import ndarray, wrap
from leafwise.gluon.array_values import plain
from leafwise.gluon.base import MXNetError, missing, refusal

__all__ = ["cpu", "gpu", "num_gpus", "random", "relu", "reset_np", "set_np", "sigmoid", "softmax", "waitall"]


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """The front end always has NumPy semantics; float64 cannot be the default dtype."""
    if dtype:
        raise MXNetError("the Gluon front end has float32 as its default; give dtype='float64' where you want it")


def reset_np() -> None:
    """Does nothing: the front end does not have the arrays of MXNet 1.x."""


def relu(data: ndarray) -> ndarray:
    return wrap(torch.relu(plain(data)))


def sigmoid(data: ndarray) -> ndarray:
    return wrap(torch.sigmoid(_floating("sigmoid", data)))


def softmax(data: ndarray, length: Any = None, axis: int = -1) -> ndarray:
    if length is not None:
        raise MXNetError("the Gluon front end has no npx.softmax with length; write softmax(data, axis=...)")
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
    """Does nothing: MXNet computes asynchronously, and here everything has been computed."""


_INSTEAD: dict[str, Any] = {"fully_connected": "use nn.Dense, or torch.nn.functional.linear"}
__getattr__ = missing("npx", _INSTEAD, "arrays are tensors: torch.nn.functional.{name} may do it")
