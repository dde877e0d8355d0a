"""Statistics of tensors: on a CPU by C, on a GPU by one launch, and from elsewhere by way of a CPU."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from itertools import chain
from typing import Any

import torch

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.moments import Moments
from leafwise.core.path import escape
from leafwise.core.runs import Run
from leafwise.homes.torch import tensors
from leafwise.homes.torch.tensors import as_numpy, cannot_read, dtype_name, has_no_memory
from leafwise.kernels import cpu
from leafwise.kernels.cpu import lies_densely
from leafwise.kernels.dtypes import unknown_dtype

Counted = Callable[[int], None]
Waiting = Callable[[], list[Moments]]


class TorchMeasuring(Measuring):
    def cannot_measure(self, value: torch.Tensor) -> str:
        return cannot_read(value) or unknown_dtype(dtype_name(value.dtype)) or has_no_memory(value)

    def measure(self, values: list[torch.Tensor], histogram: bool, count: Counted) -> Waiting:
        """Has tensors looked at."""
        found: dict[torch.device, list[int]] = {}
        for number, value in enumerate(values):
            found.setdefault(value.device, []).append(number)
        # What is on a GPU first, which works on its own while the rest is looked at here.
        by_device = sorted(found.items(), key=lambda item: item[0].type == "cpu")
        waiting = []
        for device, numbers in by_device:
            its = [values[number] for number in numbers]
            there = _on_gpu(its, device, histogram) if device.type == "cuda" and _has_triton() else None
            if device.type == "cpu":
                there = _here(its, histogram)
            waiting.append(there or _from_elsewhere(its, histogram))
            count(sum(value.nbytes for value in its))
        if len(waiting) == 1:
            return waiting[0]
        places = [number for _, numbers in by_device for number in numbers]

        def wait() -> list[Moments]:
            by_place = dict(zip(places, chain.from_iterable(one() for one in waiting), strict=True))
            return [by_place[number] for number in range(len(values))]

        return wait

    def reads_parts(self, value: torch.Tensor) -> bool:
        return tensors.is_elsewhere(value)


def _is_run(value: torch.Tensor) -> bool:
    return (value.is_contiguous() or lies_densely(value.shape, value.stride())) and not value.is_neg()


def _run_of(value: torch.Tensor) -> Run:
    return Run(value.data_ptr(), value.numel(), dtype_name(value.dtype))


def _here(values: list[torch.Tensor], histogram: bool) -> Waiting:
    runs = [_run_of(value) if _is_run(value) else None for value in values]
    found = iter(cpu.measure([run for run in runs if run is not None], histogram))
    moments = [
        next(found) if run is not None else cpu.measure_arrays([as_numpy(value)], histogram, lambda count: None)[0]
        for value, run in zip(values, runs, strict=True)
    ]
    return lambda: moments


def _from_elsewhere(values: list[torch.Tensor], histogram: bool) -> Waiting:
    # One at a time, for the sake of memory.
    moments = [_here([value.detach().cpu()], histogram)()[0] for value in values]
    return lambda: moments


@cache
def _say_once(what: str) -> None:
    said = f"{what}: statistics of what is on a GPU are made on the CPU, after copying it there"
    warnings.warn(escape(said), stacklevel=2)


@cache
def _has_triton() -> bool:
    try:
        import leafwise.kernels.cuda  # noqa: F401
    except ImportError:
        _say_once("Triton is not installed")
        return False
    return True


# The last tables: of values and of gradients, on a few devices.
_tables: dict[tuple[Any, ...], Any] = {}
_MOST_TABLES = 8


def _on_gpu(values: list[torch.Tensor], device: torch.device, histogram: bool) -> Waiting | None:
    """None where Triton cannot do it, which is said once."""
    from leafwise.kernels import cuda

    kept = [value if _is_run(value) else value.detach().contiguous() for value in values]
    runs = [_run_of(value) for value in kept]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        table = _table(runs, device)
        try:
            wait = cuda.measure(table, histogram)
        except RuntimeError as error:
            if "C compiler" not in str(error):  # which Triton needs, to launch what it has compiled
                raise
            _say_once("Triton finds no C compiler")
            return None
        except PermissionError as error:
            _say_once(f"Triton cannot write {error.filename}; set TRITON_CACHE_DIR to a folder that it can write to")
            return None
    if all(one is value for one, value in zip(kept, values, strict=True)):
        return wait
    return lambda: (kept, wait())[1]  # copies live until they were looked at


def _table(runs: list[Run], device: torch.device) -> Any:
    """The table of these runs; a new one where one of them lies elsewhere than before."""
    from leafwise.kernels import cuda

    key = (device, len(runs), runs[0] if runs else None)
    table = _tables.pop(key, None)
    if table is None or table.runs != runs:
        table = cuda.table_of(runs, device)
    while len(_tables) >= _MOST_TABLES:
        del _tables[next(iter(_tables))]
    _tables[key] = table
    return table
