"""The first pass over large arrays on a GPU, as a kernel in Pallas, which JAX compiles with Triton.

A program measures one chunk of an array and writes rows of partial results; XLA measures what is left after the last
whole chunk, and combines the rows. Each value adds to accumulators of its lane. The method is that of
`triton_kernels.measure_whole_chunks`. These functions must be called with 64-bit numbers enabled (`jax.enable_x64`).
"""

import warnings
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton

from leafwise.kernels.dtypes import smallest_normal
from leafwise.kernels.xla import passes
from leafwise.kernels.xla.passes import BINS, COUNTED, FOLDS, Figures


class Tiling(NamedTuple):
    """How the kernel is cut, and how it adds up. All numbers are powers of two."""

    chunk: int = 1 << 15  # elements that one program measures
    block: int = 1024  # lanes: elements that are loaded at once
    turns: int = 8  # blocks in one round of the loop; fields of the histogram hold up to eight
    warps: int = 4


# The fastest on an H200, by `benchmarks/bench_jax.py kernels`.
TILING = Tiling()
TILING_WITH_HISTOGRAM = Tiling(block=256, warps=2)
COMPILER_OPTIONS: dict[str, Any] = {}  # of XLA, for the pass as a whole

WINDOW = 64  # the length of a row of exponents; the last of them are not used
_INFINITY = 0xFF << 23
_SIGN = 0x7FFFFFFF
# In 32 bits, squares of larger numbers overflow, and squares of numbers that are much smaller vanish.
_SQUARES_FIT_BELOW, _SMALL = 2.0**59, 2.0**-30
_CONDITION = 16  # how much larger than the spread the squared mean may be
# Exponents are counted in thirteen fields of four bits in each of three doubles. Each value adds a power of two to each
# double, one sixteenth if it belongs to another one. After a round, even and odd fields go to words with
# fields of eight bits.
_DOUBLES, _PER_DOUBLE = 3, 13
_EXPONENTS = _DOUBLES * _PER_DOUBLE
_ONE_AT_FIRST = np.uint32((1023 + 48) << 20)  # the upper half of the double that adds one to the first field
_FIELD_DOWN = np.uint32(2**32 - (4 << 20))  # added to it for each further field, modulo 2**32
_EVEN, _ODD = np.int64(0x000F0F0F0F0F0F0F), np.int64(0x00000F0F0F0F0F0F)


def _loaded(x_ref: Any, start: Any, block: int) -> tuple[Any, Any]:
    """Values as 32-bit floats, and their bits without the sign."""
    x = x_ref[pl.ds(start, block)].astype(jnp.float32)
    return x, lax.bitcast_convert_type(x, jnp.int32) & np.int32(_SIGN)


def _one_in_double(exponents: Any, first: Any) -> Any:
    """The number that a value adds to a double whose first field is for the exponent `first`."""
    field = jnp.minimum(lax.bitcast_convert_type(exponents - first, jnp.uint32), np.uint32(_PER_DOUBLE))
    upper = field * _FIELD_DOWN + _ONE_AT_FIRST
    return lax.bitcast_convert_type(upper.astype(jnp.uint64) << np.uint64(32), jnp.float64)


def _with_round(kept: tuple[Any, ...], turns: list[Any], lowest: Any) -> tuple[Any, ...]:
    """The words with the exponents of a round added to them."""
    moved = []
    for number in range(_DOUBLES):
        ones = [_one_in_double(exponents, lowest + np.int32(number * _PER_DOUBLE)) for exponents in turns]
        # Added to 2**52, the whole part is in the last bits. What the ones elsewhere left is at most one half.
        whole = (sum(ones[1:], ones[0]) - np.float64(0.25)) + np.float64(2.0**52)
        bits = lax.bitcast_convert_type(whole, jnp.int64)
        even, odd = kept[2 * number : 2 * number + 2]
        moved += [even + (bits & _EVEN), odd + ((bits >> np.int64(4)) & _ODD)]
    return tuple(moved)


def _counts(kept: tuple[Any, ...]) -> list[Any]:
    """How many values of each lane have each exponent, from the words."""
    counts = []
    for number in range(_DOUBLES):
        for field in range(_PER_DOUBLE):
            bits = kept[2 * number + field % 2] >> np.int64((_PER_DOUBLE - 1 - field) // 2 * 8)
            counts.append((bits & np.int64(255)).astype(jnp.int32))
    return counts


def _total(x: Any) -> Any:
    return jnp.sum(x, dtype=x.dtype)


def _row(values: list[Any], length: int, dtype: Any) -> Any:
    """Scalars as a row."""
    numbers = lax.iota(jnp.int32, length)
    row = jnp.zeros(length, dtype)
    for number, value in enumerate(values):
        row = jnp.where(numbers == np.int32(number), value.astype(dtype), row)
    return row[None]


def _loop(count: Any, body: Any, start: Any) -> Any:
    return lax.fori_loop(np.int32(0), count, body, start)


def _key(number: Any) -> Any:
    """An integer with the order of the number."""
    bits = lax.bitcast_convert_type(number, jnp.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(_SIGN))


def _measure_chunk(x_ref: Any, whole_ref: Any, sums_ref: Any, *window_ref: Any, tiling: Tiling, tiny: int) -> None:
    block, turns = tiling.block, tiling.turns
    per_round = block * turns
    lowest = jnp.int32(0)
    if window_ref:
        # The window is chosen from a few values, with room for values that are four times larger.
        starts = range(0, tiling.chunk, max(tiling.chunk // 4, block))
        samples = [_loaded(x_ref, np.int32(start), block)[1] for start in starts]
        largest_sample = samples[0]
        for sample in samples[1:]:
            largest_sample = jnp.maximum(largest_sample, sample)
        top = jnp.max(largest_sample) >> np.int32(23)
        lowest = jnp.maximum(top + np.int32(3 - _EXPONENTS), np.int32(1))

    def one_round(number: Any, kept: Any) -> Any:
        (total, l1, square), (least, largest, smallest), words = kept
        exponents = []
        for turn in range(turns):
            x, magnitude = _loaded(x_ref, number * np.int32(per_round) + np.int32(turn * block), block)
            least, largest = jnp.minimum(least, x), jnp.maximum(largest, x)
            smallest = jnp.minimum(smallest, magnitude)
            total, l1, square = total + x, l1 + jnp.abs(x), square + x * x
            exponents.append(magnitude >> np.int32(23))
        if window_ref:
            for at in range(0, turns, 8):
                words = _with_round(words, exponents[at : at + 8], lowest)
        return (total, l1, square), (least, largest, smallest), words

    start = (
        tuple(jnp.zeros(block, jnp.float32) for _ in range(3)),
        (
            jnp.full(block, np.inf, jnp.float32),
            jnp.full(block, -np.inf, jnp.float32),
            jnp.full(block, _SIGN, jnp.int32),
        ),
        tuple(jnp.zeros(block, jnp.int64) for _ in range(2 * _DOUBLES)) if window_ref else (),
    )
    sums, (least, largest, smallest), words = _loop(np.int32(tiling.chunk // per_round), one_round, start)

    def one_block(number: Any, kept: Any) -> Any:
        _, magnitude = _loaded(x_ref, number * np.int32(block), block)
        is_zero, is_small = magnitude == np.int32(0), magnitude < np.int32(tiny)
        return kept[0] + is_zero.astype(jnp.int32), kept[1] + is_small.astype(jnp.int32)

    # Zeros and subnormals are rare, and counted only if there are any.
    blocks = jnp.where(jnp.min(smallest) < np.int32(tiny), np.int32(tiling.chunk // block), np.int32(0))
    small = _loop(blocks, one_block, (jnp.zeros(block, jnp.int32), jnp.zeros(block, jnp.int32)))
    extremes = [_key(jnp.min(least)), _key(jnp.max(largest))]
    whole_ref[...] = _row([*map(_total, small), *extremes, lowest], 8, jnp.int32)
    sums_ref[...] = _row([_total(lanes) for lanes in sums], 4, jnp.float32)
    if window_ref:
        window_ref[0][...] = _row([_total(lanes) for lanes in _counts(words)], WINDOW, jnp.int32)


def _one_array(x: Any, histogram: bool, tiling: Tiling, interpret: bool) -> Any:
    """The rows of the whole chunks of an array: integers, sums, and with the histogram, windows of exponents."""
    _check(tiling, histogram)
    flat = x.reshape(-1)
    chunks = flat.size // tiling.chunk
    rows = [(8, jnp.int32), (4, jnp.float32), *([(WINDOW, jnp.int32)] if histogram else [])]
    tiny = int(np.float32(smallest_normal(x.dtype.name)).view(np.int32))
    return pl.pallas_call(
        partial(_measure_chunk, tiling=tiling, tiny=tiny),
        grid=(chunks,),
        in_specs=[pl.BlockSpec((tiling.chunk,), lambda chunk: (chunk,))],
        out_specs=[pl.BlockSpec((1, length), lambda chunk: (chunk, np.int32(0))) for length, _ in rows],
        out_shape=[jax.ShapeDtypeStruct((chunks, length), dtype) for length, dtype in rows],
        compiler_params=pallas_triton.CompilerParams(num_warps=tiling.warps),
        interpret=interpret,
        name="leafwise_measure_chunk",
    )(flat)


def _check(tiling: Tiling, histogram: bool) -> None:
    per_lane = tiling.chunk // tiling.block
    assert tiling.chunk % (tiling.block * tiling.turns) == 0, tiling
    assert tiling.chunk <= 1 << 16, "what is left after the last chunk is counted in fields of 16 bits"
    assert not histogram or (tiling.turns % 8 == 0 and per_lane < 256), "fields would overflow"


_rows_of_chunks = jax.jit(_one_array, static_argnums=(1, 2, 3))  # traced once for all arrays of a shape


def _first_pass(arrays: tuple[Any, ...], histogram: bool, tiling: Tiling, interpret: bool) -> Figures:
    """Measures arrays of one shape and dtype that have a whole chunk. What cannot be precise is marked: the largest
    value is infinite."""
    size, dtype = arrays[0].size, arrays[0].dtype
    rows = [_rows_of_chunks(x, histogram, tiling, interpret) for x in arrays]
    whole, sums, *windows = (jnp.stack(of_arrays) for of_arrays in zip(*rows, strict=True))
    by_chunk = [whole[..., 0], whole[..., 1], *(sums[..., number] for number in range(3)), whole[..., 2], whole[..., 3]]
    cut = size - size % tiling.chunk
    rest = jnp.stack([x.reshape(-1)[cut:] for x in arrays]) if cut < size else None
    if rest is not None:
        of_rest = passes.fast(rest).over_rows()
        by_chunk = [
            jnp.concatenate([rows.astype(last.dtype), last[:, None]], 1)
            for rows, last in zip(by_chunk, of_rest, strict=True)
        ]
    wide = [rows.astype(jnp.int64 if jnp.issubdtype(rows.dtype, jnp.integer) else jnp.float64) for rows in by_chunk]
    figures = passes.measured(passes.reduced(wide, FOLDS, 1), len(COUNTED))
    if histogram:
        bins = _placed(windows[0], whole[..., 4])
        if rest is not None:
            last = passes.measured(of_rest, len(COUNTED))
            lowest = passes.window_below(last.extremes, dtype)
            counts = passes.window_counts(rest, lowest[:, None]).astype(jnp.int32)
            bins += _placed(counts[:, None], lowest[:, None])
        # In the first bin are zeros, and numbers that are subnormal in 32 bits: of float16, none is.
        first_bin = figures.counts[:, int(smallest_normal(dtype.name) == smallest_normal("float32"))]
        bins = jnp.where(jnp.arange(BINS) == 0, first_bin[:, None], bins)
        figures = figures._replace(lowest=jnp.zeros(len(arrays), jnp.int32), bins=bins)
    unsure = _is_unsure(figures, size, smallest_normal(dtype.name))
    return figures._replace(extremes=jnp.where(unsure[:, None], jnp.int64(_INFINITY), figures.extremes))


def _placed(windows: Any, lowest: Any) -> Any:
    """The bins of arrays, from the windows of their chunks, each with the exponent of its first count."""
    places = jnp.arange(BINS, dtype=jnp.int32) - lowest[..., None]
    inside = (places >= 0) & (places < windows.shape[-1])
    counts = jnp.take_along_axis(windows, jnp.clip(places, 0, windows.shape[-1] - 1), -1)
    return jnp.where(inside, counts, 0).astype(jnp.int64).sum(1)


def _is_unsure(figures: Figures, size: int, tiny: float) -> Any:
    """Whether arrays must be measured once more."""
    keys = figures.extremes.astype(jnp.int32)
    bits = jnp.where(keys < 0, keys ^ np.int32(_SIGN), keys)
    magnitudes = jnp.abs(lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.float64))
    total, l1, square = (figures.sums[:, number] for number in range(3))
    # A subnormal number that is an extreme may have been treated as zero.
    has_subnormals = figures.counts[:, 1] > figures.counts[:, 0]
    unsure = ~jnp.isfinite(l1) | (has_subnormals & (magnitudes.min(-1) < tiny))
    magnitude = magnitudes.max(-1)
    of_mean = total * total / size
    spread = (of_mean <= _CONDITION * (square - of_mean)) | (keys[:, 0] == keys[:, 1])
    return unsure | ((magnitude > 0) & ~((magnitude >= _SMALL) & (magnitude < _SQUARES_FIT_BELOW) & spread))


pass_of_tiling = jax.jit(_first_pass, static_argnums=(1, 2, 3))


@cache
def compiled(device: Any, shape: Any, dtype: Any, count: int, histogram: bool, tiling: Tiling) -> Any:
    """The pass for arrays of one kind. Once it is compiled, it can be called even while a function is being traced."""
    arrays = (jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(device)),) * count
    with warnings.catch_warnings():
        # JAX announces that it will remove Triton from Pallas; XLA measures then, see `kernels.xla.xla`.
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        return pass_of_tiling.lower(arrays, histogram, tiling, device.platform == "cpu").compile(COMPILER_OPTIONS)


def first_pass(arrays: tuple[Any, ...], histogram: bool) -> Figures:
    """Measures arrays of one shape and dtype: float32, float16 or bfloat16. On a CPU, the kernel is interpreted."""
    [device] = arrays[0].sharding.device_set
    tiling = TILING_WITH_HISTOGRAM if histogram else TILING
    figures: Figures = compiled(device, arrays[0].shape, arrays[0].dtype, len(arrays), histogram, tiling)(arrays)
    return figures
