"""Launching Triton kernels again and again with the same arguments, and the tables and copies that launches need.

An ordinary call of a kernel compares every argument, option and global with those of earlier calls, which takes longer
on the host than small kernels take on the device. `Launch` makes the first call in the ordinary way, and then uses the
compiled kernel that this call returned.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]

# The releases whose compiled kernels take the arguments in the order of the signature, constants included. With any
# other release, every call is an ordinary one.
_FIRST, _LAST = (3, 5), (3, 9)


class Launch:
    """A kernel with its arguments, to be called on the device and the stream that its tensors belong to.

    The arguments, by name, are tensors, numbers and constants; they must not change, only the values in the tensors.
    """

    def __init__(self, kernel: Any, programs: int, arguments: dict[str, Any], **options: Any) -> None:
        self._kernel, self._programs, self._arguments, self._options = kernel, programs, arguments, options
        self._again: Callable[..., None] | None = None
        self._values: list[Any] = []

    def __call__(self) -> None:
        if self._again is not None:
            self._again(*self._values)
            return
        compiled = self._kernel[(self._programs,)](**self._arguments, **self._options)
        # The interpreter compiles nothing, and returns None.
        if not hasattr(type(compiled), "__getitem__") or not _FIRST <= _release() <= _LAST:
            return
        values = [self._arguments[name] for name in self._kernel.arg_names]
        self._values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values]
        self._again = compiled[(self._programs, 1, 1)]


def _release() -> tuple[int, int]:
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def host_memory(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory for copies from or to a device: pinned for a GPU, so that copies do not wait for kernels that run already;
    ordinary memory where the system refuses that. PyTorch keeps pinned memory until copies are done."""
    # The host is named, because the default may be another device: inside `with torch.device("cuda"):`.
    if device.type == "cuda":
        with suppress(RuntimeError):  # the limit for locked memory may be reached
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)
    return torch.empty(count, dtype=dtype, device="cpu")


def copied_to(device: torch.device, arrays: list[Any]) -> list[Any]:
    """NumPy arrays as tensors on a device, by one copy, and from pinned memory, so that it does not wait for kernels
    that run already. Each begins at a multiple of 16 bytes: Triton compiles other kernels for other addresses."""
    starts = list(accumulate((-(-array.nbytes // 16) * 16 for array in arrays), initial=0))
    here = host_memory(starts.pop(), torch.uint8, device)
    bytes_here = here.numpy()
    for start, array in zip(starts, arrays, strict=True):
        bytes_here[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    there = here.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(getattr(torch, array.dtype.name))
        for start, array in zip(starts, arrays, strict=True)
    ]


def numbered(counts: Any, total: int) -> tuple[Any, Any]:
    """For each of so many elements of each array: the number of the array, and its own number in the array. `total` is
    the sum of the counts; computing it here would wait for the device."""
    arrays = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=total)
    before = counts.cumsum(0) - counts
    return arrays, torch.arange(total, device=counts.device) - before[arrays]
