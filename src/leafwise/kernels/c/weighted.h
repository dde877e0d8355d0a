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
   gives the same result as rounding only once. The rounding is done in the bits of the doubles; the conversion is then
   exact, except for subnormal floats. */
static void NAME(round_to_odd)(const double *restrict sums, long count, float *restrict out)
{
    const int64_t rest = (1 << 29) - 1; /* the bits of a double that a float does not have */
    for (long i = 0; i < count; i++) {
        int64_t bits = bits_of_double(sums[i]);
        out[i] = (float)double_of_bits((bits | (((bits & rest) + rest) & (rest + 1))) & ~rest);
    }
}

/* The same for sums that may be subnormal floats. */
static void NAME(round_small_to_odd)(const double *restrict sums, long count, float *restrict out)
{
    for (long i = 0; i < count; i++) {
        float x = (float)sums[i];
        double back = (double)x;
        uint32_t bits = (uint32_t)bits_of_float(x);
        bits -= fabs(back) > fabs(sums[i]);
        out[i] = float_of_bits(bits | (back != sums[i]));
    }
}

static int64_t NAME(subnormal)(const double *restrict sums, long count)
{
    int64_t found = 0;
    for (long i = 0; i < count; i++)
        found += (fabs(sums[i]) < 0x1p-126) & (sums[i] != 0);
    return found;
}

/* Rounds sums to the kind of the result. */
static void NAME(narrow)(enum kind kind, const double *restrict sums, long count, float *restrict floats, char *out)
{
    const uint32_t *bits = (const uint32_t *)floats;
    switch (kind) {
    case FLOAT64: memcpy(out, sums, (size_t)count * sizeof *sums); break;
    case BFLOAT16:
        if (NAME(subnormal)(sums, count))
            NAME(round_small_to_odd)(sums, count, floats);
        else
            NAME(round_to_odd)(sums, count, floats);
        for (long i = 0; i < count; i++)
            ((uint16_at *)out)[i] = (uint16_t)((bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
        break;
    case FLOAT16: /* subnormal floats become zero in any case */
        NAME(round_to_odd)(sums, count, floats);
        ENCODE_FLOAT16(floats, count, (uint16_at *)out);
        break;
    default:
        for (long i = 0; i < count; i++)
            ((float_at *)out)[i] = (float)sums[i];
    }
}
