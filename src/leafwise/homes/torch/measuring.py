"""Statistics of tensors: on a CPU by C code, on a GPU by one kernel launch, elsewhere after a copy to the CPU."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.moments import Moments
from leafwise.core.runs import Run
from leafwise.homes.torch import tensors
from leafwise.homes.torch.launching import runs_kernels, start_kernels
from leafwise.homes.torch.tables import KeptTables, is_run, run_of
from leafwise.homes.torch.tensors import as_numpy, cannot_read, dtype_name, has_no_memory
from leafwise.kernels import cpu
from leafwise.kernels.dtypes import unknown_dtype

Count = Callable[[int], None]
Wait = Callable[[], list[Moments]]  # waits for the statistics and returns them


class TorchMeasuring(Measuring):
    def cannot_measure(self, value: torch.Tensor) -> str:
        return cannot_read(value) or unknown_dtype(dtype_name(value.dtype)) or has_no_memory(value)

    def measure(self, values: list[torch.Tensor], histogram: bool, count: Count) -> Wait:
        numbers_by_device: dict[torch.device, list[int]] = {}
        for number, value in enumerate(values):
            numbers_by_device.setdefault(value.device, []).append(number)
        # GPUs first: they work while the CPU measures the rest.
        by_device = sorted(numbers_by_device.items(), key=lambda item: item[0].type == "cpu")
        waits = []
        for device, numbers in by_device:
            tensors_there = [values[number] for number in numbers]
            wait = None
            if device.type == "cpu":
                wait = _on_cpu(tensors_there, histogram)
            elif runs_kernels(device):
                wait = _on_gpu(tensors_there, device, histogram)
            waits.append(wait or _copied_to_cpu(tensors_there, histogram))
            count(sum(value.nbytes for value in tensors_there))
        if len(waits) == 1:
            return waits[0]
        order = [number for _, numbers in by_device for number in numbers]

        def wait_for_all() -> list[Moments]:
            by_number = dict(zip(order, chain.from_iterable(wait() for wait in waits), strict=True))
            return [by_number[number] for number in range(len(values))]

        return wait_for_all

    def reads_parts(self, value: torch.Tensor) -> bool:
        return tensors.is_elsewhere(value)


def _on_cpu(values: list[torch.Tensor], histogram: bool) -> Wait:
    runs = [run_of(value) if is_run(value) else None for value in values]
    of_runs = iter(cpu.measure([run for run in runs if run is not None], histogram))
    moments = [
        next(of_runs) if run is not None else cpu.measure_arrays([as_numpy(value)], histogram, lambda count: None)[0]
        for value, run in zip(values, runs, strict=True)
    ]
    return lambda: moments


def _copied_to_cpu(values: list[torch.Tensor], histogram: bool) -> Wait:
    # One at a time, to save memory.
    moments = [_on_cpu([value.detach().cpu()], histogram)()[0] for value in values]
    return lambda: moments


def _on_gpu(values: list[torch.Tensor], device: torch.device, histogram: bool) -> Wait | None:
    """Returns None, and warns once, if Triton cannot run."""
    from leafwise.kernels import cuda

    # The memory of a copy may be freed before it is measured: what reuses it comes later on the same stream.
    runs = [value if is_run(value) else value.detach().contiguous() for value in values]
    action = "statistics of tensors on a GPU are computed"
    return start_kernels(device, lambda: cuda.measure(_tables.table(runs, device), histogram), action)


def _make_table(runs: list[Run], device: torch.device) -> Any:
    from leafwise.kernels import cuda

    return cuda.table_of(runs, device)


_tables = KeptTables(_make_table)
