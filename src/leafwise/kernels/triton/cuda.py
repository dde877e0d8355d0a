"""Statistics of arrays on a GPU: one launch for all of them, and one copy back."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch

from leafwise.core.dtypes import is_float
from leafwise.core.memory.runs import Run
from leafwise.core.results.moments import COUNTS, NUMBERS, Moments, none_finite
from leafwise.kernels.cpu import trimmed
from leafwise.kernels.dtypes import (
    KERNELS,
    check_known,
    exact_extremes,
    is_byte_float,
    is_whole,
    item_bytes,
    smallest_normal,
    values_of_bytes,
)
from leafwise.kernels.triton.launches import Launch, copied_to, host_memory, numbered
from leafwise.kernels.triton.triton_kernels import FIELDS, ROWS, fold_chunks, measure_carefully, measure_whole_chunks

CHUNK = 1 << 16  # a multiple of eight blocks
# Elements that a program processes at a time, and the number of warps. Fewer with the histogram, which needs more
# registers. With 256, its fields of eight bits overflow if all values of a lane have the same exponent; that is
# detected, and the chunk is measured again. With fewer elements, that would be common.
_BLOCK, _WARPS = 1024, 8
_BLOCK_WITH_HISTOGRAM, _WARPS_WITH_HISTOGRAM = 256, 4
_CAREFUL_BLOCK, _CAREFUL_WARPS = 1024, 8
_CAREFUL_PROGRAMS = 1056  # eight for each multiprocessor of a large GPU
_BINS = 256
# The rows of the result that have counts, and integers.
_COUNTED = [ROWS.index(name) for name in COUNTS[1:]]
_FINITE, _EXPONENT = ROWS.index("finite"), ROWS.index("exponent")
_WHOLE = [ROWS.index(name) for name in ("whole_min", "whole_max")]


class RunTable:
    """Where arrays are on a device, in chunks, with what measuring them needs. It can be used again, on the stream that
    was the current one, as long as no array moves."""

    def __init__(self, runs: Sequence[Run], device: Any, chunk: int) -> None:
        dtypes = {dtype: number for number, dtype in enumerate(dict.fromkeys(run.dtype for run in runs))}
        dtype_of = np.array([dtypes[run.dtype] for run in runs], np.int64)

        def by_dtype(facts: Callable[[str], float], kind: Any) -> Any:
            return np.array([facts(dtype) for dtype in dtypes] or [0], kind)[dtype_of]

        addresses = np.array([run.address for run in runs], np.int64)
        sizes = np.array([run.size for run in runs], np.int64)
        kinds, items = by_dtype(KERNELS.__getitem__, np.int32), by_dtype(item_bytes, np.int64)
        narrow = by_dtype(lambda dtype: is_float(dtype) and item_bytes(dtype) <= 4, bool)
        counts = -(-sizes // chunk)
        whole = np.where(narrow & (addresses % 16 == 0), sizes // chunk, 0)  # full chunks of floats of at most 32 bits
        self.runs, self.device, self.chunk = list(runs), torch.device(device), chunk
        self.kinds = sum(1 << int(kind) for kind in set(kinds.tolist()))  # one bit for each kind that occurs
        self.is_long = bool((sizes >= 1 << 31).any())  # whether counts may need more than 32 bits
        self.chunks, self.whole_count = int(counts.sum()), int(whole.sum())
        self.careful_count = self.chunks - self.whole_count
        self.first_chunks = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # and the number of all chunks
        # For each array.
        here = {
            "addresses": addresses, "sizes": sizes, "items": items, "counts": counts, "whole": whole,
            "first_chunks": self.first_chunks, "kinds": kinds, "tinies": by_dtype(smallest_normal, np.float64),
            "values": _byte_values(runs),  # of the 256 bytes, for floats of a byte
        }  # fmt: skip
        there = dict(zip(here, copied_to(self.device, list(here.values())), strict=True))
        self.on_device = there | self._chunk_tables(there)
        self.lock = Lock()  # held while a thread launches kernels that use the memory of this table
        self._passes: dict[bool, _Pass] = {}

    def _chunk_tables(self, there: dict[str, Any]) -> dict[str, Any]:
        """The tables with a row for each chunk, which are computed on the device, because there may be 100,000 chunks:
        its array, address and size; and the numbers of the chunks for each of the two kernels."""
        first_chunks, whole, counts = there["first_chunks"][:-1], there["whole"], there["counts"]
        arrays, in_array = numbered(counts, self.chunks)
        of_whole, whole_in_array = numbered(whole, self.whole_count)
        of_careful, careful_in_array = numbered(counts - whole, self.careful_count)
        starts = in_array * self.chunk
        return {
            "arrays": arrays.int(),
            "addresses": there["addresses"][arrays] + starts * there["items"][arrays],
            "sizes": (there["sizes"][arrays] - starts).clamp(max=self.chunk).int(),
            "whole": (first_chunks[of_whole] + whole_in_array).int(),
            "careful": ((first_chunks + whole)[of_careful] + careful_in_array).int(),
        }

    def prepared(self, histogram: bool) -> "_Pass":
        """What measures the arrays, with or without the histogram."""
        if histogram not in self._passes:
            self._passes[histogram] = _Pass(self, histogram)
        return self._passes[histogram]


def _byte_values(runs: Sequence[Run]) -> Any:
    dtypes = [run.dtype for run in runs]
    return values_of_bytes(dtypes) if any(map(is_byte_float, dtypes)) else np.zeros(1, np.float32)


def table_of(runs: Sequence[Run], device: Any, chunk: int = CHUNK) -> RunTable:
    """The table of arrays that are all on one device."""
    check_known({run.dtype for run in runs})
    if chunk % (8 * max(_BLOCK, _BLOCK_WITH_HISTOGRAM)):
        raise ValueError(f"a chunk is a multiple of eight blocks, and {chunk} is not")
    return RunTable(runs, device, chunk)


class _Pass:
    """The launches that measure the arrays of a table, and the memory that they write to."""

    def __init__(self, table: RunTable, histogram: bool) -> None:
        arrays, chunks = len(table.runs), table.chunks
        by_chunk = torch.empty((FIELDS + 1) * chunks, dtype=torch.int64, device=table.device)
        # Results, a counter and the histograms are in one piece of memory, so that they are cleared and copied at once.
        at = FIELDS * arrays
        self.words = at + 1 + (_BINS * arrays // (1 if table.is_long else 2) if histogram else 0)
        self.results = torch.empty(self.words, dtype=torch.int64, device=table.device)
        counter, bins = self.results[at:], self.results[at + 1 :]
        bins = bins if table.is_long else bins.view(torch.int32)
        tables = table.on_device
        shared = {
            **{name: tables[name] for name in ("addresses", "arrays", "kinds", "tinies", "values")},
            "by_chunk": by_chunk, "histograms": bins, "counter": counter, "chunks": chunks,
            "KINDS": table.kinds, "HISTOGRAM": histogram,
        }  # fmt: skip
        self.launches: list[Launch] = []
        if table.whole_count:
            block, warps = (_BLOCK_WITH_HISTOGRAM, _WARPS_WITH_HISTOGRAM) if histogram else (_BLOCK, _WARPS)
            given = {"chunks_to_measure": tables["whole"], **shared, "CHUNK": table.chunk, "BLOCK": block}
            self._add(measure_whole_chunks, table.whole_count, given, warps)
        if chunks:
            given = {"chunks_to_measure": tables["careful"], "already": table.careful_count, "sizes": tables["sizes"]}
            given |= {**shared, "BLOCK": _CAREFUL_BLOCK}
            self._add(measure_carefully, min(chunks, _CAREFUL_PROGRAMS), given, _CAREFUL_WARPS)
        if arrays:
            given = {"by_chunk": by_chunk, "chunks": chunks, "first_chunks": tables["first_chunks"]}
            given |= {"results": self.results, "arrays": arrays, "BLOCK": 128 if chunks > 32 * arrays else 32}
            self._add(fold_chunks, arrays, given, 1)
        self.spare: list[tuple[Any, Any]] = []  # memory of the host and events, for reuse

    def _add(self, kernel: Any, programs: int, arguments: dict[str, Any], warps: int) -> None:
        self.launches.append(Launch(kernel, programs, arguments, num_warps=warps, enable_fp_fusion=True))

    def start(self) -> None:
        self.results.zero_()
        for launch in self.launches:
            launch()

    def copy(self) -> tuple[Any, Any]:
        """Starts copying the results to memory of the host that a GPU can write to; with the event that it is done."""
        try:
            copied, done = self.spare.pop()
        except IndexError:
            copied = host_memory(self.words, torch.int64, self.results.device)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.copy_(self.results, non_blocking=True)
        done.record()
        return copied, done


def measure(table: RunTable, histogram: bool = True) -> Callable[[], list[Moments]]:
    """Starts measuring the arrays of a table. The function that it returns waits for the result."""
    with table.lock:  # until the results are copied, because the next call clears them
        measuring = table.prepared(histogram)
        measuring.start()
        if table.device.type != "cuda":
            results = measuring.results.clone()
            return lambda: _moments(table, results.numpy(), histogram)
        copied, done = measuring.copy()

    @cache  # its memory may be used again after the first call
    def wait() -> list[Moments]:
        done.synchronize()
        moments = _moments(table, copied.numpy(), histogram)
        measuring.spare.append((copied, done))
        return moments

    return wait


def _moments(table: RunTable, results: Any, histogram: bool) -> list[Moments]:
    arrays = len(table.runs)
    rows = results[: FIELDS * arrays].reshape(FIELDS, arrays)
    doubles = {name: rows[number].view(np.float64) for number, name in enumerate(ROWS)}
    finite, exponents = rows[_FINITE], rows[_EXPONENT].astype(np.int32)
    with np.errstate(all="ignore"):  # a norm may be larger than any float, and an array without finite values has none
        worked_out = {
            "min": doubles["min"] + 0.0,  # zero has no sign
            "max": doubles["max"] + 0.0,
            "mean_rest": np.zeros(arrays),
            "std": np.ldexp(np.sqrt(doubles["deviation"] / finite), exponents),
            "l2": np.ldexp(np.sqrt(doubles["square"]), exponents),
        }
    numbers = {name: (worked_out[name] if name in worked_out else doubles[name]).tolist() for name in NUMBERS}
    sizes, counts = [run.size for run in table.runs], rows[_COUNTED].tolist()
    whole_mins, whole_maxes = rows[_WHOLE].tolist()
    for number in [number for number, run in enumerate(table.runs) if is_whole(run.dtype)]:
        extremes = exact_extremes(table.runs[number].dtype, whole_mins[number], whole_maxes[number])
        numbers["min"][number], numbers["max"][number] = extremes
    bins: Any = [None] * arrays
    if histogram:
        counted_bins = results[FIELDS * arrays + 1 :]
        bins = trimmed((counted_bins if table.is_long else counted_bins.view(np.int32)).reshape(arrays, _BINS))
    moments = list(map(Moments, sizes, *counts, *numbers.values(), bins))
    for number in np.flatnonzero(finite == 0).tolist():
        moments[number] = none_finite((sizes[number], *(column[number] for column in counts)), bins[number])
    return moments
