"""How kernels of Triton read numbers of every kind."""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: C901, N803

import triton
import triton.language as tl

# Numbers of kinds are those of the C code.
FLOAT32 = tl.constexpr(0)
FLOAT64 = tl.constexpr(1)
BFLOAT16 = tl.constexpr(2)
FLOAT16 = tl.constexpr(3)
BYTE_FLOAT = tl.constexpr(4)
INT8 = tl.constexpr(5)
INT16 = tl.constexpr(6)
INT32 = tl.constexpr(7)
INT64 = tl.constexpr(8)
UINT8 = tl.constexpr(9)
UINT16 = tl.constexpr(10)
UINT32 = tl.constexpr(11)
UINT64 = tl.constexpr(12)
BOOL = tl.constexpr(13)

# And the bits that say that one occurs.
HAS_FLOAT32 = tl.constexpr(1 << 0)
HAS_FLOAT64 = tl.constexpr(1 << 1)
HAS_BFLOAT16 = tl.constexpr(1 << 2)
HAS_FLOAT16 = tl.constexpr(1 << 3)
HAS_BYTE_FLOAT = tl.constexpr(1 << 4)
HAS_INT8 = tl.constexpr(1 << 5)
HAS_INT16 = tl.constexpr(1 << 6)
HAS_INT32 = tl.constexpr(1 << 7)
HAS_INT64 = tl.constexpr(1 << 8)
HAS_UINT8 = tl.constexpr(1 << 9)
HAS_UINT16 = tl.constexpr(1 << 10)
HAS_UINT32 = tl.constexpr(1 << 11)
HAS_UINT64 = tl.constexpr(1 << 12)
HAS_BOOL = tl.constexpr(1 << 13)
HAS_NARROW = tl.constexpr(0b11101)
HAS_INT64_OR_UINT64 = tl.constexpr(1 << 8 | 1 << 12)
HAS_WHOLE = tl.constexpr(0b11111111100000)


@triton.jit
def as_float32(address, offsets, kind, values, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Floats of at most 32 bits, as such. The address is a multiple of 16, so that many are loaded at once."""
    x = tl.zeros([BLOCK], tl.float32)
    if HAS_BFLOAT16 == KINDS:  # of which most models consist entirely
        raw = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint16)), 16) + offsets)
        x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif HAS_FLOAT32 == KINDS:
        x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16) + offsets)
    else:
        if HAS_FLOAT32 & KINDS:
            if kind == FLOAT32:
                x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16) + offsets)
        if HAS_BFLOAT16 & KINDS:
            if kind == BFLOAT16:
                raw = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint16)), 16) + offsets)
                x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        if HAS_FLOAT16 & KINDS:
            if kind == FLOAT16:
                x = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float16)), 16) + offsets).to(tl.float32)
        if HAS_BYTE_FLOAT & KINDS:
            if kind == BYTE_FLOAT:
                code = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 16) + offsets)
                x = tl.load(values + code.to(tl.int32))
    return x


@triton.jit
def as_float64(address, offsets, mask, kind, values, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Any kind, as 64-bit floats."""
    x = tl.zeros([BLOCK], tl.float64)
    if HAS_FLOAT32 & KINDS:
        if kind == FLOAT32:
            x = tl.load(address.to(tl.pointer_type(tl.float32)) + offsets, mask=mask, other=0).to(tl.float64)
    if HAS_FLOAT64 & KINDS:
        if kind == FLOAT64:
            x = tl.load(address.to(tl.pointer_type(tl.float64)) + offsets, mask=mask, other=0)
    if HAS_BFLOAT16 & KINDS:
        if kind == BFLOAT16:
            raw = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=mask, other=0)
            x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    if HAS_FLOAT16 & KINDS:
        if kind == FLOAT16:
            raw = tl.load(address.to(tl.pointer_type(tl.float16)) + offsets, mask=mask, other=0)
            x = raw.to(tl.float32).to(tl.float64)
    if HAS_BYTE_FLOAT & KINDS:
        if kind == BYTE_FLOAT:
            code = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0)
            x = tl.where(mask, tl.load(values + code.to(tl.int32)).to(tl.float64), 0.0)
    if HAS_WHOLE & KINDS:
        if kind >= INT8:
            whole = as_int64(address, offsets, mask, kind, KINDS, BLOCK)
            x = tl.where(kind == UINT64, whole.to(tl.uint64, bitcast=True).to(tl.float64), whole.to(tl.float64))
    return x


@triton.jit
def as_int64(address, offsets, mask, kind, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Whole numbers as 64 bits; those of uint64 with their bits as they are."""
    x = tl.zeros([BLOCK], tl.int64)
    if HAS_INT8 & KINDS:
        if kind == INT8:
            x = tl.load(address.to(tl.pointer_type(tl.int8)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_INT16 & KINDS:
        if kind == INT16:
            x = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_INT32 & KINDS:
        if kind == INT32:
            x = tl.load(address.to(tl.pointer_type(tl.int32)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_INT64_OR_UINT64 & KINDS:
        if (kind == INT64) | (kind == UINT64):
            x = tl.load(address.to(tl.pointer_type(tl.int64)) + offsets, mask=mask, other=0)
    if HAS_UINT8 & KINDS:
        if kind == UINT8:
            x = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_UINT16 & KINDS:
        if kind == UINT16:
            x = tl.load(address.to(tl.pointer_type(tl.uint16)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_UINT32 & KINDS:
        if kind == UINT32:
            x = tl.load(address.to(tl.pointer_type(tl.uint32)) + offsets, mask=mask, other=0).to(tl.int64)
    if HAS_BOOL & KINDS:
        if kind == BOOL:
            x = (tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0) != 0).to(tl.int64)
    return x
