"""Statistics of arrays on a GPU: one launch for all of them, and one copy back."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from leafwise.core.dtypes import is_float
from leafwise.core.moments import COUNTS, NUMBERS, Moments, none_finite
from leafwise.core.runs import Run
from leafwise.kernels.cpu import trimmed
from leafwise.kernels.dtypes import (
    KERNELS,
    byte_values,
    check_known,
    exact_extremes,
    is_byte_float,
    is_whole,
    item_bytes,
    smallest_normal,
)
from leafwise.kernels.triton_kernels import FIELDS, ROWS, fold_chunks, measure_carefully, measure_whole_chunks

CHUNK = 1 << 16  # a multiple of eight blocks
# Elements that a program processes at a time, and the number of warps. Fewer with the histogram, which needs more
# registers. With 256, its fields of eight bits overflow if all values of a lane have the same exponent; that is
# detected, and the chunk is measured again. With fewer elements, that would be common.
_BLOCK, _WARPS = 1024, 8
_BLOCK_WITH_HISTOGRAM, _WARPS_WITH_HISTOGRAM = 256, 4
_CAREFUL_BLOCK, _CAREFUL_WARPS = 1024, 8
_CAREFUL_PROGRAMS = 1056  # eight for each multiprocessor of a large GPU
_BINS = 256
# The rows of the result: counts, the bits of doubles, and integers. A number of `Moments` that is not computed from
# others comes last.
_WORKED_OUT = {"mean_rest": "", "std": "deviation", "l2": "square"}
_COUNTED = [ROWS.index(name) for name in (*COUNTS[1:], "finite")]
_DOUBLES = [ROWS.index(row) for name in NUMBERS if (row := _WORKED_OUT.get(name, name))]
_WHOLE = [ROWS.index(name) for name in ("exponent", "whole_min", "whole_max")]


class RunTable(NamedTuple):
    """Where arrays are on a device, in chunks. It can be used again as long as no array moves."""

    runs: list[Run]
    chunk: int
    kinds: int  # one bit for each kind that occurs
    is_long: bool  # whether counts may need more than 32 bits
    whole_count: int
    careful_count: int
    whole: Any  # the numbers of full chunks of floats of at most 32 bits; from here on, everything is on the device
    careful: Any  # the numbers of the other chunks
    addresses: Any  # of each chunk
    sizes: Any
    arrays: Any
    of_arrays: tuple[Any, Any, Any]  # for each array: its kind, the smallest normal number, the values of its bytes
    first_chunks: Any  # of each array, and the number of all chunks
    spare: list[Any]  # pinned memory of the host, for reuse

    @property
    def chunks(self) -> int:
        return self.whole_count + self.careful_count


def table_of(runs: Sequence[Run], device: Any, chunk: int = CHUNK) -> RunTable:
    """The table of arrays that are all on one device."""
    check_known({run.dtype for run in runs})
    if chunk % (8 * max(_BLOCK, _BLOCK_WITH_HISTOGRAM)):
        raise ValueError(f"a chunk is a multiple of eight blocks, and {chunk} is not")
    sizes = np.array([run.size for run in runs], np.int64)
    kinds = np.array([KERNELS[run.dtype] for run in runs], np.int32)
    tinies = np.array([smallest_normal(run.dtype) for run in runs], np.float64)
    narrow = np.array([is_float(run.dtype) and item_bytes(run.dtype) <= 4 for run in runs], bool)
    per_array = (sizes + chunk - 1) // chunk
    first_chunks = np.concatenate([[0], np.cumsum(per_array)]).astype(np.int64)
    arrays = np.repeat(np.arange(len(runs), dtype=np.int64), per_array)
    starts = (np.arange(len(arrays)) - first_chunks[arrays]) * chunk
    items = np.array([item_bytes(run.dtype) for run in runs], np.int64)
    addresses = np.array([run.address for run in runs], np.int64)[arrays] + starts * items[arrays]
    lengths = np.minimum(sizes[arrays] - starts, chunk).astype(np.int32)
    values = np.zeros(1, np.float32)
    if any(is_byte_float(run.dtype) for run in runs):
        nothing = np.zeros(_BINS, np.float32)
        values = np.stack([byte_values(run.dtype) if is_byte_float(run.dtype) else nothing for run in runs])
    quick = narrow[arrays] & (lengths == chunk) & (addresses % 16 == 0)
    whole, careful = np.flatnonzero(quick), np.flatnonzero(~quick)

    def there(array: Any) -> Any:
        return torch.from_numpy(array).to(device)

    return RunTable(
        list(runs),
        chunk,
        sum(1 << int(kind) for kind in set(kinds.tolist())),
        bool((sizes >= 1 << 31).any()),
        len(whole),
        len(careful),
        there(whole.astype(np.int32)),
        there(careful.astype(np.int32)),
        there(addresses),
        there(lengths),
        there(arrays.astype(np.int32)),
        (there(kinds), there(tinies), there(values)),
        there(first_chunks),
        [],
    )


def measure(table: RunTable, histogram: bool = True) -> Callable[[], list[Moments]]:
    """Starts measuring the arrays of a table. The function that it returns waits for the result."""
    arrays, chunks = len(table.runs), table.chunks
    device = table.addresses.device
    by_chunk = torch.empty((FIELDS + 1) * chunks, dtype=torch.int64, device=device)
    # Results, a counter and the histograms are in one piece of memory, so that they are cleared and copied at once.
    at = FIELDS * arrays
    words = at + 1 + (_BINS * arrays // (1 if table.is_long else 2) if histogram else 0)
    results = torch.zeros(words, dtype=torch.int64, device=device)
    counter, bins = results[at:], results[at + 1 :]
    bins = bins if table.is_long else bins.view(torch.int32)
    options = {"KINDS": table.kinds, "HISTOGRAM": histogram}
    if table.whole_count:
        measure_whole_chunks[(table.whole_count,)](
            table.whole, table.addresses, table.arrays, *table.of_arrays, by_chunk, bins, counter, chunks,
            CHUNK=table.chunk, BLOCK=_BLOCK_WITH_HISTOGRAM if histogram else _BLOCK,
            num_warps=_WARPS_WITH_HISTOGRAM if histogram else _WARPS, enable_fp_fusion=True, **options,
        )  # fmt: skip
    if chunks:
        measure_carefully[(min(chunks, _CAREFUL_PROGRAMS),)](
            table.careful, table.careful_count, table.addresses, table.sizes, table.arrays, *table.of_arrays,
            by_chunk, bins, counter, chunks,
            BLOCK=_CAREFUL_BLOCK, num_warps=_CAREFUL_WARPS, enable_fp_fusion=True, **options,
        )  # fmt: skip
    if arrays:
        fold_chunks[(arrays,)](
            by_chunk, chunks, table.first_chunks, results, arrays,
            BLOCK=128 if chunks > 32 * arrays else 32, num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    if device.type != "cuda":
        return lambda: _moments(table, results.numpy(), histogram)
    copied = _pinned(table, words)
    copied.copy_(results, non_blocking=True)
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    @cache  # its memory may be used again after the first call
    def wait() -> list[Moments]:
        done.synchronize()
        moments = _moments(table, copied.numpy(), histogram)
        table.spare.append(copied)
        return moments

    return wait


def _pinned(table: RunTable, words: int) -> Any:
    """Memory of the host that a GPU can write to; reuses earlier memory of the same length."""
    try:
        spare = table.spare.pop()
        if len(spare) == words:
            return spare
    except IndexError:
        pass
    return torch.empty(words, dtype=torch.int64, pin_memory=True)


def _moments(table: RunTable, results: Any, histogram: bool) -> list[Moments]:
    arrays = len(table.runs)
    rows = results[: FIELDS * arrays].reshape(FIELDS, arrays)
    counts, numbers = rows[_COUNTED].T.tolist(), rows[_DOUBLES].view(np.float64).T.tolist()
    exponents, whole_mins, whole_maxes = rows[_WHOLE].tolist()
    bins: Any = [None] * arrays
    if histogram:
        counted_bins = results[FIELDS * arrays + 1 :]
        bins = trimmed((counted_bins if table.is_long else counted_bins.view(np.int32)).reshape(arrays, _BINS))
    moments = []
    for number, run in enumerate(table.runs):
        *counted, finite = counts[number]
        if not finite:
            moments.append(none_finite((run.size, *counted), bins[number]))
            continue
        least, largest, mean, deviation, l1, square, *rest = numbers[number]
        if is_whole(run.dtype):
            least, largest = exact_extremes(run.dtype, whole_mins[number], whole_maxes[number])
        else:
            least, largest = least + 0.0, largest + 0.0  # zero has no sign
        std, l2 = (_scaled(math.sqrt(mean_square), exponents[number]) for mean_square in (deviation / finite, square))
        values = (least, largest, mean, 0.0, std, l1, l2, *rest)
        moments.append(Moments.of((run.size, *counted), values, bins[number]))
    return moments


def _scaled(number: float, exponent: int) -> float:
    try:
        return math.ldexp(number, exponent)
    except OverflowError:  # larger than any float
        return math.inf
