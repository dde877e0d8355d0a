"""Statistics of tensors: on a CPU by C code, on a GPU by one kernel launch, elsewhere after a copy to the CPU."""

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from leafwise.core.capabilities.measuring import Measuring, PendingMeasurement
from leafwise.core.home import Spec
from leafwise.core.results.moments import Moments
from leafwise.core.work.progress import Count
from leafwise.homes.torch import tensors
from leafwise.homes.torch.gpu.launching import check_not_capturing, lend_to_current_stream, runs_kernels, start_kernels
from leafwise.homes.torch.gpu.tables import KeptTables, is_run, run_of
from leafwise.homes.torch.tensors import as_numpy, cannot_read, dtype_name, has_no_memory, positions_by_key
from leafwise.kernels import cpu
from leafwise.kernels.dtypes import KERNELS, unknown_dtype

# The dtypes that kernels know.
_MEASURED = {dtype for name in KERNELS if isinstance(dtype := getattr(torch, name, None), torch.dtype)}
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
Wait = Callable[[], list[Moments]]  # waits for the statistics and returns them


class _Prepared(NamedTuple):
    """Tensors on a GPU that can be measured."""

    table: Any
    specs: list[Spec]


# The last tensors that were measured on a GPU.
_tables: KeptTables[_Prepared] = KeptTables()


class TorchMeasuring(Measuring):
    def cannot_measure(self, value: torch.Tensor) -> str:
        if _is_ordinary(value):
            return ""
        return cannot_read(value) or unknown_dtype(dtype_name(value.dtype)) or has_no_memory(value)

    def measure_again(self, values: list[torch.Tensor], histogram: bool) -> PendingMeasurement | None:
        if not values or not runs_kernels(values[0].device):
            return None
        check_not_capturing("measure values")
        prepared = _tables.find(values)
        wait = None
        if prepared is not None:
            with suppress(torch.OutOfMemoryError):
                wait = _started(prepared, values, values[0].device, histogram)
        return None if prepared is None or wait is None else PendingMeasurement(wait, prepared.specs)

    def measure(self, values: list[torch.Tensor], histogram: bool, count: Count) -> Wait:
        # GPUs first: they work while the CPU measures the rest.
        numbers_by_device = positions_by_key(value.device for value in values)
        by_device = sorted(numbers_by_device.items(), key=lambda item: item[0].type == "cpu")
        waits = []
        for device, numbers in by_device:
            tensors_there = [values[number] for number in numbers]
            if device.type == "cuda":
                check_not_capturing("measure values")
            wait = None
            if runs_kernels(device):
                with suppress(torch.OutOfMemoryError):  # for tables and results; then values are copied to the CPU
                    wait = self.on_gpu(tensors_there, device, histogram)
            if wait is None:
                wait = (_on_cpu if device.type == "cpu" else _copied_to_cpu)(tensors_there, histogram)
            waits.append(wait)
            count(sum(value.nbytes for value in tensors_there))
        if len(waits) == 1:
            return waits[0]
        order = [number for _, numbers in by_device for number in numbers]

        def wait_for_all() -> list[Moments]:
            by_number = dict(zip(order, chain.from_iterable(wait() for wait in waits), strict=True))
            return [by_number[number] for number in range(len(values))]

        return wait_for_all

    def on_gpu(self, values: list[torch.Tensor], device: torch.device, histogram: bool) -> Wait | None:
        """Starts the kernels. Returns None, and warns once, if Triton cannot run."""
        from leafwise.kernels.triton import cuda

        # The memory of a copy may be freed before it is measured: what reuses it comes later on the same stream.
        runs = [value if is_run(value) else value.detach().resolve_neg().contiguous() for value in values]

        def prepare() -> _Prepared:
            return _Prepared(cuda.table_of(list(map(run_of, runs)), device), self.home.specs(runs))

        return _started(_tables.get(runs, prepare), runs, device, histogram)

    def reads_parts(self, value: torch.Tensor) -> bool:
        return tensors.is_elsewhere(value)


def _is_ordinary(value: torch.Tensor) -> bool:
    """Whether a tensor can certainly be measured: a quick check, as there may be thousands of them."""
    if type(value) not in (nn.Parameter, torch.Tensor) or value.__dict__ or value.dtype not in _MEASURED:
        return False
    if value.layout != torch.strided or value.is_nested or _is_wrapped(value) or not value.is_contiguous():
        return False
    end = (value.storage_offset() + value.numel()) * value.itemsize
    return (value.is_cuda or value.is_cpu) and value.data_ptr() != 0 and value.untyped_storage().nbytes() >= end


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


def _started(prepared: _Prepared, values: list[torch.Tensor], device: torch.device, histogram: bool) -> Wait | None:
    from leafwise.kernels.triton import cuda

    lend_to_current_stream(values, device)
    action = "statistics of tensors on a GPU are computed"
    return start_kernels(device, lambda: cuda.measure(prepared.table, histogram), action)
