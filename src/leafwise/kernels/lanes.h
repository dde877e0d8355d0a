/* One pass over a block of numbers, for one instruction set.

   Included once for each, with WIDTH (bytes of a vector), NAME(x) and the few operations that differ defined. Whatever
   the width, element i is added to lane i % 8, in order: so the sums have the same bits on every machine. (The square
   of a float is exact in a double, so that it does not matter whether it is rounded before it is added.) */

typedef float NAME(floats) __attribute__((vector_size(WIDTH)));
typedef double NAME(doubles) __attribute__((vector_size(WIDTH)));
typedef int32_t NAME(words) __attribute__((vector_size(WIDTH)));
typedef int64_t NAME(longs) __attribute__((vector_size(WIDTH)));
typedef uint8_t NAME(bytes) __attribute__((vector_size(WIDTH)));
/* The same, at any address. */
typedef float NAME(floats_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef double NAME(doubles_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef int32_t NAME(words_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef uint8_t NAME(bytes_at) __attribute__((vector_size(WIDTH), aligned(1), may_alias));

#define FLOATS NAME(floats)
#define DOUBLES NAME(doubles)
#define WORDS NAME(words)
#define LONGS NAME(longs)
#define BYTES NAME(bytes)
#define PER_FLOATS (WIDTH / 4)
#define PER_DOUBLES (WIDTH / 8)
#define VECTORS (LANES / PER_DOUBLES) /* so many hold the lanes */

/* Adds up the lanes in a fixed order. */
static double NAME(total)(double *lane)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static void NAME(sums_of_floats)(const float_at *x, long count, float tiny, struct coming coming, struct sums *found)
{
    DOUBLES sum[VECTORS], magnitude[VECTORS], square[VECTORS];
    double sums[LANES], magnitudes[LANES], squares[LANES];
    const LONGS no_sign = (LONGS){0} + INT64_MAX;
    const WORDS no_sign_bit = (WORDS){0} + INT32_MAX;
    WORDS tinies = {0}, limit = (WORDS){0} + bits_of_float(tiny);
    FLOATS least = (FLOATS){0} + INFINITY, largest = (FLOATS){0} - INFINITY;
    long i = 0;
    memset(sum, 0, sizeof sum), memset(magnitude, 0, sizeof magnitude), memset(square, 0, sizeof square);
    for (; i + 16 <= count; i += 16) {
        __builtin_prefetch(coming.bytes + i * coming.item_bytes);
#pragma GCC unroll 4
        for (int part = 0; part < 16; part += PER_FLOATS) {
            FLOATS v = *(const NAME(floats_at) *)(x + i + part);
            least = MIN(least, v);
            largest = MAX(largest, v);
            tinies = COUNT_BELOW(tinies, (WORDS)v & no_sign_bit, limit);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                int lanes = (part + half * PER_DOUBLES) % LANES / PER_DOUBLES;
                DOUBLES d = WIDEN(x + i + part + half * PER_DOUBLES);
                sum[lanes] += d;
                magnitude[lanes] += (DOUBLES)((LONGS)d & no_sign);
                square[lanes] = ADD_PRODUCT(square[lanes], d, d);
            }
        }
    }
    memcpy(sums, sum, sizeof sums), memcpy(magnitudes, magnitude, sizeof sums), memcpy(squares, square, sizeof sums);
    found->tiny = 0, found->least = INFINITY, found->largest = -INFINITY;
    for (int lane = 0; lane < PER_FLOATS; lane++) {
        found->tiny += tinies[lane];
        found->least = least[lane] < found->least ? least[lane] : found->least;
        found->largest = largest[lane] > found->largest ? largest[lane] : found->largest;
    }
    for (; i < count; i++) {
        double d = x[i];
        sums[i % LANES] += d;
        magnitudes[i % LANES] += fabs(d);
        squares[i % LANES] += d * d;
        found->tiny += fabsf(x[i]) < tiny;
        found->least = d < found->least ? d : found->least;
        found->largest = d > found->largest ? d : found->largest;
    }
    found->sum = NAME(total)(sums), found->magnitude = NAME(total)(magnitudes), found->square = NAME(total)(squares);
}

/* As above, with every value multiplied by a power of two before it is added or squared. */
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
    found->sum = NAME(total)(sums), found->magnitude = NAME(total)(magnitudes), found->square = NAME(total)(squares);
}

/* The sum of squared distances from the mean, where the squares alone would cancel. The mean itself, which was rounded
   when sums were large, is corrected by what is left of the distances. */
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
    return corrected(NAME(total)(sums), NAME(total)(squares), count, mean, rest);
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
    return corrected(NAME(total)(sums), NAME(total)(squares), count, mean, rest);
}

/* Of counters of at most 128 each. */
static uint32_t NAME(total_of_bytes)(BYTES counters)
{
    const LONGS even = (LONGS){0} + 0x00ff00ff00ff00ff;
    LONGS pairs = ((LONGS)counters & even) + (((LONGS)counters >> 8) & even);
    uint64_t sum = 0;
    for (int lane = 0; lane < PER_DOUBLES; lane++)
        sum += (uint64_t)pairs[lane];
    return (uint32_t)(sum * 0x0001000100010001 >> 48);
}

static long NAME(zeros_of_floats)(const float_at *x, long count)
{
    int found = 0;
    for (long i = 0; i < count; i++)
        found += x[i] == 0;
    return found;
}

/* Counts values by the exponent that a float has for them. Most lie in a window of sixteen: each of these is compared
   for, in vectors of bytes, which beats a table of counters. Those outside of it, which are few, are counted one by
   one. `exponents` is room for a block. */
static void NAME(count_exponents)(const float_at *x, long count, int lowest, uint8_t *exponents, uint32_t *histogram)
{
    const BYTES window = (BYTES){0} + 16, low = (BYTES){0} + (uint8_t)lowest, none = {0};
    long whole = count / WIDTH * WIDTH, i = 0;
    BYTES zeros = {0};
    for (; i < whole; i += WIDTH) {
        BYTES e = PACK(x + i);
        BYTES is_zero = (BYTES)(e == none), outside = (BYTES)((e - low) >= window) & ~is_zero;
        *(NAME(bytes_at) *)(exponents + i) = e;
        zeros -= is_zero;
        if (i / WIDTH % 128 == 127) {
            histogram[0] += NAME(total_of_bytes)(zeros);
            zeros = none;
        }
        if (__builtin_expect(ANY(outside), 0))
            for (int lane = 0; lane < WIDTH; lane++)
                histogram[e[lane]] += outside[lane] & 1;
    }
    histogram[0] += NAME(total_of_bytes)(zeros);
    for (int set = 0; set < 16; set += 8) {
        for (long start = 0; start < whole; start += 128 * WIDTH) {
            long stop = start + 128 * WIDTH < whole ? start + 128 * WIDTH : whole;
            BYTES counts[8], wanted[8];
            memset(counts, 0, sizeof counts);
#pragma GCC unroll 8
            for (int bin = 0; bin < 8; bin++)
                wanted[bin] = (BYTES){0} + (uint8_t)(lowest + set + bin);
            for (long at = start; at < stop; at += WIDTH) {
                BYTES e = *(const NAME(bytes_at) *)(exponents + at);
#pragma GCC unroll 8
                for (int bin = 0; bin < 8; bin++)
                    counts[bin] = COUNT_EQUAL(counts[bin], e, wanted[bin]);
            }
#pragma GCC unroll 8
            for (int bin = 0; bin < 8; bin++) {
                histogram[lowest + set + bin] += NAME(total_of_bytes)(counts[bin]);
            }
        }
    }
    for (i = whole; i < count; i++)
        histogram[bits_of_float(x[i]) >> 23 & 255]++;
}

static void NAME(decode_bfloat16)(const uint16_at *x, long count, float *out)
{
    uint32_t *bits = (uint32_t *)out;
    for (long i = 0; i < count; i++)
        bits[i] = (uint32_t)x[i] << 16;
}

#include "pairs.h"

static const struct lanes NAME(lanes) = {
    NAME(sums_of_floats),  NAME(sums_of_doubles), NAME(deviation_of_floats), NAME(deviation_of_doubles),
    NAME(zeros_of_floats), NAME(count_exponents), NAME(decode_bfloat16),     DECODE_FLOAT16,
    NAME(apart_of_floats), NAME(differing),
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
#undef MIN
#undef MAX
#undef MAX_DOUBLES
#undef ANY
#undef COUNT_EQUAL
#undef PACK
#undef WIDEN
#undef ADD_PRODUCT
#undef COUNT_BELOW
#undef DECODE_FLOAT16
