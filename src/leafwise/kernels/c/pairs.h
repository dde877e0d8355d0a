/* One pass over a block of pairs of numbers, for one instruction set. Included by lanes.h, once for each.

   As there, element i is added to lane i % 8, so that the sums have the same bits on every machine. The product of two
   floats is exact in a double. The product of distances may not be, and is rounded before it is added. */

static void NAME(apart_of_floats)(const float_at *x, const float_at *y, long count, struct apart *found)
{
    DOUBLES distance[VECTORS], square[VECTORS], other_square[VECTORS], dot[VECTORS], largest[VECTORS];
    double sums[5][LANES];
    const LONGS no_sign = (LONGS){0} + INT64_MAX;
    long i = 0;
    memset(distance, 0, sizeof distance), memset(square, 0, sizeof square);
    memset(other_square, 0, sizeof other_square), memset(dot, 0, sizeof dot), memset(largest, 0, sizeof largest);
    for (; i + LANES <= count; i += LANES)
#pragma GCC unroll 4
        for (int lanes = 0; lanes < VECTORS; lanes++) {
            DOUBLES a = WIDEN(x + i + lanes * PER_DOUBLES), b = WIDEN(y + i + lanes * PER_DOUBLES), apart = a - b;
            distance[lanes] += apart * apart;
            square[lanes] = ADD_PRODUCT(square[lanes], a, a);
            other_square[lanes] = ADD_PRODUCT(other_square[lanes], b, b);
            dot[lanes] = ADD_PRODUCT(dot[lanes], a, b);
            largest[lanes] = MAX_DOUBLES(largest[lanes], (DOUBLES)((LONGS)apart & no_sign));
        }
    memcpy(sums[0], distance, sizeof distance), memcpy(sums[1], square, sizeof square);
    memcpy(sums[2], other_square, sizeof square), memcpy(sums[3], dot, sizeof dot);
    memcpy(sums[4], largest, sizeof largest);
    for (; i < count; i++) {
        double a = x[i], b = y[i], apart = a - b, size = fabs(apart), *most = &sums[4][i % LANES];
        sums[0][i % LANES] += apart * apart;
        sums[1][i % LANES] += a * a;
        sums[2][i % LANES] += b * b;
        sums[3][i % LANES] += a * b;
        *most = size > *most ? size : *most;
    }
    found->largest = 0;
    for (int lane = 0; lane < LANES; lane++)
        found->largest = sums[4][lane] > found->largest ? sums[4][lane] : found->largest;
    found->distance = NAME(total)(sums[0], LANES), found->square = NAME(total)(sums[1], LANES);
    found->other_square = NAME(total)(sums[2], LANES), found->dot = NAME(total)(sums[3], LANES);
}

/* How many elements differ in their bits. The counts have as many bits as the numbers; a block is short enough. */
static long NAME(differing)(const char *x, const char *y, long count, int item_bytes)
{
    uint16_t bytes = 0, shorts = 0;
    uint32_t words = 0;
    uint64_t longs = 0;
    switch (item_bytes) {
    case 1:
        for (long i = 0; i < count; i++)
            bytes += x[i] != y[i];
        return bytes;
    case 2:
        for (long i = 0; i < count; i++)
            shorts += ((const uint16_at *)x)[i] != ((const uint16_at *)y)[i];
        return shorts;
    case 4:
        for (long i = 0; i < count; i++)
            words += ((const uint32_at *)x)[i] != ((const uint32_at *)y)[i];
        return words;
    default:
        for (long i = 0; i < count; i++)
            longs += ((const uint64_at *)x)[i] != ((const uint64_at *)y)[i];
        return (long)longs;
    }
}
