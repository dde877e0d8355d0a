"""Comparing many pairs of arrays on a GPU, in one launch.

A table on the device has the addresses, the length and the kinds of each pair of chunks. `compare_whole_chunks`
compares full chunks of floats of at most 32 bits in one fast pass. If a value is not finite, it puts the chunk on a
list. `compare_carefully` compares the chunks on the list, and all other chunks (ends of arrays, integers, 64 bits),
with all checks. `fold_pairs` combines the chunks of each pair, in a fixed order.
"""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from leafwise.kernels.triton.triton_casts import gives, nan_bits, rounded_bits
from leafwise.kernels.triton.triton_values import (
    FLOAT64,
    HAS_BYTE_FLOAT,
    HAS_FLOAT64,
    HAS_WHOLE,
    INT8,
    UINT64,
    as_bits,
    as_float64,
    as_int64,
    float32_and_bits,
    power_of_two,
    store_double,
    store_row,
)

# The results for a chunk, and for a pair, one row each; `Comparison` is computed from them. `distance`, `norm` and
# `other_norm` are squares, in units of 4 to the power of their exponents; `dot` is in units of 2 to the power of the
# sum of those of both norms. Doubles are stored as their bits. `forth` and `back` are whether casting one side gives
# the other, `transposed` is whether samples of a square matrix agree with the other side transposed. In the kernels a
# row is a literal number: at every launch, Triton compares each global that a kernel reads.
ROWS = (
    "changed", "nonfinite", "nonfinite_changed", "distance", "norm",  # 0 to 4
    "other_norm", "dot", "largest", "distance_power", "norm_power",  # 5 to 9
    "other_power", "forth", "back", "transposed",  # 10 to 13
)  # fmt: skip
FIELDS = len(ROWS)
_LIST = tl.constexpr(FIELDS)  # the last row for chunks: the list of chunks to compare again
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _scale_of(magnitude):
    """The power of two by which numbers up to a magnitude are divided, so that squares neither overflow nor underflow;
    zero if they do not need it."""
    power = (((magnitude.to(tl.int64, bitcast=True) >> 52) & 2047) - 1023).to(tl.int32)
    needed = (magnitude > 0) & ((power > 480) | (power < -480))
    return tl.where(needed, tl.maximum(tl.minimum(power, 1000), -1000), 0)


@triton.jit
def compare_whole_chunks(
    chunks_to_compare, addresses, other_addresses, pairs, kinds, other_kinds, values, by_chunk, counter, chunks,
    KINDS: tl.constexpr, OTHER_KINDS: tl.constexpr, MIXED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One full chunk of floats of at most 32 bits. All sums are in 64 bits: reading the values takes longer."""
    chunk = tl.load(chunks_to_compare + tl.program_id(0))
    address = tl.load(addresses + chunk)
    other_address = tl.load(other_addresses + chunk)
    pair = tl.load(pairs + chunk)
    kind = tl.load(kinds + pair)
    other_kind = tl.load(other_kinds + pair)
    byte_values = values + 256 * pair if HAS_BYTE_FLOAT & KINDS else values
    lanes = tl.arange(0, BLOCK)
    changed = tl.zeros([BLOCK], tl.int32)
    distance = tl.zeros([BLOCK], tl.float64)
    norm = tl.zeros([BLOCK], tl.float64)
    other_norm = tl.zeros([BLOCK], tl.float64)
    dot = tl.zeros([BLOCK], tl.float64)
    largest = tl.zeros([BLOCK], tl.float64)
    not_forth = tl.zeros([BLOCK], tl.int32)
    not_back = tl.zeros([BLOCK], tl.int32)
    for start in range(0, CHUNK, BLOCK):
        x, bits = float32_and_bits(address, start + lanes, kind, byte_values, KINDS, BLOCK)
        y, other_bits = float32_and_bits(other_address, start + lanes, other_kind, byte_values, OTHER_KINDS, BLOCK)
        changed += (bits != other_bits).to(tl.int32)
        if MIXED:
            not_forth |= rounded_bits(x, bits, other_kind, OTHER_KINDS) ^ other_bits
            not_back |= rounded_bits(y, other_bits, kind, KINDS) ^ bits
        x = x.to(tl.float64)
        y = y.to(tl.float64)
        apart = x - y
        largest = tl.maximum(largest, tl.abs(apart))
        distance = tl.fma(apart, apart, distance)
        norm = tl.fma(x, x, norm)
        other_norm = tl.fma(y, y, other_norm)
        dot = tl.fma(x, y, dot)
    square, other_square = tl.sum(norm), tl.sum(other_norm)
    if square + other_square < _INFINITY:
        store_row(by_chunk, chunk, chunks, 0, tl.sum(changed))
        store_row(by_chunk, chunk, chunks, 1, 0)
        store_row(by_chunk, chunk, chunks, 2, 0)
        store_double(by_chunk, chunk, chunks, 3, tl.sum(distance))
        store_double(by_chunk, chunk, chunks, 4, square)
        store_double(by_chunk, chunk, chunks, 5, other_square)
        store_double(by_chunk, chunk, chunks, 6, tl.sum(dot))
        store_double(by_chunk, chunk, chunks, 7, tl.max(largest))
        store_row(by_chunk, chunk, chunks, 8, 0)
        store_row(by_chunk, chunk, chunks, 9, 0)
        store_row(by_chunk, chunk, chunks, 10, 0)
        store_row(by_chunk, chunk, chunks, 11, 1 - tl.max((not_forth != 0).to(tl.int32)))
        store_row(by_chunk, chunk, chunks, 12, 1 - tl.max((not_back != 0).to(tl.int32)))
    else:
        behind = tl.atomic_add(counter, 1, sem="relaxed")
        store_row(by_chunk + behind, 0, chunks, _LIST, chunk)


@triton.jit
def _between(x, y, address, other_address, at, mask, kind, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """The differences; those of integers exactly, because large integers were rounded."""
    apart = x - y
    if HAS_WHOLE & KINDS:
        if kind >= INT8:
            whole = as_int64(address, at, mask, kind, KINDS, BLOCK)
            other = as_int64(other_address, at, mask, kind, KINDS, BLOCK)
            # Flips the first bit of uint64, so that it can be compared as int64.
            flip = tl.where(kind == UINT64, -0x7FFFFFFFFFFFFFFF - 1, 0).to(tl.int64)
            steps = tl.where((whole ^ flip) > (other ^ flip), whole - other, other - whole)
            apart = steps.to(tl.uint64, bitcast=True).to(tl.float64)
    return apart


@triton.jit
def _carefully(
    address, other_address, size, kind, other_kind, values, by_chunk, chunk, chunks,
    KINDS: tl.constexpr, OTHER_KINDS: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All results for a pair of chunks."""
    lanes = tl.arange(0, BLOCK)
    changed = tl.zeros([BLOCK], tl.int32)
    nonfinite = tl.zeros([BLOCK], tl.int32)
    lost = tl.zeros([BLOCK], tl.int32)
    distance = tl.zeros([BLOCK], tl.float64)
    norm = tl.zeros([BLOCK], tl.float64)
    other_norm = tl.zeros([BLOCK], tl.float64)
    dot = tl.zeros([BLOCK], tl.float64)
    largest = tl.zeros([BLOCK], tl.float64)
    magnitude = tl.zeros([BLOCK], tl.float64)
    other_magnitude = tl.zeros([BLOCK], tl.float64)
    # One bit for each way to cast that did not give the other side.
    not_forth = tl.zeros([BLOCK], tl.int32)
    not_back = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        at = start + lanes
        mask = at < size
        bits = as_bits(address, at, mask, kind, KINDS, BLOCK)
        other_bits = as_bits(other_address, at, mask, other_kind, OTHER_KINDS, BLOCK)
        x = as_float64(address, at, mask, kind, values, KINDS, BLOCK)
        y = as_float64(other_address, at, mask, other_kind, values, OTHER_KINDS, BLOCK)
        differ = mask & (bits != other_bits)
        if MIXED:
            if kind != other_kind:
                both_nan = (x != x) & (y != y)
                wide = x.to(tl.int64, bitcast=True) != y.to(tl.int64, bitcast=True)
                other_nan = nan_bits(bits, kind) != nan_bits(other_bits, other_kind)
                differ = mask & tl.where(both_nan, other_nan, wide)
                through, once, nearest = gives(x, kind, other_bits, y, other_kind)
                not_forth |= tl.where(mask & (through == 0), 1, 0) | tl.where(mask & (once == 0), 2, 0)
                not_forth |= tl.where(mask & (nearest == 0), 4, 0)
                through, once, nearest = gives(y, other_kind, bits, x, kind)
                not_back |= tl.where(mask & (through == 0), 1, 0) | tl.where(mask & (once == 0), 2, 0)
                not_back |= tl.where(mask & (nearest == 0), 4, 0)
        finite = mask & (tl.abs(x) < _INFINITY) & (tl.abs(y) < _INFINITY)
        apart = _between(x, y, address, other_address, at, mask, kind, KINDS, BLOCK)
        x = tl.where(finite, x, 0.0)
        y = tl.where(finite, y, 0.0)
        apart = tl.where(finite, apart, 0.0)
        changed += differ.to(tl.int32)
        nonfinite += (mask & (finite == 0)).to(tl.int32)
        lost += (differ & (finite == 0)).to(tl.int32)
        largest = tl.maximum(largest, tl.abs(apart))
        magnitude = tl.maximum(magnitude, tl.abs(x))
        other_magnitude = tl.maximum(other_magnitude, tl.abs(y))
        distance += apart * apart
        norm += x * x
        other_norm += y * y
        dot += x * y
    furthest = tl.max(largest)
    power = 0
    other_power = 0
    apart_power = 0
    if HAS_FLOAT64 & (KINDS | OTHER_KINDS):
        if (kind == FLOAT64) | (other_kind == FLOAT64):
            power = _scale_of(tl.max(magnitude))
            other_power = _scale_of(tl.max(other_magnitude))
            # A difference may be larger than any number. It is halved then, and its exponent is that of the largest.
            half = (furthest == _INFINITY).to(tl.int32)
            apart_power = tl.where(half == 1, 1000, _scale_of(furthest))
            if (power != 0) | (other_power != 0) | (apart_power != 0):
                distance = tl.zeros([BLOCK], tl.float64)
                norm = tl.zeros([BLOCK], tl.float64)
                other_norm = tl.zeros([BLOCK], tl.float64)
                dot = tl.zeros([BLOCK], tl.float64)
                for start in range(0, size, BLOCK):
                    at = start + lanes
                    x = as_float64(address, at, at < size, kind, values, KINDS, BLOCK)
                    y = as_float64(other_address, at, at < size, other_kind, values, OTHER_KINDS, BLOCK)
                    finite = (tl.abs(x) < _INFINITY) & (tl.abs(y) < _INFINITY)
                    x = tl.where(finite, x, 0.0)
                    y = tl.where(finite, y, 0.0)
                    apart = (x * power_of_two(-half) - y * power_of_two(-half)) * power_of_two(-apart_power)
                    if half == 0:
                        apart = (x - y) * power_of_two(-apart_power)
                    x *= power_of_two(-power)
                    y *= power_of_two(-other_power)
                    distance += apart * apart
                    norm += x * x
                    other_norm += y * y
                    dot += x * y
                apart_power += half
    forth, back = _all_ways(not_forth), _all_ways(not_back)
    store_row(by_chunk, chunk, chunks, 0, tl.sum(changed))
    store_row(by_chunk, chunk, chunks, 1, tl.sum(nonfinite))
    store_row(by_chunk, chunk, chunks, 2, tl.sum(lost))
    store_double(by_chunk, chunk, chunks, 3, tl.sum(distance))
    store_double(by_chunk, chunk, chunks, 4, tl.sum(norm))
    store_double(by_chunk, chunk, chunks, 5, tl.sum(other_norm))
    store_double(by_chunk, chunk, chunks, 6, tl.sum(dot))
    store_double(by_chunk, chunk, chunks, 7, furthest)
    store_row(by_chunk, chunk, chunks, 8, apart_power)
    store_row(by_chunk, chunk, chunks, 9, power)
    store_row(by_chunk, chunk, chunks, 10, other_power)
    store_row(by_chunk, chunk, chunks, 11, forth)
    store_row(by_chunk, chunk, chunks, 12, back)


@triton.jit
def _all_ways(not_given):
    """Whether one way to cast gave the other side everywhere in a chunk."""
    failed = tl.max(not_given & 1) + tl.max((not_given >> 1) & 1) + tl.max((not_given >> 2) & 1)
    return (failed < 3).to(tl.int32)


@triton.jit
def compare_carefully(
    chunks_to_compare, already, addresses, other_addresses, sizes, pairs, kinds, other_kinds, values,
    by_chunk, counter, chunks,
    KINDS: tl.constexpr, OTHER_KINDS: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The chunks that always need this, and the chunks on the list; one program compares several."""
    count = already + tl.load(counter).to(tl.int32)
    for number in range(tl.program_id(0), count, tl.num_programs(0)):
        chunk = tl.load(chunks_to_compare + number, mask=number < already, other=0)
        if number >= already:
            chunk = tl.load(by_chunk + _LIST * chunks + number - already).to(tl.int32)
        pair = tl.load(pairs + chunk)
        byte_values = values + 256 * pair if HAS_BYTE_FLOAT & KINDS else values
        _carefully(
            tl.load(addresses + chunk), tl.load(other_addresses + chunk), tl.load(sizes + chunk),
            tl.load(kinds + pair), tl.load(other_kinds + pair), byte_values, by_chunk, chunk, chunks,
            KINDS, OTHER_KINDS, MIXED, BLOCK,
        )  # fmt: skip


@triton.jit
def _double(by_chunk, field: tl.constexpr, chunks, at, mask):
    return tl.load(by_chunk + field * chunks + at, mask=mask, other=0).to(tl.float64, bitcast=True)


@triton.jit
def _unit(by_chunk, field: tl.constexpr, power: tl.constexpr, chunks, at, mask, unit):
    """The largest exponent so far; that of chunks that are all zero is ignored."""
    powers = tl.load(by_chunk + power * chunks + at, mask=mask, other=0)
    return tl.where(mask & (_double(by_chunk, field, chunks, at, mask) > 0), tl.maximum(unit, powers), unit)


@triton.jit
def _shift(by_chunk, field: tl.constexpr, chunks, at, mask, unit):
    """The factor from the unit of each chunk to the common one. A factor of 2**-500 makes its square negligible."""
    powers = tl.load(by_chunk + field * chunks + at, mask=mask, other=0)
    return power_of_two(tl.maximum(tl.minimum(powers - unit, 0), -500))


@triton.jit
def _samples_agree(
    address, other_address, side, kind, other_kind, values,
    KINDS: tl.constexpr, OTHER_KINDS: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """Whether samples of a square matrix agree with the other side transposed."""
    lanes = tl.arange(0, 16)
    every = lanes < 16
    last = side - 1
    rows = lanes * last // 16
    columns = last - lanes * last // 32
    bits = as_bits(address, rows * side + columns, every, kind, KINDS, 16)
    other_bits = as_bits(other_address, columns * side + rows, every, other_kind, OTHER_KINDS, 16)
    agree = bits == other_bits
    if MIXED:
        if kind != other_kind:
            x = as_float64(address, rows * side + columns, every, kind, values, KINDS, 16)
            y = as_float64(other_address, columns * side + rows, every, other_kind, values, OTHER_KINDS, 16)
            through, once, nearest = gives(x, kind, other_bits, y, other_kind)
            agree = through | once | nearest
            through, once, nearest = gives(y, other_kind, bits, x, kind)
            agree = agree | through | once | nearest
    return tl.min(agree.to(tl.int32))


@triton.jit
def fold_pairs(
    by_chunk, chunks, first_chunks, addresses, other_addresses, sides, kinds, other_kinds, values, results, pairs,
    KINDS: tl.constexpr, OTHER_KINDS: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Combines the chunks of one pair, in their order."""
    pair = tl.program_id(0)
    first, stop = tl.load(first_chunks + pair), tl.load(first_chunks + pair + 1)
    lanes = tl.arange(0, BLOCK)
    changed = tl.zeros([BLOCK], tl.int64)
    nonfinite = tl.zeros([BLOCK], tl.int64)
    lost = tl.zeros([BLOCK], tl.int64)
    largest = tl.zeros([BLOCK], tl.float64)
    unit = tl.full([BLOCK], -2000, tl.int64)
    other_unit = tl.full([BLOCK], -2000, tl.int64)
    apart_unit = tl.full([BLOCK], -2000, tl.int64)
    forth = tl.full([BLOCK], 1, tl.int64)
    back = tl.full([BLOCK], 1, tl.int64)
    for start in range(first, stop, BLOCK):
        at = start + lanes
        mask = at < stop
        changed += tl.load(by_chunk + 0 * chunks + at, mask=mask, other=0)
        nonfinite += tl.load(by_chunk + 1 * chunks + at, mask=mask, other=0)
        lost += tl.load(by_chunk + 2 * chunks + at, mask=mask, other=0)
        largest = tl.maximum(largest, _double(by_chunk, 7, chunks, at, mask))
        apart_unit = _unit(by_chunk, 3, 8, chunks, at, mask, apart_unit)
        unit = _unit(by_chunk, 4, 9, chunks, at, mask, unit)
        other_unit = _unit(by_chunk, 5, 10, chunks, at, mask, other_unit)
        forth = tl.minimum(forth, tl.load(by_chunk + 11 * chunks + at, mask=mask, other=1))
        back = tl.minimum(back, tl.load(by_chunk + 12 * chunks + at, mask=mask, other=1))
    power, other_power, apart_power = tl.max(unit), tl.max(other_unit), tl.max(apart_unit)
    power = tl.where(power == -2000, 0, power)
    other_power = tl.where(other_power == -2000, 0, other_power)
    apart_power = tl.where(apart_power == -2000, 0, apart_power)
    distance = tl.zeros([BLOCK], tl.float64)
    norm = tl.zeros([BLOCK], tl.float64)
    other_norm = tl.zeros([BLOCK], tl.float64)
    dot = tl.zeros([BLOCK], tl.float64)
    for start in range(first, stop, BLOCK):
        at = start + lanes
        mask = at < stop
        shift = _shift(by_chunk, 8, chunks, at, mask, apart_power)
        distance += _double(by_chunk, 3, chunks, at, mask) * shift * shift
        shift = _shift(by_chunk, 9, chunks, at, mask, power)
        norm += _double(by_chunk, 4, chunks, at, mask) * shift * shift
        other_shift = _shift(by_chunk, 10, chunks, at, mask, other_power)
        other_norm += _double(by_chunk, 5, chunks, at, mask) * other_shift * other_shift
        dot += _double(by_chunk, 6, chunks, at, mask) * shift * other_shift
    agree = 0
    side = tl.load(sides + pair)
    if side > 1:
        byte_values = values + 256 * pair if HAS_BYTE_FLOAT & KINDS else values
        agree = _samples_agree(
            tl.load(addresses + first), tl.load(other_addresses + first), side,
            tl.load(kinds + pair), tl.load(other_kinds + pair), byte_values, KINDS, OTHER_KINDS, MIXED,
        )  # fmt: skip
    store_row(results, pair, pairs, 0, tl.sum(changed))
    store_row(results, pair, pairs, 1, tl.sum(nonfinite))
    store_row(results, pair, pairs, 2, tl.sum(lost))
    store_double(results, pair, pairs, 3, tl.sum(distance))
    store_double(results, pair, pairs, 4, tl.sum(norm))
    store_double(results, pair, pairs, 5, tl.sum(other_norm))
    store_double(results, pair, pairs, 6, tl.sum(dot))
    store_double(results, pair, pairs, 7, tl.max(largest))
    store_row(results, pair, pairs, 8, apart_power)
    store_row(results, pair, pairs, 9, power)
    store_row(results, pair, pairs, 10, other_power)
    store_row(results, pair, pairs, 11, tl.min(forth))
    store_row(results, pair, pairs, 12, tl.min(back))
    store_row(results, pair, pairs, 13, agree)
