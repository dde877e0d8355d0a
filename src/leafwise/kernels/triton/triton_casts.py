"""Whether casting floats to another dtype gives certain bits, in Triton kernels. See `streams` for what is a cast."""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from leafwise.kernels.triton.triton_values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HAS_BFLOAT16, HAS_FLOAT16

_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _to_odd(x):
    """64-bit floats as 32-bit floats, rounded to odd, so that rounding again, to fewer bits, is like rounding once."""
    nearest = x.to(tl.float32)
    back = nearest.to(tl.float64)
    bits = nearest.to(tl.int32, bitcast=True)
    bits -= (tl.abs(back) > tl.abs(x)).to(tl.int32)
    bits |= (back != x).to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _rounded(x, kind):
    """The bits of 32-bit floats, rounded to a kind of float of at most 32 bits. The bits of nan may be anything."""
    bits = x.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    if kind == BFLOAT16:
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if kind == FLOAT16:
        bits = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
    return bits


@triton.jit
def gives(x, from_kind, bits, y, kind):
    """Whether casting each x, a float of any kind, gives y, of another kind, whose bits are given. Three results: if x
    is rounded to 32 bits first, if it is rounded once, and if it is rounded once and numbers that are too large become
    the largest number. All nan are equal."""
    both_nan = (x != x) & (y != y)
    number = (x == x) & (y == y)
    through = number
    once = number
    nearest = number
    if kind == FLOAT64:  # nothing is rounded
        same = x.to(tl.int64, bitcast=True) == bits
        through = number & same
        once = through
        nearest = through
    else:
        single = x.to(tl.float32)
        through = number & (_rounded(single, kind) == bits)
        once = through
        nearest = through
        if from_kind == FLOAT64:
            if kind != FLOAT32:
                single = _to_odd(x)
            rounded = _rounded(single, kind)
            infinite = tl.where(kind == BFLOAT16, 0x7F80, tl.where(kind == FLOAT16, 0x7C00, 0x7F800000))
            signs = tl.where(kind == FLOAT32, 0x7FFFFFFF, 0x7FFF)
            overflows = ((rounded & signs) == infinite) & (tl.abs(x) < _INFINITY)
            # ml_dtypes and PyTorch round to bfloat16 twice, or not to infinity.
            once = number & (rounded == bits) & (kind != BFLOAT16)
            nearest = number & (tl.where(overflows, rounded - 1, rounded) == bits)
    return through | both_nan, once | both_nan, nearest | both_nan


@triton.jit
def nan_bits(bits, kind):
    """The sign and the fraction of nan as in 64 bits, where casts keep them."""
    sign = (bits >> 15) & 1
    fraction = (bits & 0x7F) << 45
    if kind == FLOAT16:
        fraction = (bits & 0x3FF) << 42
    if kind == FLOAT32:
        sign = (bits >> 31) & 1
        fraction = (bits & 0x7FFFFF) << 29
    if kind == FLOAT64:
        sign = (bits >> 63) & 1
        fraction = bits & 0xFFFFFFFFFFFFF
    return (sign << 52) | fraction | 0x8000000000000


@triton.jit
def rounded_bits(x, bits, kind, KINDS: tl.constexpr):
    """The bits of 32-bit floats that are rounded to a kind of float of at most 32 bits, and are then 32 bits again."""
    if HAS_BFLOAT16 & KINDS:
        if kind == BFLOAT16:
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    if HAS_FLOAT16 & KINDS:
        if kind == FLOAT16:
            bits = x.to(tl.float16).to(tl.float32).to(tl.int32, bitcast=True)
    return bits
