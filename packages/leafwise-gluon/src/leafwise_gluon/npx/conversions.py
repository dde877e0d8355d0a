"""Arrays over the memory of other libraries, and what `npx` says about devices."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import refusal
from leafwise_gluon.context import as_context, gpu

__all__ = [
    "from_dlpack",
    "from_numpy",
    "get_cuda_compute_capability",
    "gpu_memory_info",
    "set_np_default_dtype",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "waitall",
]


def from_numpy(ndarray: Any, zero_copy: bool = True) -> ndarray:
    """An array over the memory of a NumPy array, or with zero_copy=False a copy."""
    if not ndarray.flags["C_CONTIGUOUS"]:
        raise ValueError("Only c-contiguous arrays are supported for zero-copy")
    return wrap(torch.from_numpy(ndarray if zero_copy else numpy.array(ndarray)))


def from_dlpack(dlpack: Any) -> ndarray:
    """An array over the memory behind a DLPack capsule."""
    return wrap(torch.utils.dlpack.from_dlpack(dlpack))


def to_dlpack_for_read(data: ndarray) -> Any:
    """A DLPack capsule over the memory of an array."""
    return plain(data).detach().__dlpack__()


to_dlpack_for_write = to_dlpack_for_read


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """The free and the total memory of a GPU, in bytes."""
    return torch.cuda.mem_get_info(gpu(device_id).torch_device)


def get_cuda_compute_capability(device: Any) -> int:
    """The compute capability of a GPU, such as 90."""
    major, minor = torch.cuda.get_device_capability(as_context(device).torch_device)
    return 10 * major + minor


def set_np_default_dtype(is_np_default_dtype: bool = True) -> bool:
    """float32 stays the default dtype; asking for NumPy's float64 is refused."""
    if is_np_default_dtype:
        raise refusal("npx.set_np_default_dtype(True)", "pass dtype='float64' where you need it")
    return False


def waitall() -> None:
    """Does nothing: unlike MXNet, PyTorch waits by itself where it has to."""
