/* One pass over a block of numbers, for one instruction set.

   Included once for each, after defining WIDTH (bytes of a vector), NAME(x) and the few operations that differ.
   Whatever the width, element i is added to lane i % 8, in order, so that the sums have the same bits on every machine.
   (The square of a float is exact in a double, so it does not matter whether it is rounded before it is added.) 16-bit
   floats have 16 lanes. */

typedef float NAME(floats) __attribute__((vector_size(WIDTH)));
typedef double NAME(doubles) __attribute__((vector_size(WIDTH)));
typedef int32_t NAME(words) __attribute__((vector_size(WIDTH)));
typedef int16_t NAME(shorts) __attribute__((vector_size(WIDTH)));
typedef int64_t NAME(longs) __attribute__((vector_size(WIDTH)));
typedef uint8_t NAME(bytes) __attribute__((vector_size(WIDTH)));
/* The same, at any address. */
typedef float NAME(floats_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef double NAME(doubles_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef int32_t NAME(words_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef int16_t NAME(shorts_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef uint8_t NAME(bytes_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));

#define FLOATS NAME(floats)
#define DOUBLES NAME(doubles)
#define WORDS NAME(words)
#define LONGS NAME(longs)
#define SHORTS NAME(shorts)
#define BYTES NAME(bytes)
#define PER_FLOATS (WIDTH / 4)
#define PER_DOUBLES (WIDTH / 8)
#define PER_SHORTS (WIDTH / 2)
#define VECTORS (LANES / PER_DOUBLES) /* vectors for all lanes */
#define HALF_VECTORS (HALF_LANES / PER_DOUBLES)
#define TABLES (WIDTH / 8) /* as many as fit into the registers */

/* Adds up the lanes in a fixed order. */
static double NAME(total)(double *lane, int lanes)
{
    for (int half = lanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* Numbers as floats, in order. */
static void NAME(decode)(enum kind kind, const char *x, long count, const float *values, float *out)
{
    uint32_t *bits = (uint32_t *)out;
    switch (kind) {
    case BFLOAT16:
        for (long i = 0; i < count; i++)
            bits[i] = (uint32_t)((const uint16_at *)x)[i] << 16;
        break;
    case FLOAT16: DECODE_FLOAT16((const uint16_at *)x, count, out); break;
    case BYTE_FLOAT:
        for (long i = 0; i < count; i++)
            out[i] = values[(uint8_t)x[i]];
        break;
    default: memcpy(out, x, (size_t)count * sizeof *out);
    }
}

/* Counts zeros, and values below the smallest normal number, by their bits. */
#define TINY_OF(name, bits, bits_at)                                                                                   \
    static void NAME(tiny_of_##name)(const bits_at *x, long count, bits limit, struct sums *found)                     \
    {                                                                                                                  \
        bits tiny = 0, zeros = 0; /* a block is too short to overflow them */                                          \
        for (long i = 0; i < count; i++) {                                                                             \
            bits magnitude = (bits)(x[i] & (bits) - 1 >> 1);                                                           \
            tiny = (bits)(tiny + (magnitude < limit)), zeros = (bits)(zeros + !magnitude);                             \
        }                                                                                                              \
        found->tiny = tiny, found->zeros = zeros;                                                                      \
    }
TINY_OF(floats, uint32_t, uint32_at)
TINY_OF(halves, uint16_t, uint16_at)
#undef TINY_OF

static void NAME(sums_of_floats)(const float_at *x, long count, float tiny, struct ahead ahead, struct sums *found)
{
    DOUBLES sum[VECTORS], magnitude[VECTORS], square[VECTORS];
    double sums[LANES], magnitudes[LANES], squares[LANES];
    const LONGS no_sign = (LONGS){0} + INT64_MAX;
    const WORDS no_sign_bit = (WORDS){0} + INT32_MAX;
    const DOUBLES one = (DOUBLES){0} + 1;
    WORDS nearest = no_sign_bit;
    FLOATS least = (FLOATS){0} + INFINITY, largest = (FLOATS){0} - INFINITY;
    int32_t nearest_to_zero = INT32_MAX;
    long i = 0;
    memset(sum, 0, sizeof sum), memset(magnitude, 0, sizeof magnitude), memset(square, 0, sizeof square);
    for (; i + 16 <= count; i += 16) {
        __builtin_prefetch(ahead.bytes + i * ahead.item_bytes);
#pragma GCC unroll 4
        for (int part = 0; part < 16; part += PER_FLOATS) {
            FLOATS v = *(const NAME(floats_at) *)(x + i + part);
            least = MIN(least, v);
            largest = MAX(largest, v);
            nearest = MIN_WORDS(nearest, (WORDS)v & no_sign_bit);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                int lanes = (part + half * PER_DOUBLES) % LANES / PER_DOUBLES;
                DOUBLES d = WIDEN(x + i + part + half * PER_DOUBLES);
                /* Multiplying by one uses the multipliers for the addition: AMD's adders are busy with conversions. */
                sum[lanes] = ADD_PRODUCT(sum[lanes], d, one);
                magnitude[lanes] += (DOUBLES)((LONGS)d & no_sign);
                square[lanes] = ADD_PRODUCT(square[lanes], d, d);
            }
        }
    }
    memcpy(sums, sum, sizeof sums), memcpy(magnitudes, magnitude, sizeof sums), memcpy(squares, square, sizeof sums);
    found->tiny = found->zeros = 0, found->least = INFINITY, found->largest = -INFINITY;
    for (int lane = 0; lane < PER_FLOATS; lane++) {
        nearest_to_zero = nearest[lane] < nearest_to_zero ? nearest[lane] : nearest_to_zero;
        found->least = least[lane] < found->least ? least[lane] : found->least;
        found->largest = largest[lane] > found->largest ? largest[lane] : found->largest;
    }
    for (; i < count; i++) {
        double d = x[i];
        int32_t bits = bits_of_float(x[i]) & INT32_MAX;
        sums[i % LANES] += d;
        magnitudes[i % LANES] += fabs(d);
        squares[i % LANES] += d * d;
        nearest_to_zero = bits < nearest_to_zero ? bits : nearest_to_zero;
        found->least = d < found->least ? d : found->least;
        found->largest = d > found->largest ? d : found->largest;
    }
    found->sum = NAME(total)(sums, LANES), found->magnitude = NAME(total)(magnitudes, LANES);
    found->square = NAME(total)(squares, LANES);
    if (nearest_to_zero < bits_of_float(tiny))
        NAME(tiny_of_floats)((const uint32_at *)x, count, (uint32_t)bits_of_float(tiny), found);
}

/* Sums of bfloat16 and float16.

   The extremes are found by comparing the 16 bits of each value: the sign comes first, then the magnitude. The largest
   bits as signed integers are the largest value, unless all are negative. The largest bits as unsigned integers are the
   smallest value, if any is negative. Otherwise the smallest value is the one nearest to zero, which also shows whether
   there are subnormals.

   Of every 32 bfloat16, the even ones are widened first and then the odd ones: this takes only a shift and a mask. */
static void NAME(sums_of_halves)(enum kind kind, const uint16_at *x, long count, struct sums *found)
{
    DOUBLES sum[HALF_VECTORS], magnitude[HALF_VECTORS], square[HALF_VECTORS];
    double sums[HALF_LANES], magnitudes[HALF_LANES], squares[HALF_LANES];
    const LONGS no_sign = (LONGS){0} + INT64_MAX;
    const SHORTS no_sign_bit = (SHORTS){0} + INT16_MAX;
    const DOUBLES one = (DOUBLES){0} + 1;
    SHORTS nearest = no_sign_bit, most = (SHORTS){0} + INT16_MIN, most_negative = {0};
    uint16_t ends[3] = {INT16_MAX, 0x8000, 0};
    float floats[HALF_PART];
    long whole = count / 32 * 32;
#pragma GCC unroll 8
    for (int lanes = 0; lanes < HALF_VECTORS; lanes++)
        sum[lanes] = magnitude[lanes] = square[lanes] = (DOUBLES){0};
    for (long start = 0; start < whole; start += HALF_PART) {
        long part = whole - start < HALF_PART ? whole - start : HALF_PART;
        const uint16_at *here = x + start;
        for (long i = 0; i < part; i += 32)
#pragma GCC unroll 4
            for (int vector = 0; vector < 64 / WIDTH; vector++) {
                SHORTS v = *(const NAME(shorts_at) *)(here + i + vector * PER_SHORTS);
                float *even = floats + i + vector * PER_FLOATS;
                nearest = MIN_SHORTS(nearest, v & no_sign_bit);
                most = MAX_SHORTS(most, v);
                most_negative = MAX_UNSIGNED_SHORTS(most_negative, v);
                if (kind == BFLOAT16) {
                    *(NAME(words_at) *)even = (WORDS)v << 16;
                    *(NAME(words_at) *)(even + 16) = (WORDS)v >> 16 << 16;
                }
            }
        if (kind == FLOAT16)
            DECODE_FLOAT16(here, part, floats);
        for (long i = 0; i < part; i += HALF_LANES) {
            __builtin_prefetch((const char *)(here + i) + AHEAD);
#pragma GCC unroll 8
            for (int lanes = 0; lanes < HALF_VECTORS; lanes++) {
                DOUBLES d = WIDEN(floats + i + lanes * PER_DOUBLES);
                sum[lanes] = ADD_PRODUCT(sum[lanes], d, one);
                magnitude[lanes] += (DOUBLES)((LONGS)d & no_sign);
                square[lanes] = ADD_PRODUCT(square[lanes], d, d);
            }
        }
    }
    memcpy(sums, sum, sizeof sums), memcpy(magnitudes, magnitude, sizeof sums), memcpy(squares, square, sizeof sums);
    for (int lane = 0; lane < PER_SHORTS; lane++) {
        ends[0] = nearest[lane] < ends[0] ? (uint16_t)nearest[lane] : ends[0];
        ends[1] = most[lane] > (int16_t)ends[1] ? (uint16_t)most[lane] : ends[1];
        ends[2] = (uint16_t)most_negative[lane] > ends[2] ? (uint16_t)most_negative[lane] : ends[2];
    }
    for (long i = whole; i < count; i++) {
        double d = float_of_half(kind, x[i]);
        uint16_t bits = x[i] & INT16_MAX;
        sums[i % HALF_LANES] += d;
        magnitudes[i % HALF_LANES] += fabs(d);
        squares[i % HALF_LANES] += d * d;
        ends[0] = bits < ends[0] ? bits : ends[0];
        ends[1] = (int16_t)x[i] > (int16_t)ends[1] ? x[i] : ends[1];
        ends[2] = x[i] > ends[2] ? x[i] : ends[2];
    }
    /* If all have the same sign, the value nearest to zero is the other extreme. */
    found->least = float_of_half(kind, ends[2] >> 15 ? ends[2] : ends[0]);
    found->largest = float_of_half(kind, ends[1] >> 15 ? ends[0] | 0x8000 : ends[1]);
    found->sum = NAME(total)(sums, HALF_LANES), found->magnitude = NAME(total)(magnitudes, HALF_LANES);
    found->square = NAME(total)(squares, HALF_LANES);
    found->tiny = found->zeros = 0;
    uint16_t smallest_normal = kind == FLOAT16 ? 0x0400 : 0x0080;
    if (ends[0] < smallest_normal)
        NAME(tiny_of_halves)(x, count, smallest_normal, found);
}

/* The same for doubles, with every value multiplied by a power of two before it is added or squared. */
static void NAME(sums_of_doubles)(const double_at *x, long count, double scale, struct sums *found)
{
    DOUBLES sum[VECTORS], magnitude[VECTORS], square[VECTORS];
    double sums[LANES], magnitudes[LANES], squares[LANES];
    const LONGS no_sign = (LONGS){0} + INT64_MAX;
    LONGS tinies = {0}, limit = (LONGS){0} + bits_of_double(DBL_MIN);
    DOUBLES least = (DOUBLES){0} + INFINITY, largest = (DOUBLES){0} - INFINITY;
    long i = 0;
    memset(sum, 0, sizeof sum), memset(magnitude, 0, sizeof magnitude), memset(square, 0, sizeof square);
    for (; i + LANES <= count; i += LANES)
#pragma GCC unroll 4
        for (int lanes = 0; lanes < VECTORS; lanes++) {
            DOUBLES d = *(const NAME(doubles_at) *)(x + i + lanes * PER_DOUBLES);
            LONGS less = d<least, more = d> largest;
            least = (DOUBLES)((less & (LONGS)d) | (~less & (LONGS)least));
            largest = (DOUBLES)((more & (LONGS)d) | (~more & (LONGS)largest));
            tinies -= ((LONGS)d & no_sign) < limit;
            d *= scale;
            sum[lanes] += d;
            magnitude[lanes] += (DOUBLES)((LONGS)d & no_sign);
            square[lanes] += d * d;
        }
    memcpy(sums, sum, sizeof sums), memcpy(magnitudes, magnitude, sizeof sums), memcpy(squares, square, sizeof sums);
    found->tiny = 0, found->least = INFINITY, found->largest = -INFINITY;
    for (int lane = 0; lane < PER_DOUBLES; lane++) {
        found->tiny += tinies[lane];
        found->least = least[lane] < found->least ? least[lane] : found->least;
        found->largest = largest[lane] > found->largest ? largest[lane] : found->largest;
    }
    for (; i < count; i++) {
        double d = x[i] * scale;
        sums[i % LANES] += d;
        magnitudes[i % LANES] += fabs(d);
        squares[i % LANES] += d * d;
        found->tiny += fabs(x[i]) < DBL_MIN;
        found->least = x[i] < found->least ? x[i] : found->least;
        found->largest = x[i] > found->largest ? x[i] : found->largest;
    }
    found->sum = NAME(total)(sums, LANES), found->magnitude = NAME(total)(magnitudes, LANES),
    found->square = NAME(total)(squares, LANES);
}

/* The sum of squared distances from the mean, for values whose sum of squares alone would lose precision. The mean was
   rounded if sums were large; the sum of the distances corrects it. */
static double NAME(deviation_of_floats)(const float_at *x, long count, double *mean, double *rest)
{
    DOUBLES sum[VECTORS], square[VECTORS];
    double sums[LANES], squares[LANES];
    long i = 0;
    memset(sum, 0, sizeof sum), memset(square, 0, sizeof square);
    for (; i + LANES <= count; i += LANES)
#pragma GCC unroll 4
        for (int lanes = 0; lanes < VECTORS; lanes++) {
            DOUBLES d = WIDEN(x + i + lanes * PER_DOUBLES) - *mean;
            sum[lanes] += d;
            square[lanes] += d * d;
        }
    memcpy(sums, sum, sizeof sums), memcpy(squares, square, sizeof squares);
    for (; i < count; i++) {
        double d = x[i] - *mean;
        sums[i % LANES] += d;
        squares[i % LANES] += d * d;
    }
    return corrected(NAME(total)(sums, LANES), NAME(total)(squares, LANES), count, mean, rest);
}

static double NAME(deviation_of_doubles)(const double_at *x, long count, double scale, double *mean, double *rest)
{
    DOUBLES sum[VECTORS], square[VECTORS];
    double sums[LANES], squares[LANES];
    long i = 0;
    memset(sum, 0, sizeof sum), memset(square, 0, sizeof square);
    for (; i + LANES <= count; i += LANES)
#pragma GCC unroll 4
        for (int lanes = 0; lanes < VECTORS; lanes++) {
            DOUBLES d = *(const NAME(doubles_at) *)(x + i + lanes * PER_DOUBLES) * scale - *mean;
            sum[lanes] += d;
            square[lanes] += d * d;
        }
    memcpy(sums, sum, sizeof sums), memcpy(squares, square, sizeof squares);
    for (; i < count; i++) {
        double d = x[i] * scale - *mean;
        sums[i % LANES] += d;
        squares[i % LANES] += d * d;
    }
    return corrected(NAME(total)(sums, LANES), NAME(total)(squares, LANES), count, mean, rest);
}

/* The sum of counters of at most 128 each. */
static uint32_t NAME(total_of_bytes)(BYTES counters)
{
    const LONGS even = (LONGS){0} + 0x00ff00ff00ff00ff;
    LONGS pairs = ((LONGS)counters & even) + (((LONGS)counters >> 8) & even);
    uint64_t sum = 0;
    for (int lane = 0; lane < PER_DOUBLES; lane++)
        sum += (uint64_t)pairs[lane];
    return (uint32_t)(sum * 0x0001000100010001 >> 48);
}

/* The exponent of each float as a byte. The order within a vector does not matter: exponents are only counted. */
static void NAME(exponents_of_floats)(const float_at *x, long count, uint8_t *exponents)
{
    long i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        *(NAME(bytes_at) *)(exponents + i) = PACK(x + i);
    for (; i < count; i++)
        exponents[i] = (uint8_t)(bits_of_float(x[i]) >> 23);
}

static void NAME(exponents_of_bfloat16)(const uint16_at *x, long count, uint8_t *exponents)
{
    for (long i = 0; i < count; i++)
        exponents[i] = (uint8_t)(x[i] >> 7);
}

/* Counts the exponents of the window that begins at `lowest`; returns how many of all exponents are in it. */
#if defined(LOOK_UP)
static long NAME(count_window)(const uint8_t *exponents, long whole, int lowest, uint32_t *histogram)
{
    /* A table has 1 for one exponent and 16 for the next: two counters in a byte, which count up to fifteen. Exponents
       outside the window get an index of 128 or more, for which every table returns 0. */
    const BYTES low = (BYTES){0} + (uint8_t)lowest, beyond = (BYTES){0} + (128 - WINDOW), half = (BYTES){0} + 15;
    long inside = 0;
    for (int first = 0; first < WINDOW; first += 2 * TABLES) {
        BYTES tables[TABLES], counts[2 * TABLES];
        memset(tables, 0, sizeof tables), memset(counts, 0, sizeof counts);
        for (int table = 0; table < TABLES; table++)
            for (int lane = 0; lane < WIDTH; lane += 16)
                tables[table][lane + first + 2 * table] = 1, tables[table][lane + first + 2 * table + 1] = 16;
        for (long start = 0; start < whole; start += 15 * WIDTH) {
            long stop = start + 15 * WIDTH < whole ? start + 15 * WIDTH : whole;
            BYTES pairs[TABLES];
            memset(pairs, 0, sizeof pairs);
            for (long at = start; at < stop; at += WIDTH) {
                BYTES index = ADD_UP_TO_255(*(const NAME(bytes_at) *)(exponents + at) - low, beyond);
#pragma GCC unroll 8
                for (int table = 0; table < TABLES; table++)
                    pairs[table] += LOOK_UP(tables[table], index);
            }
#pragma GCC unroll 8
            for (int table = 0; table < TABLES; table++) {
                counts[2 * table] += pairs[table] & half;
                counts[2 * table + 1] += (BYTES)((LONGS)pairs[table] >> 4) & half;
            }
        }
        for (int bin = 0; bin < 2 * TABLES; bin++) {
            uint32_t count = NAME(total_of_bytes)(counts[bin]);
            histogram[lowest + first + bin] += count, inside += count;
        }
    }
    return inside;
}
#else
static long NAME(count_window)(const uint8_t *exponents, long whole, int lowest, uint32_t *histogram)
{
    long inside = 0;
    for (int first = 0; first < WINDOW; first += 8) {
        for (long start = 0; start < whole; start += 128 * WIDTH) {
            long stop = start + 128 * WIDTH < whole ? start + 128 * WIDTH : whole;
            BYTES counts[8], wanted[8];
            memset(counts, 0, sizeof counts);
#pragma GCC unroll 8
            for (int bin = 0; bin < 8; bin++)
                wanted[bin] = (BYTES){0} + (uint8_t)(lowest + first + bin);
            for (long at = start; at < stop; at += WIDTH) {
                BYTES e = *(const NAME(bytes_at) *)(exponents + at);
#pragma GCC unroll 8
                for (int bin = 0; bin < 8; bin++)
                    counts[bin] -= (BYTES)(e == wanted[bin]);
            }
#pragma GCC unroll 8
            for (int bin = 0; bin < 8; bin++) {
                uint32_t count = NAME(total_of_bytes)(counts[bin]);
                histogram[lowest + first + bin] += count, inside += count;
            }
        }
    }
    return inside;
}
#endif

/* Counts exponents. Most are in a window of sixteen, which is counted with vectors of bytes. This is faster than a
   table of counters. The others, which are few unless they are zeros, are counted one by one. */
static void NAME(count_exponents)(const uint8_t *exponents, long count, int lowest, uint32_t *histogram)
{
    const BYTES window = (BYTES){0} + WINDOW, low = (BYTES){0} + (uint8_t)lowest, none = {0};
    long whole = count / WIDTH * WIDTH, left = whole - NAME(count_window)(exponents, whole, lowest, histogram);
    for (long i = 0; i < whole && left; i += WIDTH) {
        BYTES e = *(const NAME(bytes_at) *)(exponents + i);
        BYTES outside = (BYTES)((e - low) >= window) & (BYTES)(e != none);
        if (__builtin_expect(ANY(outside), 0))
            for (int lane = 0; lane < WIDTH; lane++)
                histogram[e[lane]] += outside[lane] & 1, left -= outside[lane] & 1;
    }
    histogram[0] += (uint32_t)left;
    for (long i = whole; i < count; i++)
        histogram[exponents[i]]++;
}

#include "pairs.h"
#include "weighted.h"

static const struct lanes NAME(lanes) = {
    NAME(decode),
    NAME(sums_of_floats),
    NAME(sums_of_halves),
    NAME(sums_of_doubles),
    NAME(deviation_of_floats),
    NAME(deviation_of_doubles),
    NAME(exponents_of_floats),
    NAME(exponents_of_bfloat16),
    NAME(count_exponents),
    NAME(apart_of_floats),
    NAME(differing),
    NAME(add_floats),
    NAME(add_doubles),
    NAME(outside),
    NAME(narrow),
};

#undef FLOATS
#undef DOUBLES
#undef WORDS
#undef LONGS
#undef BYTES
#undef PER_FLOATS
#undef PER_DOUBLES
#undef VECTORS
#undef WIDTH
#undef NAME
#undef MAX_DOUBLES
#undef ANY
#undef LOOK_UP
#undef ADD_UP_TO_255
#undef TABLES
#undef HALF_VECTORS
#undef SHORTS
#undef PER_SHORTS
#undef MIN
#undef MAX
#undef MIN_WORDS
#undef MIN_SHORTS
#undef MAX_SHORTS
#undef MAX_UNSIGNED_SHORTS
#undef PACK
#undef WIDEN
#undef ADD_PRODUCT
#undef DECODE_FLOAT16
#undef ENCODE_FLOAT16
