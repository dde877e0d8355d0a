"""Searching the lines of many arrays on a GPU, in one launch: `line_cells` and `near_pairs` find lines that may be near
each other, and `nonzero_lines` finds lines that are not all zero.

A table on the device has a row of `FIELDS` numbers for each array and axis; each program searches a block of lines or a
chunk of elements. What a cell is, is in `lines.py`, which computes the same in NumPy.
"""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from leafwise.kernels.triton.triton_values import as_float64

# The columns of the table of arrays whose lines are compared. In the kernels a column is a literal number, as in
# `triton_kernels.py`. The scale is stored as the bits of a double.
FIELDS = ("address", "kind", "scale", "lines", "stride", "sampled", "layout", "first")
# The columns of the table of arrays that are searched for zeros: `inner` elements of each line follow each other, and
# all lines repeat `outer` times. `keep` has the bits of an element that are all zero in a zero.
ZERO_FIELDS = ("address", "outer", "lines", "inner", "itemsize", "keep", "first", "program")


@triton.jit
def line_cells(
    table, programs, offsets, values, onto, odd, shifts, keys, total, width, least,
    KINDS: tl.constexpr, GRIDS: tl.constexpr, SAMPLED: tl.constexpr, COORDINATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For each line and each grid, a key that is equal for lines of one array in the same cell: the number of the array
    and a word for the cell."""
    job = tl.load(programs + 2 * tl.program_id(0))
    row = table + 8 * job
    address = tl.load(row)
    kind = tl.load(row + 1).to(tl.int32)
    scale = tl.load(row + 2).to(tl.float64, bitcast=True)
    count = tl.load(row + 3)
    stride = tl.load(row + 4)
    sampled = tl.load(row + 5)
    layout = tl.load(row + 6)
    first = tl.load(row + 7)
    lines = tl.load(programs + 2 * tl.program_id(0) + 1).to(tl.int64) + tl.arange(0, BLOCK)
    inside = lines < count
    numbers = tl.arange(0, COORDINATES)
    square = tl.zeros([BLOCK], tl.float64)
    mixed = tl.zeros([BLOCK, COORDINATES], tl.float64)
    for number in range(SAMPLED):
        at = lines * stride + tl.load(offsets + layout * SAMPLED + number)
        mask = lines < tl.where(number < sampled, count, 0)
        x = as_float64(address, at, mask, kind, values + 256 * layout, KINDS, BLOCK) * scale
        square += x * x
        mixed += x[:, None] * tl.load(onto + number * COORDINATES + numbers)[None, :]
    size = tl.maximum(tl.sqrt(square), least)
    narrow = mixed.to(tl.float32)
    factors = tl.load(odd + 1 + numbers).to(tl.int64)
    for grid in range(GRIDS):
        # The power of two above the size, as math.frexp gives it; the smallest size is far from subnormal.
        shifted = size * tl.load(shifts + GRIDS + grid)
        measure = ((shifted.to(tl.int64, bitcast=True) >> 52) & 2047) - 1022
        unit = ((127 - measure) << 23).to(tl.int32).to(tl.float32, bitcast=True) * width
        cells = tl.floor(narrow * unit[:, None] + tl.load(shifts + grid).to(tl.float32)).to(tl.int64)
        word = tl.sum(cells * factors[None, :], 1) + measure * tl.load(odd).to(tl.int64)
        tl.store(keys + grid * total + first + lines, (job.to(tl.int64) << 32) | (word & 0xFFFFFFFF), mask=inside)


@triton.jit
def near_pairs(
    table, offsets, values, jobs, lines, neighbors, near, reach,
    KINDS: tl.constexpr, SAMPLED: tl.constexpr,
):  # fmt: skip
    """Whether two lines of one array that share a cell are near each other, and not in one cell by chance."""
    pair = tl.program_id(0)
    row = table + 8 * tl.load(jobs + pair)
    address = tl.load(row)
    kind = tl.load(row + 1).to(tl.int32)
    scale = tl.load(row + 2).to(tl.float64, bitcast=True)
    stride = tl.load(row + 4)
    layout = tl.load(row + 6)
    first = tl.load(row + 7)
    numbers = tl.arange(0, SAMPLED)
    mask = numbers < tl.load(row + 5)
    at = tl.load(offsets + layout * SAMPLED + numbers)
    byte_values = values + 256 * layout
    line = (tl.load(lines + pair) - first) * stride
    neighbor = (tl.load(neighbors + pair) - first) * stride
    x = as_float64(address, at + line, mask, kind, byte_values, KINDS, SAMPLED) * scale
    y = as_float64(address, at + neighbor, mask, kind, byte_values, KINDS, SAMPLED) * scale
    distance = tl.sum((x - y) * (x - y))
    tl.store(near + pair, (distance <= reach * tl.sum(x * x)).to(tl.int8))


@triton.jit
def _bits(address, at, mask, itemsize, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """The bits of elements of any size. One byte gets a bit that is always set, for dtypes without a zero."""
    bits = tl.zeros([BLOCK], tl.int64)
    if SIZES & 1:
        if itemsize == 1:
            bits = tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=mask, other=0).to(tl.int64) | 256
    if SIZES & 2:
        if itemsize == 2:
            bits = tl.load(address.to(tl.pointer_type(tl.int16)) + at, mask=mask, other=0).to(tl.int64)
    if SIZES & 4:
        if itemsize == 4:
            bits = tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=mask, other=0).to(tl.int64)
    if SIZES & 8:
        if itemsize == 8:
            bits = tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=mask, other=0)
    return bits


@triton.jit
def nonzero_lines(
    table, programs, flags,
    SIZES: tl.constexpr, CHUNK: tl.constexpr, REPEATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes a one for each line with a nonzero element."""
    row = table + 8 * tl.load(programs + tl.program_id(0))
    address = tl.load(row)
    outer = tl.load(row + 1)
    lines = tl.load(row + 2)
    inner = tl.load(row + 3)
    itemsize = tl.load(row + 4)
    keep = tl.load(row + 5)
    first = tl.load(row + 6)
    number = tl.program_id(0) - tl.load(row + 7)
    lanes = tl.arange(0, BLOCK)
    bits = tl.zeros([BLOCK], tl.int64)
    # Several programs may write the same one, which does no harm.
    if outer == 1:
        # A line is contiguous, and a program reads one chunk of it.
        chunks = (inner + CHUNK - 1) // CHUNK
        line = number // chunks
        start = (number % chunks) * CHUNK
        for part in range(0, CHUNK, BLOCK):
            at = start + part + lanes
            bits |= _bits(address, line * inner + at, at < inner, itemsize, SIZES, BLOCK)
        tl.store(flags + first + line, 1, mask=tl.max(((bits & keep) != 0).to(tl.int32)) != 0)
    else:
        # Lines repeat, and a program reads a block of them several times.
        period = lines * inner
        blocks = (period + BLOCK - 1) // BLOCK
        at = (number % blocks) * BLOCK + lanes
        start = (number // blocks) * REPEATS
        inside = at < period
        for repeat in range(start, tl.minimum(start + REPEATS, outer)):
            bits |= _bits(address, repeat * period + at, inside, itemsize, SIZES, BLOCK)
        tl.store(flags + first + at // inner, 1, mask=inside & ((bits & keep) != 0))
