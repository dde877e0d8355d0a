"""Statistics of arrays in memory or in local files: with C code if it was built, otherwise with NumPy."""

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.moments import (
    COUNTS,
    LOWEST,
    NOTHING,
    NUMBERS,
    Histogram,
    Moments,
    merged_moments,
    none_finite,
    nothing,
)
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import is_alone
from leafwise.errors import Unsupported
from leafwise.kernels import reference
from leafwise.kernels.dtypes import (
    KERNELS,
    check_known,
    exact_extremes,
    is_whole,
    name_of,
    numpy_dtype,
    smallest_normal,
    values_of_bytes,
)
from leafwise.kernels.library import load, of_this_version

# Elements in a chunk. Arrays must be cut at multiples of it, or the last bits of the results change.
CHUNK = 1 << 18
PER_THREAD = 1 << 18  # fewer elements are not worth a thread

_ARRAYS_AT_ONCE = 4096  # arrays; each needs memory for a histogram
_BINS = 256
# The fields of `struct result` in C. The extremes of integers have their own fields.
_WHOLE_NUMBERS = (*COUNTS[1:], "finite", "whole_min", "whole_max")
_RESULT = np.dtype([*((name, np.int64) for name in _WHOLE_NUMBERS), *((name, np.float64) for name in NUMBERS)])


def run_of(array: Any) -> Run:
    """A contiguous NumPy array as a run."""
    return Run(array.__array_interface__["data"][0], array.size, name_of(array.dtype), array)


def measure(runs: Sequence[Run], histogram: bool = True, *, threads: int | None = None) -> list[Moments]:
    """The moments of each run; the same bits for any number of threads.

    >>> run = run_of(np.array([1.0, -3.0, 0.0, np.nan], np.float32))
    >>> [moments] = measure([run])
    >>> moments.count, moments.nan, moments.zeros, moments.min, moments.max, moments.l1
    (4, 1, 1, -3.0, 1.0, 4.0)
    """
    return list(map(merged_moments, measure_chunks(runs, histogram, threads=threads)))


def measure_chunks(runs: Sequence[Run], histogram: bool, *, threads: int | None = None) -> list[list[Moments]]:
    """The moments of each chunk of each run, for callers that combine several runs: chunks must be combined only once,
    or the last bits change. The histogram of a run is in the moments of its first chunk."""
    library = loaded()
    if library is None:
        check_known({run.dtype for run in runs})
        check_subnormals()
        return [_by_reference(run, histogram) for run in runs]
    batches = [runs[at : at + _ARRAYS_AT_ONCE] for at in range(0, len(runs), _ARRAYS_AT_ONCE)]
    return [chunks for batch in batches for chunks in _by_library(library, batch, histogram, threads or threads_here())]


def loaded() -> Any:
    """The library that was built from cpu.c; None, with one warning, if there is none."""
    library = load()
    if library is None:
        _warn_not_built()
        return None
    slow = "statistics are computed with NumPy, which is many times slower"
    return of_this_version(library, "leafwise_result_bytes", _RESULT.itemsize, slow)


@cache
def _warn_not_built() -> None:
    warnings.warn(
        "leafwise was installed without a C compiler: statistics are computed with NumPy, which is many times slower; "
        "install a C compiler, then pip install --force-reinstall --no-deps --no-binary leafwise leafwise",
        stacklevel=2,
    )


def check_subnormals() -> None:
    """Raises if this thread flushes subnormals to zero. The C code turns that off itself; NumPy cannot."""
    if np.float32(1e-40) * np.float32(1) == 0:
        raise Unsupported(
            "leafwise",
            "measure or compare values here",
            "this thread flushes subnormal numbers to zero, and leafwise was installed without its C code; call "
            "torch.set_flush_denormal(False) first, or reinstall leafwise with a C compiler",
        )


def threads_here() -> int:
    """The number of threads: as many as there are cores, unless the environment or `one_thread` says otherwise."""
    return 1 if is_alone() else _usual_threads()


@cache
def _usual_threads() -> int:
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isascii() and setting.isdigit() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def instruction_sets() -> int:
    """How many of the instruction sets in the C code this machine has; the last one is used."""
    library = loaded()
    return 0 if library is None else int(library.leafwise_instruction_sets())


def _by_library(library: Any, runs: Sequence[Run], histogram: bool, threads: int) -> list[list[Moments]]:
    count = len(runs)
    sizes = np.fromiter((run.size for run in runs), np.int64, count)
    first_chunks = np.zeros(count + 1, np.int64)
    np.cumsum((sizes + CHUNK - 1) // CHUNK, out=first_chunks[1:])
    results = np.empty(int(first_chunks[-1]), _RESULT)
    histograms = np.zeros((count, _BINS), np.int64) if histogram else None
    addresses = np.fromiter((run.address for run in runs), np.int64, count)
    files = np.fromiter((run.file for run in runs), np.int32, count)
    by_dtype = of_dtypes([run.dtype for run in runs])
    arguments = (addresses, sizes, first_chunks, files if (files >= 0).any() else None, *by_dtype, results, histograms)
    failed = library.leafwise_measure(
        count,
        CHUNK,
        *(None if array is None else array.ctypes.data for array in arguments),
        max(1, min(threads, int(sizes.sum()) // PER_THREAD)),
        library.leafwise_instruction_sets() - 1,
    )
    if failed > 0:
        raise UnreadError(failed - 1)
    if failed:
        raise MemoryError("not enough memory for a block of values")
    rows: Any = results.tolist()
    starts = first_chunks.tolist()
    all_bins = [None] * count if histograms is None else trimmed(histograms)
    by_run = []
    for number, (run, bins) in enumerate(zip(runs, all_bins, strict=True)):
        chunks = []
        for place, row in enumerate(rows[starts[number] : starts[number + 1]]):
            chunks.append(_of_chunk(row, min(run.size - place * CHUNK, CHUNK), run.dtype, bins))
            bins = bins and NOTHING
        by_run.append(chunks or [nothing(bins)])
    return by_run


def of_dtypes(dtypes: list[str]) -> tuple[Any, Any, Any, Any]:
    """For each array its kind; the row of `values` for its bytes; `values`; and the smallest normal numbers."""
    numbers = {dtype: number for number, dtype in enumerate(dict.fromkeys(dtypes))}
    check_known(numbers)
    kinds = np.array([KERNELS[dtype] for dtype in numbers], np.int32)
    # The smallest normal number of float64 is not a float32; the C code knows it.
    tiny = np.array([0 if dtype == "float64" else smallest_normal(dtype) for dtype in numbers], np.float32)
    of_array = np.fromiter((numbers[dtype] for dtype in dtypes), np.int32, len(dtypes))
    return kinds[of_array], of_array, values_of_bytes(numbers), tiny[of_array]


def trimmed(histograms: Any) -> list[Histogram]:
    """Rows of 256 bins as histograms."""
    used = histograms != 0
    filled = used.any(1)
    if not filled.any():
        return [NOTHING] * len(histograms)
    first, stop = used.argmax(1), _BINS - used[:, ::-1].argmax(1)
    # Converted to numbers of Python at once, from the first to the last bin that any row uses.
    lowest, highest = int(first[filled].min()), int(stop[filled].max())
    rows = histograms[:, lowest:highest].tolist()
    places = zip(rows, (first - lowest).tolist(), (stop - lowest).tolist(), filled.tolist(), strict=True)
    below = LOWEST + lowest
    return [
        Histogram(below + start, tuple(bins[start:end])) if is_filled else NOTHING
        for bins, start, end, is_filled in places
    ]


def _of_chunk(row: Any, size: int, dtype: str, bins: Histogram | None) -> Moments:
    *counts, finite, whole_min, whole_max = row[: len(_WHOLE_NUMBERS)]
    if not finite:
        return none_finite((size, *counts), bins)
    numbers = row[len(_WHOLE_NUMBERS) :]
    if is_whole(dtype):
        numbers = (*exact_extremes(dtype, whole_min, whole_max), *numbers[2:])
    return Moments.of((size, *counts), numbers, bins)


def _by_reference(run: Run, histogram: bool) -> list[Moments]:
    """Chunk by chunk, like the library: needs little memory, and the result does not depend on how the array is cut."""
    dtype = numpy_dtype(run.dtype)
    if not run.size:
        return [nothing(NOTHING if histogram else None)]
    memory = (ctypes.c_uint8 * (run.size * dtype.itemsize)).from_address(run.address)
    array = np.frombuffer(memory, dtype)
    return [reference.measure(array[at : at + CHUNK], histogram) for at in range(0, run.size, CHUNK)]


# -- arrays of any memory layout -------------------------------------------------------------------------------------

_MOST_AXES = 32  # the most that NumPy iterates over
PIECE = 4 * CHUNK  # elements that are copied at a time, if they must be copied


def lies_densely(shape: Sequence[int], strides: Sequence[float]) -> bool:
    """Whether elements fill their memory without gaps, in any order. Strides are in elements.

    >>> lies_densely((2, 3), (3, 1)), lies_densely((3, 2), (1, 3)), lies_densely((2, 3), (6, 2))
    (True, True, False)
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return not all(shape)
        expected *= size
    return True


def measure_arrays(arrays: Sequence[Any], histogram: bool, count: Count) -> list[Moments]:
    """The moments of NumPy arrays of known dtypes. Arrays without gaps are measured in place, in the order of memory;
    others are copied piece by piece. `count` is called with the number of bytes that were measured."""
    runs = [run_of(array) if _is_run(array) else None for array in arrays]
    of_runs = iter(measure([run for run in runs if run is not None], histogram))
    moments = []
    for array, run in zip(arrays, runs, strict=True):
        moments.append(next(of_runs) if run is not None else _of_pieces(array, histogram))
        count(array.nbytes)
    return moments


def _is_run(array: Any) -> bool:
    item = array.itemsize
    return array.dtype.isnative and lies_densely(array.shape, [stride / item for stride in array.strides])


def _of_pieces(array: Any, histogram: bool) -> Moments:
    native = array.dtype.newbyteorder("=")
    if array.ndim > _MOST_AXES:
        array = array.reshape(-1)
    # Buffers of one length, filled in C order; their length is a multiple of a chunk.
    pieces = np.nditer(
        array, ["external_loop", "buffered", "zerosize_ok"], ["readonly"], native, "C", "equiv", buffersize=PIECE
    )
    return merged_moments(
        [chunk for piece in pieces for chunk in measure_chunks([run_of(np.ascontiguousarray(piece))], histogram)[0]]
    )
