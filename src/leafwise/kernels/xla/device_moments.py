"""Statistics of JAX arrays: by XLA on a GPU, by C code on a CPU, and shard by shard if an array is sharded.

On a GPU, `first_pass` measures arrays of one shape and dtype together, in one pass over their values: the one of
`pallas_passes` if it can, otherwise the one of `xla_passes`. Some results cannot be exact, which is visible in them: if
values are not finite, or far from zero compared to their spread. These arrays are measured once more, by
`careful_pass`.
"""

import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

import jax
import numpy as np

from leafwise.core.path import escape
from leafwise.core.results.moments import (
    HIGHEST,
    LOWEST,
    NOTHING,
    Histogram,
    Moments,
    merged_moments,
    none_finite,
    nothing,
)
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import in_threads
from leafwise.errors import Unsupported
from leafwise.kernels import cpu
from leafwise.kernels.dtypes import check_known, is_whole, name_of, smallest_normal, unknown_dtype
from leafwise.kernels.xla import passes
from leafwise.kernels.xla.passes import Figures

# Integers of less than a byte, which are measured as these.
_NARROW = {"int1": "int8", "int2": "int8", "int4": "int8", "uint1": "uint8", "uint2": "uint8", "uint4": "uint8"}
# The dtypes that the passes know; arrays of all others are copied to the host.
_PASSED = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
}  # fmt: skip
_IN_KERNEL = {"float32", "float16", "bfloat16"}  # the dtypes that the kernel of pallas_passes knows
_SIZES_IN_KERNEL = range(1 << 16, 1 << 31)  # of arrays that have a whole chunk; it counts with 32 bits
_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
_ARRAYS_AT_ONCE = 64  # arrays that one compiled function measures
_CONDITION = 1e8  # how much larger than the spread the squared mean may be, so that about eight digits remain
_ROUNDED = 1e-9  # the share of a sum that subnormals may have, because they may have been treated as zero
_SQUARED = 2.0**480  # squares of larger doubles, and of the inverse, may not be doubles

_NONFINITE = ("nan", "posinf", "neginf")
_started_before: set[Any] = set()  # the signatures of groups whose passes are compiled
_kernel_errors: list[str] = []  # why the kernel cannot be used here, once it has failed

Wait = Callable[[], list[Moments]]


@cache
def unknown_jax_dtype(dtype: str) -> str:
    """Why JAX arrays of a dtype cannot be measured; empty if they can."""
    return unknown_dtype(_NARROW.get(dtype, dtype))


def runs_passes(array: Any) -> bool:
    """Whether XLA measures an array where it is. On TPUs, doubles are not precise enough."""
    [device] = array.sharding.device_set
    return device.platform in ("gpu", "cuda", "rocm") and array.sharding.memory_kind in (None, "device")


def runs_kernel(array: Any) -> bool:
    """Whether the kernel of `pallas_passes` measures an array."""
    return name_of(array.dtype) in _IN_KERNEL and array.size in _SIZES_IN_KERNEL and runs_passes(array)


def measure_arrays(
    arrays: Sequence[jax.Array], histogram: bool, count: Count, by_xla: Callable[[Any], bool] = runs_passes
) -> Wait:
    """Starts measuring JAX arrays; the function that it returns waits for the moments. `count` is called with the
    number of bytes that were measured. `by_xla` says whether XLA measures an array on one device.

    >>> import jax.numpy as jnp
    >>> [moments] = measure_arrays([jnp.array([1.0, -3.0, 0.0, jnp.nan])], True, lambda count: None)()
    >>> moments.count, moments.nan, moments.zeros, moments.min, moments.max, moments.l1
    (4, 1, 1, -3.0, 1.0, 4.0)
    """
    check_known({_NARROW.get(name_of(array.dtype), name_of(array.dtype)) for array in arrays})
    parts = [_parts(array) for array in arrays]
    every = [part for of_array in parts for part in of_array]
    on_device = [number for number, part in enumerate(every) if name_of(part.dtype) in _PASSED and by_xla(part)]
    passes = _DevicePasses([every[number] for number in on_device], histogram)  # works while the CPU measures the rest
    on_host = sorted(set(range(len(every))) - set(on_device))
    chunks = dict(zip(on_host, _host_chunks([every[number] for number in on_host], histogram), strict=True))
    for array in arrays:
        count(array.nbytes)
    part_counts = list(map(len, parts))

    @cache
    def wait() -> list[Moments]:
        measured = chunks | {number: [moments] for number, moments in zip(on_device, passes.moments(), strict=True)}
        in_order = (measured[number] for number in range(len(measured)))
        # The chunks of an array are combined only once, so that they give the same bits however it is sharded, unless
        # that cuts it elsewhere.
        return [merged_moments(chain.from_iterable(islice(in_order, number))) for number in part_counts]

    return wait


def _parts(array: Any) -> list[Any]:
    """The arrays on one device each that make up an array, without replicas, in the order of its elements."""
    if not array.is_fully_addressable:
        raise Unsupported(
            "jax",
            "measure an array that is sharded over several processes",
            "measure its addressable_shards in each process instead",
        )
    if isinstance(array.sharding, jax.sharding.SingleDeviceSharding):
        return [array]
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    shards.sort(key=lambda shard: [part.start or 0 for part in shard.index])
    return [shard.data for shard in shards]


# -- on the host -----------------------------------------------------------------------------------------------------


def _host_chunks(arrays: Sequence[Any], histogram: bool) -> list[list[Moments]]:
    """The moments of the chunks of arrays, by C code. The memory of a CPU is not copied."""
    here = {number: _host_values(array) for number, array in enumerate(arrays) if _is_on_cpu(array)}
    measured = cpu.measure_chunks([cpu.run_of(values) for values in here.values()], histogram)
    by_number = dict(zip(here, measured, strict=True))
    for number, array in enumerate(arrays):
        if number not in by_number:  # one at a time, to save memory
            [by_number[number]] = cpu.measure_chunks([cpu.run_of(_host_values(array))], histogram)
    return [by_number[number] for number in range(len(arrays))]


def _is_on_cpu(array: Any) -> bool:
    [device] = array.sharding.device_set
    return bool(device.platform == "cpu")


def _host_values(array: Any) -> Any:
    if not _is_on_cpu(array):
        # JAX keeps the values that it copies to the host as long as the array exists: this array exists only here.
        array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array.addressable_data(0)])
    with jax.transfer_guard_device_to_host("allow"):
        # Not jax.device_get: from JAX 0.11 on, it keeps its copy with the array, which then cannot be donated.
        values = np.ascontiguousarray(np.asarray(array))
    narrow = _NARROW.get(name_of(array.dtype))
    return values if narrow is None else values.astype(narrow)


# -- on a device -----------------------------------------------------------------------------------------------------


@contextmanager
def _settings() -> Iterator[None]:
    """Inside the block, passes run as they must, whatever the caller has set: with 64-bit numbers, without errors for
    NaN, and on the devices of their arguments."""
    mesh = nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(_NO_MESH)
    with mesh, jax.enable_x64(True), jax.debug_nans(False), jax.debug_infs(False):
        yield


@contextmanager
def _ready() -> Iterator[None]:
    """The same for functions of `xla_passes`, which then run now, even while a function is being traced."""
    with _settings(), jax.ensure_compile_time_eval():
        yield


class _Group(NamedTuple):
    """Arrays of one shape and dtype, on one device."""

    numbers: list[int]
    arrays: tuple[Any, ...]

    def signature(self, histogram: bool) -> Any:
        """Groups of one signature run the same compiled functions."""
        [device] = self.arrays[0].sharding.device_set
        return device, self.arrays[0].shape, self.arrays[0].dtype, len(self.arrays), histogram


class _DevicePasses:
    """The passes over arrays on devices, begun when it is made."""

    def __init__(self, arrays: Sequence[Any], histogram: bool) -> None:
        self._arrays, self._histogram = arrays, histogram
        self._groups = _grouped(arrays)
        self._results: dict[int, Figures] = {}
        new = [number for number, group in enumerate(self._groups) if group.signature(histogram) not in _started_before]
        in_threads(self._start, new)  # because XLA compiles in parallel
        for number, group in enumerate(self._groups):
            if number not in self._results:
                self._start(number)
            _started_before.add(group.signature(histogram))

    def _start(self, number: int) -> None:
        self._results[number] = _started(self._groups[number].arrays, self._histogram)

    def moments(self) -> list[Moments]:
        """Waits for the results, and forgets the arrays."""
        every = [nothing(NOTHING if self._histogram else None)] * len(self._arrays)
        for number, group in enumerate(self._groups):
            for place, moments in zip(group.numbers, _of_group(group, self._results[number]), strict=True):
                every[place] = moments
        self._arrays, self._groups = [], []
        self._results.clear()
        return every


def _started(arrays: tuple[Any, ...], histogram: bool) -> Figures:
    """Starts measuring arrays of one shape and dtype, and copying the results to the host."""
    by_kernel = not _kernel_errors and runs_kernel(arrays[0])
    figures = _by_kernel(arrays, histogram) if by_kernel else _by_xla(arrays, histogram)
    # Explicit copies are allowed even where the caller disallows implicit ones, but JAX counts these as implicit.
    with jax.transfer_guard_device_to_host("allow"):
        for result in figures:
            if result is not None:
                result.copy_to_host_async()
    return figures


def _by_kernel(arrays: tuple[Any, ...], histogram: bool) -> Figures:
    """The first pass by the kernel. If it fails, which depends on the GPU and the version of JAX, XLA measures these
    arrays and all later ones."""
    try:
        from leafwise.kernels.xla import pallas_passes

        with _settings():
            return pallas_passes.first_pass(arrays, histogram)
    except Exception as error:  # whatever a compiler raises
        figures = _by_xla(arrays, histogram)  # raises too if the arrays are the reason
        if not _kernel_errors:
            reason = f"the kernel for statistics does not work here ({type(error).__name__}: {str(error)[:200]})"
            warnings.warn(escape(f"{reason}; XLA computes them instead, which is slower"), stacklevel=2)
        _kernel_errors.append("".join(traceback.format_exception(error)))
        return figures


def _by_xla(arrays: tuple[Any, ...], histogram: bool) -> Figures:
    with _ready():
        figures: Figures = passes.first_pass(arrays, histogram)
        if isinstance(figures.lowest, tuple):
            bins = tuple(map(passes.window_pass, arrays, figures.lowest))
            figures = figures._replace(lowest=passes.join_bins(figures.lowest), bins=passes.join_bins(bins))
    return figures


def _grouped(arrays: Sequence[Any]) -> list[_Group]:
    by_kind: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        if array.size:
            [device] = array.sharding.device_set
            by_kind.setdefault((device, array.shape, array.dtype), []).append(number)
    return [
        _Group(
            numbers[at : at + _ARRAYS_AT_ONCE], tuple(arrays[number] for number in numbers[at : at + _ARRAYS_AT_ONCE])
        )
        for numbers in by_kind.values()
        for at in range(0, len(numbers), _ARRAYS_AT_ONCE)
    ]


# -- what the results mean -------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    """The results for one array, as numbers of Python."""

    counts: dict[str, int]
    sums: dict[str, float]
    least: float
    largest: float

    @property
    def nonfinite(self) -> int:
        return sum(self.counts.get(name, 0) for name in _NONFINITE)

    @property
    def magnitude(self) -> float:
        return max(abs(self.least), abs(self.largest))

    def spread(self, finite: int, shift: float) -> tuple[float, float, float] | None:
        """The mean, what rounding took off it, and the standard deviation; None if they are not precise. `shift` was
        subtracted from the values that were added up."""
        if self.least == self.largest:
            return float(self.least), 0.0, 0.0
        about_shift = ("distance", "deviation") if "distance" in self.sums else ("total", "square")
        distance, square = (self.sums[name] for name in about_shift)
        step = distance / finite
        deviation = square - distance * step
        if not distance * step <= _CONDITION * deviation:
            return None
        mean = shift + step
        return mean, (shift - mean) + step, math.sqrt(deviation / finite)

    def is_precise(self, dtype: str) -> bool:
        """Whether sums are precise, although subnormals may have been treated as zero, and although squares of very
        large or small doubles are not doubles."""
        if is_whole(dtype):
            return True
        if dtype == "float64" and self.magnitude and not 1 / _SQUARED < self.magnitude < _SQUARED:
            return False
        treated_as_zero = smallest_normal("float64" if dtype == "float64" else "float32")
        subnormals = self.counts["small"] - self.counts["zeros"]
        return subnormals * treated_as_zero <= _ROUNDED * self.sums["l1"]

    def moments(self, array: Any, spread: tuple[float, float, float] | None, histogram: Histogram | None) -> Moments:
        counts = self.counts
        subnormals = 0 if is_whole(name_of(array.dtype)) else counts["small"] - counts["zeros"]
        row = (array.size, *(counts.get(name, 0) for name in _NONFINITE), counts["zeros"], subnormals)
        if spread is None:
            return none_finite(row, histogram)
        numbers = (self.least, self.largest, *spread, self.sums["l1"], math.sqrt(self.sums["square"]))
        return Moments.of(row, numbers, histogram)


def _of_group(group: _Group, results: Figures) -> list[Moments]:
    """The moments of each array of a group, from the results of the first pass."""
    results = jax.device_get(results)
    dtype = group.arrays[0].dtype.name
    every = _facts(dtype, results, passes.COUNTED, passes.SUMMED)
    histograms = _counted_windows(results) if results.bins is not None else [None] * len(every)
    moments = []
    for array, facts, histogram in zip(group.arrays, every, histograms, strict=True):
        is_finite = is_whole(dtype) or math.isfinite(facts.magnitude)
        spread = facts.spread(array.size, 0.0) if is_finite and facts.is_precise(dtype) else None
        if spread is None:
            shift = facts.sums["total"] / array.size if is_finite else 0.0
            moments.append(_with_care(array, shift if math.isfinite(shift) else 0.0, histogram is not None))
            continue
        if histogram is not None and sum(histogram.counts) != array.size - facts.counts["zeros"]:
            histogram = _all_windows(array, facts)
        moments.append(facts.moments(array, spread, histogram))
    return moments


def _with_care(array: Any, shift: float, histogram: bool) -> Moments:
    """The moments of an array for which the first pass is not precise. The values that are added up are close to zero
    if `shift` is close to the mean."""
    if array.is_deleted():
        raise Unsupported(
            "jax",
            "finish measuring an array that was deleted in the meantime",
            "read its statistics before it is donated to a jitted function",
        )
    dtype = name_of(array.dtype)
    for _ in range(3):
        with _ready():
            results = passes.careful_pass(array, jax.device_put(np.float64(shift), array.sharding))
        stacked = Figures(*(None if result is None else result[None] for result in jax.device_get(results)))
        [facts] = _facts(dtype, stacked, passes.COUNTED_WITH_CARE, passes.SUMMED_WITH_CARE)
        finite = array.size - facts.nonfinite
        if not finite:
            return facts.moments(array, None, NOTHING if histogram else None)
        if not facts.is_precise(dtype):
            break
        spread = facts.spread(finite, shift)
        if spread is not None:
            return facts.moments(array, spread, _all_windows(array, facts) if histogram else None)
        shift += facts.sums["distance"] / finite
    return merged_moments(_host_chunks([array], histogram)[0])


def _facts(dtype: str, results: Figures, counted: Sequence[str], summed: Sequence[str]) -> list[_Facts]:
    return [
        _Facts(dict(zip(counted, counts, strict=True)), dict(zip(summed, sums, strict=True)), least, largest)
        for counts, sums, (least, largest) in zip(
            results.counts.tolist(), results.sums.tolist(), _extremes(dtype, results.extremes), strict=True
        )
    ]


def _extremes(dtype: str, keys: Any) -> Any:
    """The extremes, from integers that have the order of the values."""
    if is_whole(dtype):
        return keys.tolist()
    whole, number = (np.int64, np.float64) if dtype == "float64" else (np.int32, np.float32)
    keys = keys.astype(whole)
    bits = np.where(keys < 0, keys ^ np.iinfo(whole).max, keys)
    return (bits.view(number).astype(np.float64) + 0.0).tolist()  # zero has no sign


def _counted_windows(results: Figures) -> list[Histogram]:
    """The histograms of arrays, as far as the first pass counted them."""
    bins = np.zeros((len(results.bins), passes.BINS), np.int64)
    places = results.lowest[:, None] + np.arange(results.bins.shape[1])
    np.put_along_axis(bins, places, results.bins, 1)
    zeros = results.counts[:, passes.COUNTED.index("zeros")]
    bins[:, 0] = np.maximum(bins[:, 0] - zeros, 0)  # where zeros are, if this bin was counted
    return cpu.trimmed(bins)


def _all_windows(array: Any, facts: _Facts) -> Histogram:
    """The histogram of all finite values, counted from the largest magnitude down."""
    magnitude = facts.magnitude
    exponent = magnitude.bit_length() - 1 if isinstance(magnitude, int) else math.frexp(magnitude)[1] - 1
    bins = np.zeros(passes.BINS, np.int64)
    start = min(max(exponent, LOWEST), HIGHEST) - LOWEST + 1
    remaining = array.size - facts.nonfinite - facts.counts["zeros"]
    while remaining:
        stop, start = start, max(start - passes.WINDOW, 0)
        with _ready():
            counts = jax.device_get(passes.window_pass(array, jax.device_put(np.int32(start), array.sharding)))
        bins[start:stop] = counts[: stop - start]
        if stop == len(bins):
            bins[-1] -= facts.nonfinite
        if start == 0:
            bins[0] -= facts.counts["zeros"]
        remaining -= int(bins[start:stop].sum())
        assert start or not remaining, "some values are in no bin"
    return Histogram.of_bins(bins.tolist())
