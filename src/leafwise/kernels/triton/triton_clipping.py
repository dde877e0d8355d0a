"""The norm of many gradients on a GPU, and scaling them by it, without waiting for the host in between.

All kernels use the table of chunks of `triton_kernels`. `add_squares` adds up the squares of each chunk, `find_factor`
computes the factor from all of them, in a fixed order, and `scale_chunks` multiplies each chunk by it, in place.
"""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from leafwise.kernels.triton.triton_values import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HAS_BFLOAT16,
    HAS_FLOAT16,
    HAS_FLOAT32,
    HAS_FLOAT64,
    as_float32,
    as_float64,
)

_INFINITY = tl.constexpr(float("inf"))
MOST_SQUARES = 1e300  # from this sum of squares on, nothing is scaled: the host then computes the norms with more range
_MOST_SQUARES = tl.constexpr(MOST_SQUARES)
_SMALL = tl.constexpr(2.0**-80)  # if squares in 32 bits add up to less, some of them may have been too small


@triton.jit
def add_squares(
    addresses, sizes, arrays, kinds, values, squares, KINDS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of the squares of one chunk: of a full chunk in 32 bits, in short runs, if that is exact enough;
    otherwise in 64 bits."""
    chunk = tl.program_id(0)
    address = tl.load(addresses + chunk)
    size = tl.load(sizes + chunk)
    kind = tl.load(kinds + tl.load(arrays + chunk))
    lanes = tl.arange(0, BLOCK)
    square = tl.full([], -1.0, tl.float64)
    if (size == CHUNK) & (address % 16 == 0) & (kind != FLOAT64):
        largest = tl.zeros([BLOCK], tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, CHUNK, BLOCK * 8):
            for part in tl.static_range(8):
                x = as_float32(address, start + part * BLOCK + lanes, kind, values, KINDS, BLOCK)
                largest = tl.maximum(largest, tl.abs(x))
                sums = tl.fma(x, x, sums)
        square = tl.sum(sums.to(tl.float64))
        fine = (square < _INFINITY) & ((square > _SMALL) | (tl.max(largest) == 0))
        square = tl.where(fine, square, -1.0)
    if square < 0:
        wide = tl.zeros([BLOCK], tl.float64)
        for start in range(0, size, BLOCK):
            x = as_float64(address, start + lanes, start + lanes < size, kind, values, KINDS, BLOCK)
            wide += x * x
        square = tl.sum(wide)
    tl.store(squares + chunk, square)


@triton.jit
def find_factor(squares, chunks, max_norm, factor, BLOCK: tl.constexpr):
    """The factor that limits the norm to `max_norm`; 1 if it is smaller already, or not finite."""
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float64)
    for start in range(0, chunks, BLOCK):
        sums += tl.load(squares + start + lanes, mask=start + lanes < chunks, other=0.0)
    squares_sum = tl.sum(sums)
    total = tl.sqrt(squares_sum)
    limit = tl.load(max_norm)
    tl.store(factor, tl.where((squares_sum < _MOST_SQUARES) & (total > limit), limit / total, 1.0))


@triton.jit
def _scale(address, offsets, mask, kind, factor, KINDS: tl.constexpr, ALIGN: tl.constexpr):
    short = factor.to(tl.float32)
    if HAS_FLOAT32 & KINDS:
        if kind == FLOAT32:
            places = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), ALIGN) + offsets
            tl.store(places, tl.load(places, mask=mask) * short, mask=mask)
    if HAS_BFLOAT16 & KINDS:
        if kind == BFLOAT16:
            places = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), ALIGN) + offsets
            scaled = tl.load(places, mask=mask).to(tl.float32) * short
            tl.store(places, scaled.to(tl.bfloat16), mask=mask)
    if HAS_FLOAT16 & KINDS:
        if kind == FLOAT16:
            places = tl.multiple_of(address.to(tl.pointer_type(tl.float16)), ALIGN) + offsets
            scaled = tl.load(places, mask=mask).to(tl.float32) * short
            tl.store(places, scaled.to(tl.float16), mask=mask)
    if HAS_FLOAT64 & KINDS:
        if kind == FLOAT64:
            places = tl.multiple_of(address.to(tl.pointer_type(tl.float64)), ALIGN) + offsets
            tl.store(places, tl.load(places, mask=mask) * factor, mask=mask)


@triton.jit
def scale_chunks(
    addresses, sizes, arrays, kinds, factor, chunks, KINDS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """Multiplies one chunk by the factor; the last chunk first, because its values may still be in the cache."""
    scale = tl.load(factor)
    if scale != 1.0:
        chunk = chunks - 1 - tl.program_id(0)
        address = tl.load(addresses + chunk)
        size = tl.load(sizes + chunk)
        kind = tl.load(kinds + tl.load(arrays + chunk))
        lanes = tl.arange(0, BLOCK)
        if (size == CHUNK) & (address % 16 == 0):
            for start in range(0, CHUNK, BLOCK):
                _scale(address, start + lanes, None, kind, scale, KINDS, 16)
        else:
            for start in range(0, size, BLOCK):
                _scale(address, start + lanes, start + lanes < size, kind, scale, KINDS, 1)
