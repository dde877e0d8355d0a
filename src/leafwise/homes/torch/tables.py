"""What kernels need to know about tensors on a GPU, kept as long as the tensors stay where they are.

The same tensors are measured and clipped again and again. Preparing their table takes longer than measuring them, so
the last few are kept. A table is used again only if every tensor is still at its address, with its size and dtype.
"""

from collections.abc import Callable
from operator import attrgetter
from threading import Lock
from typing import Any, Generic, TypeVar

import torch

from leafwise.core.runs import Run
from leafwise.homes.torch.tensors import dtype_name
from leafwise.kernels.cpu import lies_densely

T = TypeVar("T")
_MOST_TABLES = 8  # values and gradients, on a few devices
_dtype = attrgetter("dtype")


def is_run(value: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill their memory without gaps, so that kernels can read them in any order."""
    return (value.is_contiguous() or lies_densely(value.shape, value.stride())) and not value.is_neg()


def run_of(value: torch.Tensor) -> Run:
    return Run(value.data_ptr(), value.numel(), dtype_name(value.dtype))


class KeptTables(Generic[T]):
    """The last tables that `make` has made, each from runs on a device. A stream has its own tables, because the memory
    of a table may only be used in the order of one stream."""

    def __init__(self, make: Callable[[list[Run], torch.device], T]) -> None:
        self._make = make
        self._kept: dict[tuple[Any, ...], tuple[list[Any], T]] = {}
        self._lock = Lock()

    def table(self, values: list[torch.Tensor], device: torch.device) -> T:
        """The table of these tensors, all of which are runs on this device."""
        addresses, sizes = list(map(torch.Tensor.data_ptr, values)), list(map(torch.Tensor.numel, values))
        facts = [addresses, sizes, list(map(_dtype, values))]
        key = (device, current_stream(device), len(values), addresses[0] if values else 0)
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None or kept[0] != facts:
                runs = list(map(run_of, values))
                kept = facts, self._make(runs, device)
            while len(self._kept) >= _MOST_TABLES:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = kept
        return kept[1]

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


def current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0
