"""Initial values of many arrays on a GPU, in one launch for each dtype and distribution.

The numbers are those of `iterate.distributions`: word i of an array comes from block 1 + i // 8 of Philox4x64-10, and
is mapped to a number in 64 bits, which is rounded to 32 bits and then to the dtype, as torch rounds it. Each lane
computes the eight words of a block. `draw_whole_chunks` fills chunks of memory in which words follow each other.
`draw_carefully` fills everything else: ends of arrays, parts of sharded arrays, and any order of axes in memory.

Normal numbers are first computed fast, with a bound of the error: for bfloat16 in 32 bits, otherwise in 64 bits from a
table of quantiles. Where both ends of the interval are rounded to the same number, that number is right. If they differ
anywhere in a block, the block is computed again by `normal_quantiles`. Few blocks are, so that this takes much less
time than to compute all of them that way.
"""

# The kernels are written for Triton's compiler, which allows less than Python does. In each, multiplications and
# additions are fused only where `tl.fma` says so, because the results must be those of a CPU.
# mypy: ignore-errors
# ruff: noqa: N803, RET505, SIM300

import triton
import triton.language as tl

# The columns of a table row, which describes a piece of memory that is filled; `cuda_drawing` writes them. Doubles are
# stored as their bits. In the kernels a column is a literal number: at every launch, Triton compares each global that a
# kernel reads.
COLUMNS = (
    "address", "key_low", "key_high", "first_word", "first_chunk",  # 0 to 4
    "narrow", "scale", "shift",  # 5 to 7
    "run", "run_stride", "rows", "run_blocks", "rows_first",  # 8 to 12: rows are runs of consecutive words
    "size_1", "size_2",  # 13 and 14: the rows have three axes
    "words_0", "words_1", "words_2", "memory_0", "memory_1", "memory_2",  # 15 to 20: how far apart rows are
)  # fmt: skip
WIDTH = len(COLUMNS)

CONSTANT, UNIFORM, NORMAL = 0, 1, 2  # distributions
DTYPES = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}
ROUGH_LIMIT = 1e30  # of scale and shift: larger ones may overflow in 32 bits
# The table of quantiles: for distances of a point from the end, 1 - |point|, the quantile and its slope there. From
# 2⁻¹⁷ to 1, there are 256 nodes from a power of two to the next.
NODES_END = 2.0**-17
NODES_PER_POWER = 256


@triton.jit
def _double(row, column: tl.constexpr):
    return tl.load(row + column).to(tl.float64, bitcast=True)


@triton.jit
def _words(blocks, key_low, key_high):
    """The eight words of each block, as signed 32-bit numbers, in their order."""
    key_low = key_low.to(tl.uint64, bitcast=True)
    key_high = key_high.to(tl.uint64, bitcast=True)
    # The first of ten rounds, in which three of the four counters are zero.
    counter = blocks.to(tl.uint64) + 1
    multiplier = tl.full([], 0xD2E7470EE14C6C93, tl.uint64)
    other_multiplier = tl.full([], 0xCA5A826395121157, tl.uint64)
    step = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    other_step = tl.full([], 0xBB67AE8584CAA73B, tl.uint64)
    a = tl.zeros_like(counter) + key_low
    b = tl.zeros_like(counter)
    c = tl.umulhi(counter, multiplier) ^ key_high
    d = counter * multiplier
    for _ in tl.static_range(9):
        key_low += step
        key_high += other_step
        high, other_high = tl.umulhi(a, multiplier), tl.umulhi(c, other_multiplier)
        low, other_low = a * multiplier, c * other_multiplier
        a, b, c, d = other_high ^ b ^ key_low, other_low, high ^ d ^ key_high, low
    pairs = tl.join(tl.join(a, c), tl.join(b, d))  # [blocks, 2, 2]: a and b, c and d
    lower = pairs.to(tl.uint32).to(tl.int32, bitcast=True)
    upper = (pairs >> 32).to(tl.uint32).to(tl.int32, bitcast=True)
    return tl.reshape(tl.join(lower, upper), [8 * blocks.shape[0]])


@triton.jit
def points_of(words):
    """(word + ½) / 2³¹, exactly. The word is put into the last bits of 2⁵², which is faster than a conversion."""
    bits = (words.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.uint64) | 0x4330000000000000
    number = bits.to(tl.float64, bitcast=True) - 4503601774854144.0
    return (number + 0.5) * 4.656612873077393e-10


@triton.jit
def _rounded(x, DTYPE: tl.constexpr, NVIDIA: tl.constexpr):
    """32-bit numbers as a dtype."""
    if (DTYPE == tl.bfloat16) & (not NVIDIA):  # Triton's interpreter does not round to bfloat16
        bits = x.to(tl.uint32, bitcast=True)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(DTYPE)


@triton.jit
def _step(polynomial, x, coefficient: tl.constexpr):
    """A step of Horner's scheme in 64 bits. In a call of `tl.fma`, a number would be one of 32 bits."""
    return tl.fma(polynomial, x, tl.full(x.shape, coefficient, tl.float64))


@triton.jit
def normal_quantiles(points, narrow):
    """The normal quantiles of (1 + narrow * point) / 2: x * P(l) / Q(l) for l = -log2(1 - x²). One ratio of polynomials
    is enough for all points that 32-bit words reach, and its error is less than 2⁻⁵³."""
    x = points * narrow
    distance = tl.abs(x)
    t = (1.0 - distance) * (1.0 + distance)  # the first factor is exact near the ends, where that matters
    # The logarithm: t is 2**exponent * m for m between √½ and √2, and log(m) is 2 atanh((m - 1) / (m + 1)).
    bits = t.to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    f = (m - 1.0) / (m + 1.0)
    g = f * f
    a = _step(tl.full(g.shape, 0.21367292951151889, tl.float64), g, 0.22091166182776764)
    a = _step(a, g, 0.26233440937778657)
    a = _step(a, g, 0.32059853378660702)
    a = _step(a, g, 0.41219858585236852)
    a = _step(a, g, 0.57707801634546474)
    a = _step(a, g, 0.96179669392598988)
    a = _step(a, g, 2.8853900817779268)
    # 2**52 + 64 + exponent as bits, which is faster than a conversion.
    whole = 4503599627370560.0 - (exponent + 0x4330000000000040).to(tl.float64, bitcast=True)
    log = tl.fma(-a, f, whole)
    p = _step(tl.full(g.shape, 3.2164240542908496e-18, tl.float64), log, 1.9292230187200212e-15)
    p = _step(p, log, 5.9851199776265078e-14)
    p = _step(p, log, 1.2053187695859009e-11)
    p = _step(p, log, 5.1780125169990372e-10)
    p = _step(p, log, 1.6386804453827683e-08)
    p = _step(p, log, 3.9997405022698125e-07)
    p = _step(p, log, 7.543152047568771e-06)
    p = _step(p, log, 0.0001109624531475128)
    p = _step(p, log, 0.0012866795758967563)
    p = _step(p, log, 0.011687857158104289)
    p = _step(p, log, 0.079903306208615785)
    p = _step(p, log, 0.40133834627822201)
    p = _step(p, log, 1.2533141373155003)
    q = _step(tl.full(g.shape, 1.0744373583595947e-16, tl.float64), log, 1.1880619141752648e-14)
    q = _step(q, log, 6.6981282949291032e-13)
    q = _step(q, log, 8.6550917830414689e-11)
    q = _step(q, log, 2.2591163356317533e-09)
    q = _step(q, log, 8.1933200881821405e-08)
    q = _step(q, log, 1.4642017770273063e-06)
    q = _step(q, log, 2.7927413829768768e-05)
    q = _step(q, log, 0.00034961886752694926)
    q = _step(q, log, 0.0034705770534399741)
    q = _step(q, log, 0.032312875477332158)
    q = _step(q, log, 0.13875616262825299)
    q = _step(q, log, 1.0)
    return x * (p / q)


@triton.jit
def _log2(x, NVIDIA: tl.constexpr):
    """The logarithm of positive 32-bit numbers, with an error of at most 2⁻²² (absolute or relative)."""
    if NVIDIA:  # one instruction, instead of twenty that are more precise
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def _reciprocal(x, NVIDIA: tl.constexpr):
    """The reciprocal of 32-bit numbers that are neither very large nor very small, with a relative error of 2⁻²³."""
    if NVIDIA:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def rough_quantiles(words, narrow, beyond, NVIDIA: tl.constexpr):
    """Normal quantiles in 32 bits, with a relative error of less than 2⁻²⁰. `beyond` is 1 - narrow, which in 32 bits
    cannot be computed from narrow."""
    x = tl.fma(words.to(tl.float32), 4.656612873077393e-10, 2.3283064365386963e-10) * narrow
    # 1 - |point|, from the bits of the word, which differ from those of its distance from the end only by their signs.
    rest = ((words ^ ~(words >> 31)) & 0x7FFFFFFF).to(tl.float32)
    distance = tl.fma(tl.fma(rest, 4.656612873077393e-10, 2.3283064365386963e-10), narrow, beyond)
    log = -_log2(distance * (2.0 - distance), NVIDIA)
    p = tl.fma(log, 2.1167973557766563e-08, 9.4828742282976097e-06)
    p = tl.fma(p, log, 0.00026259765754197036)
    p = tl.fma(p, log, 0.0041696491900397228)
    p = tl.fma(p, log, 0.043718258329556205)
    p = tl.fma(p, log, 0.31013692875771243)
    p = tl.fma(p, log, 1.2533141254417819)
    q = tl.fma(log, 5.9741173747265275e-07, 5.7314026136792655e-05)
    q = tl.fma(q, log, 0.00076963285775863291)
    q = tl.fma(q, log, 0.016646950832335854)
    q = tl.fma(q, log, 0.065987767406083905)
    q = tl.fma(q, log, 1.0)
    return x * p * _reciprocal(q, NVIDIA)


@triton.jit
def close_quantiles(words, nodes, narrow):
    """Normal quantiles in 64 bits, and 1 where their relative error may be more than 2⁻⁴¹, as it is beyond 4.47. The
    first bits of 1 - |narrow * point| are those of a node in the table, from which a series leads to the quantile. Only
    its first term needs 64 bits."""
    magnitudes = words ^ (words >> 31)
    bits = magnitudes.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000  # see `points_of`
    numbers = bits.to(tl.float64, bitcast=True) - 4503599627370495.5  # the word + ½
    unit = tl.zeros_like(numbers) + narrow * 4.656612873077393e-10
    distance = tl.fma(numbers, -unit, tl.full(numbers.shape, 1.0, tl.float64))
    # The upper half of its bits, rounded to 8 bits after the first: at least 2⁻¹⁷, and at most 1.
    upper = (distance.to(tl.int64, bitcast=True) >> 32).to(tl.int32)
    upper = tl.maximum((upper + 0x800) & -0x1000, 0x3EE00000)
    node = (upper - 0x3EE00000) >> 11  # two numbers each
    center, slope = tl.load(nodes + node), tl.load(nodes + node + 1)
    # Not from `distance`, which has lost the last bits of small points.
    start = 1.0 - (upper.to(tl.int64) << 32).to(tl.float64, bitcast=True)
    step = tl.fma(numbers, unit, -start) * slope
    s, c = step.to(tl.float32), center.to(tl.float32)
    square = c * c
    a = c * tl.fma(square, 0.25, 0.29166667)
    a = tl.fma(a, s, tl.fma(square, 0.33333333, 0.16666667))
    a = tl.fma(a, s, c * 0.5)
    quantiles = center + (step + (a * s * s).to(tl.float64))
    signs = (words & -0x80000000).to(tl.int64) << 32
    quantiles = (quantiles.to(tl.int64, bitcast=True) | signs).to(tl.float64, bitcast=True)
    return quantiles, (upper == 0x3EE00000).to(tl.int32)


@triton.jit
def _numbers(words, narrow, scale, shift, SHAPE: tl.constexpr):
    """The numbers of a distribution, rounded to 32 bits."""
    x = points_of(words)
    if SHAPE == 2:
        x = normal_quantiles(x, narrow)
    return (x * scale + shift).to(tl.float32)


@triton.jit
def _any(bits, PER_LANE: tl.constexpr):
    """Whether a number is not zero. First the numbers of each lane are combined, where they are: a reduction of all
    would move them to other lanes."""
    if PER_LANE == 8:
        c, d = tl.split(tl.reshape(bits, [bits.shape[0] // 8, 2, 2, 2]))
        bits = c | d
    else:
        bits = tl.reshape(bits, [bits.shape[0] // 4, 2, 2])
    e, f = tl.split(bits)
    g, h = tl.split(e | f)
    return tl.max(g | h, axis=0) > 0


@triton.jit
def _rough_normals(words, narrow, beyond, scale, shift, DTYPE: tl.constexpr, NVIDIA: tl.constexpr):
    """Normal numbers of 16 bits, and a number that is not zero where they may be wrong."""
    scaled = rough_quantiles(words, narrow.to(tl.float32), beyond, NVIDIA) * scale.to(tl.float32)
    shift = shift.to(tl.float32)
    # The relative error of `scaled` is at most 2⁻²⁰ from the quantile and 2⁻²² from rounding. The rest is the error of
    # the shift, and that of subnormal numbers.
    error = tl.fma(tl.abs(scaled), 1.1920928955078125e-06, tl.abs(shift) * 2.384185791015625e-07 + 1e-44)
    number = scaled + shift
    least, most = _rounded(number - error, DTYPE, NVIDIA), _rounded(number + error, DTYPE, NVIDIA)
    return least, (least.to(tl.uint16, bitcast=True) ^ most.to(tl.uint16, bitcast=True)).to(tl.int32)


@triton.jit
def _close_normals(words, nodes, narrow, scale, shift, DTYPE: tl.constexpr, NVIDIA: tl.constexpr):
    """Normal numbers, and a number that is not zero where they may be wrong."""
    quantiles, far = close_quantiles(words, nodes, narrow)
    # The exact quantile is between the products of this one with 1 - 2⁻⁴⁰ and 1 + 2⁻⁴⁰. As rounding keeps an order, its
    # number is between the numbers of these two.
    first = (quantiles * (scale * 0.9999999999990905) + shift).to(tl.float32)
    last = (quantiles * (scale * 1.0000000000009095) + shift).to(tl.float32)
    # As bits, because 0 and -0 differ.
    return _rounded(first, DTYPE, NVIDIA), far | (first.to(tl.int32, bitcast=True) ^ last.to(tl.int32, bitcast=True))


@triton.jit
def draw_whole_chunks(
    table, pieces, nodes, DTYPE: tl.constexpr, SHAPE: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """A chunk of consecutive words. The first word is the first of a block, and the address is a multiple of 16."""
    piece = tl.load(pieces + tl.program_id(0)).to(tl.int64)
    row = table + piece * WIDTH
    start = (tl.program_id(0) - tl.load(row + 4)) * CHUNK
    target = tl.multiple_of(tl.load(row).to(tl.pointer_type(DTYPE)), 16)
    key_low, key_high = tl.load(row + 1), tl.load(row + 2)
    first_block = (tl.load(row + 3) + start) // 8
    narrow, scale, shift = _double(row, 5), _double(row, 6), _double(row, 7)
    beyond = (1.0 - narrow).to(tl.float32)
    lanes, blocks = tl.arange(0, BLOCK), tl.arange(0, BLOCK // 8)
    for at in range(0, tl.minimum(CHUNK, tl.load(row + 8) - start), BLOCK):
        to = target + (tl.multiple_of(start + at, BLOCK) + lanes)
        if SHAPE == 0:
            tl.store(to, _rounded(tl.full([BLOCK], shift, tl.float64).to(tl.float32), DTYPE, NVIDIA))
        else:
            words = _words(first_block + at // 8 + blocks, key_low, key_high)
            if SHAPE == 1:
                tl.store(to, _rounded(_numbers(words, narrow, scale, shift, SHAPE), DTYPE, NVIDIA))
            else:
                if DTYPE == tl.bfloat16:
                    numbers, doubts = _rough_normals(words, narrow, beyond, scale, shift, DTYPE, NVIDIA)
                else:
                    numbers, doubts = _close_normals(words, nodes, narrow, scale, shift, DTYPE, NVIDIA)
                if _any(doubts, 4 if DTYPE == tl.float32 else 8):
                    tl.store(to, _rounded(_numbers(words, narrow, scale, shift, SHAPE), DTYPE, NVIDIA))
                else:
                    tl.store(to, numbers)


@triton.jit
def draw_carefully(
    table, pieces, DTYPE: tl.constexpr, SHAPE: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Blocks of a piece of any form; see COLUMNS. Chunks have CHUNK // 8 blocks, in the order in which they are in
    memory: run by run, or the first blocks of all runs first."""
    piece = tl.load(pieces + tl.program_id(0)).to(tl.int64)
    row = table + piece * WIDTH
    start = (tl.program_id(0) - tl.load(row + 4)) * (CHUNK // 8)
    target = tl.load(row).to(tl.pointer_type(DTYPE))
    key_low, key_high = tl.load(row + 1), tl.load(row + 2)
    narrow, scale, shift = _double(row, 5), _double(row, 6), _double(row, 7)
    run, run_stride, rows, run_blocks = tl.load(row + 8), tl.load(row + 9), tl.load(row + 10), tl.load(row + 11)
    rows_first = tl.load(row + 12)
    size_1, size_2 = tl.load(row + 13), tl.load(row + 14)
    eight = tl.arange(0, 8)
    for at in range(0, CHUNK // 8, BLOCK // 8):
        number = start + at + tl.arange(0, BLOCK // 8)
        fast = tl.where(rows_first != 0, rows, run_blocks)
        outer, inner = number // fast, number % fast
        run_number = tl.where(rows_first != 0, inner, outer)
        block_of_run = tl.where(rows_first != 0, outer, inner)
        i_2 = run_number % size_2
        i_1 = (run_number // size_2) % size_1
        i_0 = run_number // (size_2 * size_1)
        word = tl.load(row + 3) + i_0 * tl.load(row + 15) + i_1 * tl.load(row + 16) + i_2 * tl.load(row + 17)
        place = i_0 * tl.load(row + 18) + i_1 * tl.load(row + 19) + i_2 * tl.load(row + 20)
        block = word // 8 + block_of_run
        in_run = (block * 8 - word)[:, None] + eight[None, :]
        inside = (number < rows * run_blocks)[:, None] & (in_run >= 0) & (in_run < run)
        if SHAPE == 0:
            numbers = tl.full([BLOCK // 8, 8], shift, tl.float64).to(tl.float32)
        else:
            words = _words(block, key_low, key_high)
            numbers = tl.reshape(_numbers(words, narrow, scale, shift, SHAPE), [BLOCK // 8, 8])
        tl.store(target + place[:, None] + in_run * run_stride, _rounded(numbers, DTYPE, NVIDIA), mask=inside)
