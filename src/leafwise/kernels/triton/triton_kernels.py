"""The statistics of many arrays on a GPU, in one launch.

A table on the device has the address, the length and the kind of each chunk. `measure_whole_chunks` measures full
chunks of floats of at most 32 bits, in one fast pass in 32 bits. If the result cannot be exact enough, because values
are not finite, too large or too small to be squared in 32 bits, or far from zero compared to their spread, it puts the
chunk on a list. `measure_carefully` measures the chunks on the list, and all other chunks (ends of arrays, integers, 64
bits), in 64 bits and with all checks. `fold_chunks` combines the chunks of each array, in a fixed order.
"""

# The kernels are written for Triton's compiler, which allows less than Python does.
# mypy: ignore-errors
# ruff: noqa: C901, N803

import triton
import triton.language as tl

from leafwise.kernels.triton.triton_values import (
    FLOAT64,
    HAS_BYTE_FLOAT,
    HAS_FLOAT64,
    HAS_WHOLE,
    INT8,
    UINT64,
    as_float32,
    as_float64,
    as_int64,
    power_of_two,
    store_double,
    store_row,
)

# The results for a chunk, and for an array, one row each; `Moments` is computed from them. `deviation` and `square` are
# in units of 4 to the power of `exponent`; doubles are stored as their bits. In the kernels a row is a literal number:
# at every launch, Triton compares each global that a kernel reads, and names for the rows doubled the time of a call.
# Add a new row at the end, and compute it in `_carefully`, `measure_whole_chunks` and `fold_chunks`.
ROWS = (
    "nan", "posinf", "neginf", "zeros", "subnormals",  # 0 to 4
    "finite", "min", "max", "mean", "deviation",  # 5 to 9
    "l1", "square", "exponent", "whole_min", "whole_max",  # 10 to 14
)  # fmt: skip
FIELDS = len(ROWS)
_LIST = tl.constexpr(FIELDS)  # the last row for chunks: the list of chunks to measure again

_INFINITY = tl.constexpr(float("inf"))
_SQUARES_FIT_BELOW = tl.constexpr(2.0**59)  # sums of squares of larger numbers overflow in 32 bits
_SMALL = tl.constexpr(2.0**-40)  # squares of smaller numbers underflow in 32 bits
# The fast histogram counts 39 exponents, in three doubles of thirteen fields of four bits: each value adds a power of
# two to each double, one sixteenth if it belongs to another one. This takes fewer instructions than shifting a one into
# place, and uses units of the processor that are idle otherwise.
_FIELDS = tl.constexpr(13)
_WINDOW = tl.constexpr(39)
_ONE_AT_FIRST = tl.constexpr((1023 + 48) << 20)  # the upper half of the double that adds one to the first field
_FIELD_DOWN = tl.constexpr(2**32 - (4 << 20))  # added to it for each further field, modulo 2**32
_NIBBLES = tl.constexpr(0x0F0F0F0F0F0F0F0F)
_PER_FLUSH = tl.constexpr(8)  # values per lane before the fields are moved to eight bits; sixteen would overflow


@triton.jit
def _biased(x):
    """The exponents of 64-bit floats as 32-bit floats have them: 0 for all that are smaller, 255 for all larger."""
    exponents = ((x.to(tl.int64, bitcast=True) >> 52) & 2047) - 896
    return tl.minimum(tl.maximum(exponents, 0), 255).to(tl.int32)


@triton.jit
def _carefully(
    address, size, kind, values, tiny, histogram, by_chunk, chunk, chunks,
    KINDS: tl.constexpr, HISTOGRAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All results for a chunk, in 64 bits."""
    lanes = tl.arange(0, BLOCK)
    nan = tl.zeros([BLOCK], tl.int32)
    posinf = tl.zeros([BLOCK], tl.int32)
    neginf = tl.zeros([BLOCK], tl.int32)
    zeros = tl.zeros([BLOCK], tl.int32)
    small = tl.zeros([BLOCK], tl.int32)
    least = tl.full([BLOCK], _INFINITY, tl.float64)
    largest = tl.full([BLOCK], -_INFINITY, tl.float64)
    least_whole = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64)
    largest_whole = tl.full([BLOCK], -0x7FFFFFFFFFFFFFFF - 1, tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    magnitudes = tl.zeros([BLOCK], tl.float64)
    bins = tl.zeros([256], tl.int32)
    for start in range(0, size, BLOCK):
        mask = start + lanes < size
        x = as_float64(address, start + lanes, mask, kind, values, KINDS, BLOCK)
        is_nan = x != x
        is_posinf = x == _INFINITY
        is_neginf = x == -_INFINITY
        finite = mask & (is_nan == 0) & (is_posinf == 0) & (is_neginf == 0)
        nan += (mask & is_nan).to(tl.int32)
        posinf += (mask & is_posinf).to(tl.int32)
        neginf += (mask & is_neginf).to(tl.int32)
        zeros += (finite & (x == 0)).to(tl.int32)
        small += (finite & (tl.abs(x) < tiny)).to(tl.int32)
        least = tl.where(finite, tl.minimum(least, x), least)
        largest = tl.where(finite, tl.maximum(largest, x), largest)
        total += tl.where(finite, x, 0.0)
        magnitudes += tl.where(finite, tl.abs(x), 0.0)
        if HAS_WHOLE & KINDS:
            if kind >= INT8:
                whole = as_int64(address, start + lanes, mask, kind, KINDS, BLOCK)
                # Flips the first bit of uint64, so that it can be compared as int64.
                ordered = tl.where(kind == UINT64, whole ^ (-0x7FFFFFFFFFFFFFFF - 1), whole)
                least_whole = tl.where(mask, tl.minimum(least_whole, ordered), least_whole)
                largest_whole = tl.where(mask, tl.maximum(largest_whole, ordered), largest_whole)
                if HISTOGRAM:
                    # As a float, a large integer could be rounded up to a power of two: its last bits are cleared.
                    bits = tl.where((whole < 0) & (kind != UINT64), 0 - whole, whole).to(tl.uint64, bitcast=True)
                    short = tl.where(bits >= 0x20000000000000, bits & 0xFFFFFFFFFFFFF800, bits)
                    x = short.to(tl.float64)
        if HISTOGRAM:
            counted = finite & (x != 0)
            exponents = _biased(x)
            bins += tl.histogram(tl.where(counted, exponents, 0), 256)
            # Values that do not count were added to bin 0.
            uncounted = tl.sum((counted == 0).to(tl.int32))
            bins -= tl.where(tl.arange(0, 256) == 0, uncounted, 0)
    zero_count = tl.sum(zeros)
    nan_count, posinf_count, neginf_count = tl.sum(nan), tl.sum(posinf), tl.sum(neginf)
    count = size - nan_count - posinf_count - neginf_count
    subnormals = tl.sum(small) - zero_count
    if HAS_WHOLE & KINDS:
        if kind >= INT8:
            subnormals = 0
    low, high = tl.min(least), tl.max(largest)
    # Scaled by a power of two, so that squares neither overflow nor underflow.
    exponent = tl.zeros([], tl.int32)
    if HAS_FLOAT64 & KINDS:
        magnitude = tl.maximum(tl.abs(low), tl.abs(high))
        if (kind == FLOAT64) & (count > 0) & (magnitude > 0):
            power = (((magnitude.to(tl.int64, bitcast=True) >> 52) & 2047) - 1023).to(tl.int32)
            if (power > 480) | (power < -480):
                exponent = tl.maximum(tl.minimum(power, 1000), -1000)
                total = tl.zeros([BLOCK], tl.float64)
                magnitudes = tl.zeros([BLOCK], tl.float64)
                for start in range(0, size, BLOCK):
                    x = as_float64(address, start + lanes, start + lanes < size, kind, values, KINDS, BLOCK)
                    x = tl.where(tl.abs(x) < _INFINITY, x, 0.0) * power_of_two(-exponent)
                    total += x
                    magnitudes += tl.abs(x)
    scale = power_of_two(-exponent)
    mean = tl.sum(total) / tl.maximum(count, 1)
    rests = tl.zeros([BLOCK], tl.float64)
    deviations = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        mask = start + lanes < size
        x = as_float64(address, start + lanes, mask, kind, values, KINDS, BLOCK)
        finite = mask & (tl.abs(x) < _INFINITY)
        x *= scale
        distance = tl.where(finite, x - mean, 0.0)
        squares += tl.where(finite, x * x, 0.0)
        rests += distance
        deviations += distance * distance
    # The mean was rounded if sums were large; the sum of the distances from it corrects it.
    rest = tl.sum(rests) / tl.maximum(count, 1)
    deviation = tl.maximum(tl.sum(deviations) - tl.sum(rests) * rest, 0.0)
    constant = (count > 0) & (low == high)
    mean = tl.where(constant, low * scale + 0.0, mean + rest)
    deviation = tl.where(constant, 0.0, deviation)
    store_row(by_chunk, chunk, chunks, 0, nan_count)
    store_row(by_chunk, chunk, chunks, 1, posinf_count)
    store_row(by_chunk, chunk, chunks, 2, neginf_count)
    store_row(by_chunk, chunk, chunks, 3, zero_count)
    store_row(by_chunk, chunk, chunks, 4, subnormals)
    store_row(by_chunk, chunk, chunks, 5, count)
    store_double(by_chunk, chunk, chunks, 6, low)
    store_double(by_chunk, chunk, chunks, 7, high)
    store_double(by_chunk, chunk, chunks, 8, mean * power_of_two(exponent))
    store_double(by_chunk, chunk, chunks, 9, deviation)
    store_double(by_chunk, chunk, chunks, 10, tl.sum(magnitudes) * power_of_two(exponent))
    store_double(by_chunk, chunk, chunks, 11, tl.sum(squares))
    store_row(by_chunk, chunk, chunks, 12, exponent)
    store_row(by_chunk, chunk, chunks, 13, tl.min(least_whole))
    store_row(by_chunk, chunk, chunks, 14, tl.max(largest_whole))
    if HISTOGRAM:
        tl.atomic_add(histogram + tl.arange(0, 256), bins, mask=bins != 0, sem="relaxed")


@triton.jit
def _one_in_field(exponents, lowest, word: tl.constexpr):
    """The number that a value adds to a word."""
    field = tl.minimum((exponents - (lowest + word * _FIELDS)).to(tl.uint32, bitcast=True), _FIELDS)
    upper_half = field * _FIELD_DOWN + _ONE_AT_FIRST
    return (upper_half.to(tl.uint64) << 32).to(tl.float64, bitcast=True)


@triton.jit
def _spread(word, even, odd):
    """Adds fields of four bits to two words with fields of eight bits: even fields to one, odd fields to the other."""
    bits = word.to(tl.int64)
    return even + (bits & _NIBBLES), odd + ((bits >> 4) & _NIBBLES)


@triton.jit
def _gather(window, even, odd, numbers, word: tl.constexpr):
    """Adds up the fields of a word over all lanes, and writes them to their places in the window."""
    for number in tl.static_range(_FIELDS):
        fields = even if number % 2 == 0 else odd
        count = tl.sum(((fields >> ((12 - number) // 2 * 8)) & 255).to(tl.int32))
        window = tl.where(numbers == word * _FIELDS + number, count, window)
    return window


@triton.jit
def measure_whole_chunks(
    chunks_to_measure, addresses, arrays, kinds, tinies, values, by_chunk, histograms, counter, chunks,
    KINDS: tl.constexpr, HISTOGRAM: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One full chunk of floats of at most 32 bits."""
    chunk = tl.load(chunks_to_measure + tl.program_id(0))
    address = tl.load(addresses + chunk)
    array = tl.load(arrays + chunk)
    kind = tl.load(kinds + array)
    byte_values = values + 256 * array if HAS_BYTE_FLOAT & KINDS else values
    tiny = tl.load(tinies + array).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    magnitudes = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    least = tl.full([BLOCK], _INFINITY, tl.float32)
    largest = tl.full([BLOCK], -_INFINITY, tl.float32)
    smallest = tl.full([BLOCK], _INFINITY, tl.float32)
    if HISTOGRAM:
        # The window is chosen from the first values, with room for values that are four times larger.
        first = as_float32(address, lanes, kind, byte_values, KINDS, BLOCK).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        lowest = tl.maximum((tl.max(first) >> 23) + 3 - _WINDOW, 1)
        even_0 = tl.zeros([BLOCK], tl.int64)
        even_1 = tl.zeros([BLOCK], tl.int64)
        even_2 = tl.zeros([BLOCK], tl.int64)
        odd_0 = tl.zeros([BLOCK], tl.int64)
        odd_1 = tl.zeros([BLOCK], tl.int64)
        odd_2 = tl.zeros([BLOCK], tl.int64)
    for start in range(0, CHUNK, BLOCK * _PER_FLUSH):
        if HISTOGRAM:
            word_0 = tl.zeros([BLOCK], tl.float64)
            word_1 = tl.zeros([BLOCK], tl.float64)
            word_2 = tl.zeros([BLOCK], tl.float64)
        for part in tl.static_range(_PER_FLUSH):
            x = as_float32(address, start + part * BLOCK + lanes, kind, byte_values, KINDS, BLOCK)
            total += x
            magnitudes += tl.abs(x)
            squares = tl.fma(x, x, squares)
            least = tl.minimum(least, x)
            largest = tl.maximum(largest, x)
            smallest = tl.minimum(smallest, tl.abs(x))
            if HISTOGRAM:
                exponents = (x.to(tl.int32, bitcast=True) >> 23) & 255
                word_0 += _one_in_field(exponents, lowest, 0)
                word_1 += _one_in_field(exponents, lowest, 1)
                word_2 += _one_in_field(exponents, lowest, 2)
        if HISTOGRAM:
            even_0, odd_0 = _spread(word_0, even_0, odd_0)
            even_1, odd_1 = _spread(word_1, even_1, odd_1)
            even_2, odd_2 = _spread(word_2, even_2, odd_2)
    low, high = tl.min(least).to(tl.float64), tl.max(largest).to(tl.float64)
    sum_of_all = tl.sum(total.to(tl.float64))
    l1 = tl.sum(magnitudes.to(tl.float64))
    square = tl.sum(squares.to(tl.float64))
    mean = sum_of_all / CHUNK
    deviation = square - sum_of_all * mean
    magnitude = tl.maximum(tl.abs(low), tl.abs(high))
    fine = (
        (l1 < _INFINITY)
        & (magnitude < _SQUARES_FIT_BELOW)
        & (magnitude >= _SMALL)
        & (mean * mean * CHUNK <= 16 * deviation)
    )
    fine = fine | (l1 == 0)
    zeros = 0
    small_count = 0
    if tl.min(smallest) < tiny:
        # Zeros and subnormals are rare, and counted only if there are any.
        zero_counts = tl.zeros([BLOCK], tl.int32)
        small_counts = tl.zeros([BLOCK], tl.int32)
        for start in range(0, CHUNK, BLOCK):
            x = as_float32(address, start + lanes, kind, byte_values, KINDS, BLOCK)
            zero_counts += (x == 0).to(tl.int32)
            small_counts += (tl.abs(x) < tiny).to(tl.int32)
        zeros = tl.sum(zero_counts)
        small_count = tl.sum(small_counts)
    if HISTOGRAM:
        numbers = tl.arange(0, 64)
        window = tl.zeros([64], tl.int32)
        window = _gather(window, even_0, odd_0, numbers, 0)
        window = _gather(window, even_1, odd_1, numbers, 1)
        window = _gather(window, even_2, odd_2, numbers, 2)
        fine = fine & (tl.sum(window) == CHUNK - zeros)  # otherwise some are outside of the window
    if fine:
        store_row(by_chunk, chunk, chunks, 0, 0)
        store_row(by_chunk, chunk, chunks, 1, 0)
        store_row(by_chunk, chunk, chunks, 2, 0)
        store_row(by_chunk, chunk, chunks, 3, zeros)
        store_row(by_chunk, chunk, chunks, 4, small_count - zeros)
        store_row(by_chunk, chunk, chunks, 5, CHUNK)
        store_double(by_chunk, chunk, chunks, 6, low)
        store_double(by_chunk, chunk, chunks, 7, high)
        store_double(by_chunk, chunk, chunks, 8, mean)
        store_double(by_chunk, chunk, chunks, 9, tl.maximum(deviation, 0.0))
        store_double(by_chunk, chunk, chunks, 10, l1)
        store_double(by_chunk, chunk, chunks, 11, square)
        store_row(by_chunk, chunk, chunks, 12, 0)
        store_row(by_chunk, chunk, chunks, 13, 0)
        store_row(by_chunk, chunk, chunks, 14, 0)
        if HISTOGRAM:
            histogram = histograms + 256 * array.to(tl.int64) + lowest
            tl.atomic_add(histogram + numbers, window, mask=window != 0, sem="relaxed")
    else:
        behind = tl.atomic_add(counter, 1, sem="relaxed")
        store_row(by_chunk + behind, 0, chunks, _LIST, chunk)


@triton.jit
def measure_carefully(
    chunks_to_measure, already, addresses, sizes, arrays, kinds, tinies, values, by_chunk, histograms, counter, chunks,
    KINDS: tl.constexpr, HISTOGRAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The chunks that always need this, and the chunks on the list; one program measures several."""
    count = already + tl.load(counter).to(tl.int32)
    for number in range(tl.program_id(0), count, tl.num_programs(0)):
        chunk = tl.load(chunks_to_measure + number, mask=number < already, other=0)
        if number >= already:
            chunk = tl.load(by_chunk + _LIST * chunks + number - already).to(tl.int32)
        array = tl.load(arrays + chunk)
        byte_values = values + 256 * array if HAS_BYTE_FLOAT & KINDS else values
        _carefully(
            tl.load(addresses + chunk), tl.load(sizes + chunk), tl.load(kinds + array), byte_values,
            tl.load(tinies + array), histograms + 256 * array.to(tl.int64), by_chunk, chunk, chunks,
            KINDS, HISTOGRAM, BLOCK,
        )  # fmt: skip


@triton.jit
def _double(by_chunk, field: tl.constexpr, chunks, at, mask):
    return tl.load(by_chunk + field * chunks + at, mask=mask, other=0).to(tl.float64, bitcast=True)


@triton.jit
def fold_chunks(by_chunk, chunks, first_chunks, results, arrays, BLOCK: tl.constexpr):
    """Combines the chunks of one array, in their order."""
    array = tl.program_id(0)
    first, stop = tl.load(first_chunks + array), tl.load(first_chunks + array + 1)
    lanes = tl.arange(0, BLOCK)
    nan = tl.zeros([BLOCK], tl.int64)
    posinf = tl.zeros([BLOCK], tl.int64)
    neginf = tl.zeros([BLOCK], tl.int64)
    zeros = tl.zeros([BLOCK], tl.int64)
    subnormals = tl.zeros([BLOCK], tl.int64)
    finite = tl.zeros([BLOCK], tl.int64)
    l1 = tl.zeros([BLOCK], tl.float64)
    least = tl.full([BLOCK], _INFINITY, tl.float64)
    largest = tl.full([BLOCK], -_INFINITY, tl.float64)
    exponent = tl.full([BLOCK], -2000, tl.int64)
    least_whole = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64)
    largest_whole = tl.full([BLOCK], -0x7FFFFFFFFFFFFFFF - 1, tl.int64)
    for start in range(first, stop, BLOCK):
        at = start + lanes
        mask = at < stop
        in_chunk = tl.load(by_chunk + 5 * chunks + at, mask=mask, other=0)
        magnitude = _double(by_chunk, 10, chunks, at, mask)
        nan += tl.load(by_chunk + 0 * chunks + at, mask=mask, other=0)
        posinf += tl.load(by_chunk + 1 * chunks + at, mask=mask, other=0)
        neginf += tl.load(by_chunk + 2 * chunks + at, mask=mask, other=0)
        zeros += tl.load(by_chunk + 3 * chunks + at, mask=mask, other=0)
        subnormals += tl.load(by_chunk + 4 * chunks + at, mask=mask, other=0)
        finite += in_chunk
        l1 += magnitude
        least = tl.where(in_chunk > 0, tl.minimum(least, _double(by_chunk, 6, chunks, at, mask)), least)
        largest = tl.where(in_chunk > 0, tl.maximum(largest, _double(by_chunk, 7, chunks, at, mask)), largest)
        # The exponent of chunks that are all zero is ignored.
        power = tl.load(by_chunk + 12 * chunks + at, mask=mask, other=0)
        exponent = tl.where(mask & (magnitude > 0), tl.maximum(exponent, power), exponent)
        whole = tl.load(by_chunk + 13 * chunks + at, mask=mask, other=0x7FFFFFFFFFFFFFFF)
        least_whole = tl.minimum(least_whole, whole)
        whole = tl.load(by_chunk + 14 * chunks + at, mask=mask, other=-0x7FFFFFFFFFFFFFFF - 1)
        largest_whole = tl.maximum(largest_whole, whole)
    count = tl.maximum(tl.sum(finite), 1)
    unit = tl.max(exponent)
    unit = tl.where(unit == -2000, 0, unit)
    means = tl.zeros([BLOCK], tl.float64)
    for start in range(first, stop, BLOCK):
        at = start + lanes
        mask = at < stop
        in_chunk = tl.load(by_chunk + 5 * chunks + at, mask=mask, other=0)
        means += _double(by_chunk, 8, chunks, at, mask) * (in_chunk.to(tl.float64) / count)
    mean = tl.sum(means)
    low, high = tl.min(least), tl.max(largest)
    mean = tl.where(low == high, low + 0.0, mean)  # rounding must not change it
    deviations = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(first, stop, BLOCK):
        at = start + lanes
        mask = at < stop
        in_chunk = tl.load(by_chunk + 5 * chunks + at, mask=mask, other=0).to(tl.float64)
        power = tl.load(by_chunk + 12 * chunks + at, mask=mask, other=0)
        # Squares are in units of 4 to the power of their exponent. A factor of 2**-500 makes them negligible.
        shift = power_of_two(tl.maximum(power - unit, -500))
        apart = (_double(by_chunk, 8, chunks, at, mask) - mean) * power_of_two(-unit)
        deviations += _double(by_chunk, 9, chunks, at, mask) * shift * shift + in_chunk * apart * apart
        squares += _double(by_chunk, 11, chunks, at, mask) * shift * shift
    store_row(results, array, arrays, 0, tl.sum(nan))
    store_row(results, array, arrays, 1, tl.sum(posinf))
    store_row(results, array, arrays, 2, tl.sum(neginf))
    store_row(results, array, arrays, 3, tl.sum(zeros))
    store_row(results, array, arrays, 4, tl.sum(subnormals))
    store_row(results, array, arrays, 5, tl.sum(finite))
    store_double(results, array, arrays, 6, low)
    store_double(results, array, arrays, 7, high)
    store_double(results, array, arrays, 8, mean)
    store_double(results, array, arrays, 9, tl.sum(deviations))
    store_double(results, array, arrays, 10, tl.sum(l1))
    store_double(results, array, arrays, 11, tl.sum(squares))
    store_row(results, array, arrays, 12, unit)
    store_row(results, array, arrays, 13, tl.min(least_whole))
    store_row(results, array, arrays, 14, tl.max(largest_whole))
