"""How Triton kernels read numbers of every kind."""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: C901, N803

import triton
import triton.language as tl

from leafwise.core.dtypes import BYTE_FLOAT, DTYPES


def _kernel(dtype: str) -> int:
    number = DTYPES[dtype].kernel
    assert number is not None
    return number


def _bits(*dtypes: str) -> int:
    return sum(1 << _kernel(dtype) for dtype in dtypes)


# The numbers of kinds, as in the C code.
FLOAT32 = tl.constexpr(_kernel("float32"))
FLOAT64 = tl.constexpr(_kernel("float64"))
BFLOAT16 = tl.constexpr(_kernel("bfloat16"))
FLOAT16 = tl.constexpr(_kernel("float16"))
_BYTE_FLOAT = tl.constexpr(BYTE_FLOAT)
INT8 = tl.constexpr(_kernel("int8"))
INT16 = tl.constexpr(_kernel("int16"))
INT32 = tl.constexpr(_kernel("int32"))
INT64 = tl.constexpr(_kernel("int64"))
UINT8 = tl.constexpr(_kernel("uint8"))
UINT16 = tl.constexpr(_kernel("uint16"))
UINT32 = tl.constexpr(_kernel("uint32"))
UINT64 = tl.constexpr(_kernel("uint64"))
BOOL = tl.constexpr(_kernel("bool"))

# Bits that say which kinds occur.
HAS_FLOAT32 = tl.constexpr(_bits("float32"))
HAS_FLOAT64 = tl.constexpr(_bits("float64"))
HAS_BFLOAT16 = tl.constexpr(_bits("bfloat16"))
HAS_FLOAT16 = tl.constexpr(_bits("float16"))
HAS_BYTE_FLOAT = tl.constexpr(1 << BYTE_FLOAT)
HAS_INT8 = tl.constexpr(_bits("int8"))
HAS_INT16 = tl.constexpr(_bits("int16"))
HAS_INT32 = tl.constexpr(_bits("int32"))
HAS_UINT8 = tl.constexpr(_bits("uint8"))
HAS_UINT16 = tl.constexpr(_bits("uint16"))
HAS_UINT32 = tl.constexpr(_bits("uint32"))
HAS_BOOL = tl.constexpr(_bits("bool"))
HAS_INT64_OR_UINT64 = tl.constexpr(_bits("int64", "uint64"))
_HAS_1_BYTE = tl.constexpr((1 << BYTE_FLOAT) | _bits("int8", "uint8", "bool"))
_HAS_2_BYTES = tl.constexpr(_bits("bfloat16", "float16", "int16", "uint16"))
_HAS_4_BYTES = tl.constexpr(_bits("float32", "int32", "uint32"))
_HAS_8_BYTES = tl.constexpr(_bits("float64", "int64", "uint64"))
HAS_WHOLE = tl.constexpr(_bits(*(name for name, dtype in DTYPES.items() if dtype.kind in ("int", "bool"))))


@triton.jit
def as_float32(address, offsets, kind, values, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Floats of at most 32 bits as float32. The address is a multiple of 16, so that several are loaded at once."""
    x = tl.zeros([BLOCK], tl.float32)
    if HAS_BFLOAT16 == KINDS:  # the only kind in most models
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
            if kind == _BYTE_FLOAT:
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
        if kind == _BYTE_FLOAT:
            code = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0)
            x = tl.where(mask, tl.load(values + code.to(tl.int32)).to(tl.float64), 0.0)
    if HAS_WHOLE & KINDS:
        if kind >= INT8:
            whole = as_int64(address, offsets, mask, kind, KINDS, BLOCK)
            x = tl.where(kind == UINT64, whole.to(tl.uint64, bitcast=True).to(tl.float64), whole.to(tl.float64))
    return x


@triton.jit
def as_int64(address, offsets, mask, kind, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Integers as 64 bits; uint64 keeps its bits."""
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


@triton.jit
def float32_and_bits(address, offsets, kind, values, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """Floats of at most 32 bits as float32, and their bits, which differ if those of the floats do, except for nan. The
    address is a multiple of 16, so that several are loaded at once."""
    x = as_float32(address, offsets, kind, values, KINDS, BLOCK)
    bits = x.to(tl.int32, bitcast=True)
    if HAS_BYTE_FLOAT & KINDS:
        if kind == _BYTE_FLOAT:  # several bytes may have the same value
            bits = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 16) + offsets).to(tl.int32)
    return x, bits


@triton.jit
def as_bits(address, offsets, mask, kind, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """The bits of any kind, as 64 bits."""
    bits = tl.zeros([BLOCK], tl.int64)
    if _HAS_1_BYTE & KINDS:
        if (kind == _BYTE_FLOAT) | (kind == INT8) | (kind == UINT8) | (kind == BOOL):
            bits = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0).to(tl.int64)
    if _HAS_2_BYTES & KINDS:
        if (kind == BFLOAT16) | (kind == FLOAT16) | (kind == INT16) | (kind == UINT16):
            bits = tl.load(address.to(tl.pointer_type(tl.uint16)) + offsets, mask=mask, other=0).to(tl.int64)
    if _HAS_4_BYTES & KINDS:
        if (kind == FLOAT32) | (kind == INT32) | (kind == UINT32):
            bits = tl.load(address.to(tl.pointer_type(tl.uint32)) + offsets, mask=mask, other=0).to(tl.int64)
    if _HAS_8_BYTES & KINDS:
        if (kind == FLOAT64) | (kind == INT64) | (kind == UINT64):
            bits = tl.load(address.to(tl.pointer_type(tl.int64)) + offsets, mask=mask, other=0)
    return bits


@triton.jit
def power_of_two(exponent):
    """Two to the power of an integer from -1022 to 1023, exactly."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def store_row(table, row, rows, field: tl.constexpr, number):
    tl.store(table + field * rows + row, number)


@triton.jit
def store_double(table, row, rows, field: tl.constexpr, number):
    tl.store(table + field * rows + row, number.to(tl.float64).to(tl.int64, bitcast=True))
