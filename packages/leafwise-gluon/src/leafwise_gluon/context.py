"""`mxnet.Context`, in 2.x also called Device: where arrays are. All `cpu(n)` are the same memory, as in MXNet."""

import threading
from typing import Any, ClassVar

import torch

from leafwise_gluon.base import MXNetError

_TYPES = ("cpu", "gpu", "cpu_pinned", "cpu_shared")


class Context:
    """A device, such as `cpu(0)` or `gpu(1)`. As a context manager, it is the default for new arrays.

    >>> from leafwise_gluon.context import Context, cpu
    >>> cpu(), cpu(1) == Context("cpu", 1)
    (cpu(0), True)
    """

    devtype2str: ClassVar[dict[int, str]] = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
    devstr2type: ClassVar[dict[str, int]] = {"cpu": 1, "gpu": 2, "cpu_pinned": 3, "cpu_shared": 5}
    __slots__ = ("_outer", "device_id", "device_type")

    def __init__(self, device_type: Any, device_id: int = 0) -> None:
        if isinstance(device_type, Context):
            device_type, device_id = device_type.device_type, device_type.device_id
        if device_type not in _TYPES:
            raise MXNetError(f"unknown device type {device_type!r}; use one of {', '.join(_TYPES)}")
        self.device_type: str = device_type
        self.device_id = int(device_id)
        self._outer: list[Context] = []

    @property
    def device_typeid(self) -> int:
        return self.devstr2type[self.device_type]

    @property
    def torch_device(self) -> torch.device:
        """The PyTorch device. All `cpu(n)` are the one CPU. Raises the error by which scripts find out that there is
        no such GPU."""
        if self.device_type != "gpu":
            return torch.device("cpu")
        if self.device_id >= num_gpus():
            raise MXNetError(
                f"GPU is not enabled: {self} cannot be used, PyTorch finds {num_gpus()} GPUs; use cpu(), or check "
                "num_gpus() first"
            )
        return torch.device("cuda", self.device_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return (self.device_type, self.device_id) == (other.device_type, other.device_id)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> "Context":
        self._outer.append(_DEFAULT.context)
        _DEFAULT.context = self
        return self

    def __exit__(self, *error: object) -> None:
        _DEFAULT.context = self._outer.pop()

    def empty_cache(self) -> None:
        """Frees the GPU memory that PyTorch holds for later use."""
        if self.device_type == "gpu":
            torch.cuda.empty_cache()


CPU0 = Context("cpu", 0)


class _Default(threading.local):
    context = CPU0


_DEFAULT = _Default()


def cpu(device_id: int = 0) -> Context:
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    return Context("gpu", device_id)


def num_gpus() -> int:
    return torch.cuda.device_count()


def current_context() -> Context:
    """The context of new arrays: `cpu(0)`, unless inside a `with context:` block."""
    return _DEFAULT.context


def context_of(tensor: torch.Tensor) -> Context:
    return CPU0 if tensor.device.type == "cpu" else Context("gpu", tensor.device.index or 0)


def as_context(context: Any) -> Context:
    """A Context from a Context, a torch.device or its name, or None for the current one."""
    if context is None:
        return current_context()
    if isinstance(context, Context):
        return context
    try:
        device = torch.device(context)
    except RuntimeError as error:
        raise MXNetError(f"unknown device {context!r}; use cpu() or gpu()") from error
    return Context("gpu" if device.type == "cuda" else device.type, device.index or 0)
