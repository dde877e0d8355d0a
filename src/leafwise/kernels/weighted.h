/* Weighted sums of a block of numbers, for one instruction set; included by lanes.h. A product is rounded before it is
   added, so that every instruction set gives the same bits: the loops below must not use fused operations. */

static void NAME(add_floats)(const float_at *restrict x, long count, double weight, int first, double *restrict sums)
{
    if (first)
        for (long i = 0; i < count; i++)
            sums[i] = weight * (double)x[i];
    else
        for (long i = 0; i < count; i++)
            sums[i] += weight * (double)x[i];
}

static void NAME(add_doubles)(const double_at *restrict x, long count, double weight, int first, double *restrict sums)
{
    if (first)
        for (long i = 0; i < count; i++)
            sums[i] = weight * x[i];
    else
        for (long i = 0; i < count; i++)
            sums[i] += weight * x[i];
}

/* How many sums are not smaller than a limit, or are NaN. */
static long NAME(outside)(const double *restrict sums, long count, double limit)
{
    int64_t outside = 0;
    for (long i = 0; i < count; i++)
        outside += !(fabs(sums[i]) < limit);
    return (long)outside;
}

/* Sums as floats, rounded to odd: inexact results have a last bit of one, so that rounding them again, to 16 bits,
   gives the same result as rounding only once. */
static void NAME(round_to_odd)(const double *restrict sums, long count, uint32_t *restrict bits)
{
    for (long i = 0; i < count; i++) {
        float x = (float)sums[i];
        double back = (double)x;
        uint32_t near = (uint32_t)bits_of_float(x);
        near -= fabs(back) > fabs(sums[i]);
        bits[i] = near | (back != sums[i]);
    }
}

static void NAME(narrow)(enum kind kind, const double *restrict sums, long count, uint32_t *restrict bits, char *out)
{
    switch (kind) {
    case FLOAT64: memcpy(out, sums, (size_t)count * sizeof *sums); break;
    case BFLOAT16:
        NAME(round_to_odd)(sums, count, bits);
        for (long i = 0; i < count; i++)
            ((uint16_at *)out)[i] = (uint16_t)((bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
        break;
    case FLOAT16:
        NAME(round_to_odd)(sums, count, bits);
        ENCODE_FLOAT16(bits, count, (uint16_at *)out);
        break;
    default:
        for (long i = 0; i < count; i++)
            ((float_at *)out)[i] = (float)sums[i];
    }
}
