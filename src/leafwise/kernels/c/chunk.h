/* The statistics of one chunk of an array, block by block. */

#define STEP (16 * BLOCK) /* elements to read from a file at a time: few enough to stay in the cache */

/* The results for a chunk: the fields of `Moments` in core/results/moments.py, with the same names and in the same
   order. In addition, between the counts and the numbers: how many values are finite, and the exact extremes of
   integers. The extremes of uint64 have their first bit flipped. */
struct result {
    int64_t nan, posinf, neginf, zeros, subnormals, finite, whole_min, whole_max;
    double min, max, mean, mean_rest, std, l1, l2;
};

/* The moments of the finite values so far. The mean is `mean + mean_rest`: far from zero, the difference of two means
   that were rounded to doubles would not be precise enough. Means are in units of 2 to the power of `exponent`, squares
   in units of 4 to that power. */
struct moments {
    double count, mean, mean_rest, deviation, magnitude, square;
    int exponent;
};

struct room {
    float floats[BLOCK];
    double doubles[BLOCK];
    uint8_t exponents[BLOCK];
    uint32_t histogram[BINS];
};

static void rescale(struct moments *moments, int exponent)
{
    int by = moments->exponent - exponent;
    if (!by)
        return;
    moments->mean = ldexp(moments->mean, by), moments->mean_rest = ldexp(moments->mean_rest, by);
    moments->deviation = ldexp(moments->deviation, 2 * by), moments->square = ldexp(moments->square, 2 * by);
    moments->exponent = exponent;
}

static void fold(struct moments *into, struct moments *other)
{
    if (!other->count)
        return;
    if (!into->count) {
        *into = *other;
        return;
    }
    /* The exponent of values that are all zero is ignored. */
    int exponent = into->exponent;
    if (!into->magnitude || (other->magnitude && other->exponent > exponent))
        exponent = other->exponent;
    rescale(into, exponent), rescale(other, exponent);
    double count = into->count + other->count, share = other->count / count, before = into->mean;
    double distance = (other->mean - into->mean) + (other->mean_rest - into->mean_rest), step = distance * share;
    into->deviation += other->deviation + distance * distance * share * into->count;
    into->square += other->square;
    into->magnitude += other->magnitude;
    into->mean += step;
    into->mean_rest += (before - into->mean) + step;
    into->count = count;
}

/* Whether the mean of squares minus the square of the mean would lose more than ten bits. */
static int cancels(double deviation, double mean, double count)
{
    return mean * mean * count > 1024 * deviation;
}

static void count_nonfinite(double x, struct result *found)
{
    if (x != x)
        found->nan++;
    else if (x > 0)
        found->posinf++;
    else
        found->neginf++;
}

static void extremes(const struct sums *sums, struct result *found)
{
    found->min = sums->least < found->min ? sums->least : found->min;
    found->max = sums->largest > found->max ? sums->largest : found->max;
}

static void count_exponents(const struct lanes *lanes, long count, double typical, long zeros, struct room *room)
{
    /* The window ends two exponents above that of the typical magnitude. */
    int middle = typical > 0 ? ilogb(typical) + 127 : 1;
    int lowest = middle - 13 < 1 ? 1 : middle - 13 > 240 ? 240 : middle - 13;
    lanes->count_exponents(room->exponents, count, lowest, room->histogram);
    room->histogram[0] -= (uint32_t)zeros;
}

/* Numbers as 32-bit floats; sets `kind` accordingly. */
static const char *as_floats(const struct lanes *lanes, enum kind *kind, const char *x, long count, const float *values,
                             float *room)
{
    if (*kind == FLOAT32)
        return x;
    lanes->decode(*kind, x, count, values, room);
    *kind = FLOAT32;
    return (const char *)room;
}

static void float_block(const struct lanes *lanes, enum kind kind, const char *x, long count, const float *values,
                        float tiny, int with_histogram, struct room *room, struct moments *moments,
                        struct result *found)
{
    struct sums sums;
    struct ahead ahead = {x + AHEAD, item_bytes[kind]};
    if (kind == BYTE_FLOAT)
        x = as_floats(lanes, &kind, x, count, values, room->floats);
    if (kind == FLOAT32)
        lanes->sums_of_floats((const float_at *)x, count, tiny, ahead, &sums);
    else
        lanes->sums_of_halves(kind, (const uint16_at *)x, count, &sums);
    if (!isfinite(sums.magnitude)) {
        /* Some values are not finite: measured again without them. */
        long kept = 0;
        x = as_floats(lanes, &kind, x, count, values, room->floats);
        for (long i = 0; i < count; i++) {
            float value = ((const float_at *)x)[i];
            if (isfinite(value))
                room->floats[kept++] = value;
            else
                count_nonfinite(value, found);
        }
        x = (const char *)room->floats, count = kept;
        lanes->sums_of_floats(room->floats, count, tiny, ahead, &sums);
    }
    if (!count)
        return;
    found->zeros += sums.zeros, found->subnormals += sums.tiny - sums.zeros;
    extremes(&sums, found);
    double mean = sums.sum / count, rest = 0, deviation = sums.square - sums.sum * mean;
    if (sums.least == sums.largest)
        mean = sums.least + 0.0, deviation = 0; /* zero has no sign */
    else if (cancels(deviation, mean, count)) {
        x = as_floats(lanes, &kind, x, count, values, room->floats);
        deviation = lanes->deviation_of_floats((const float_at *)x, count, &mean, &rest);
    }
    struct moments block = {count, mean, rest, deviation > 0 ? deviation : 0, sums.magnitude, sums.square, 0};
    fold(moments, &block);
    if (!with_histogram)
        return;
    if (kind == BFLOAT16)
        lanes->exponents_of_bfloat16((const uint16_at *)x, count, room->exponents);
    else {
        x = as_floats(lanes, &kind, x, count, values, room->floats);
        lanes->exponents_of_floats((const float_at *)x, count, room->exponents);
    }
    count_exponents(lanes, count, sums.magnitude / count, sums.zeros, room);
}

static void double_block(const struct lanes *lanes, const double_at *x, long count, int with_histogram,
                         struct room *room, struct moments *moments, struct result *found)
{
    struct sums sums;
    double scale = 1;
    int exponent = 0;
    lanes->sums_of_doubles(x, count, 1, &sums);
    if (!isfinite(sums.magnitude)) {
        long kept = 0;
        for (long i = 0; i < count; i++)
            if (isfinite(x[i]))
                room->doubles[kept++] = x[i];
            else
                count_nonfinite(x[i], found);
        x = room->doubles, count = kept;
        lanes->sums_of_doubles(x, count, 1, &sums);
    }
    if (!count)
        return;
    double magnitude = fmax(fabs(sums.least), fabs(sums.largest));
    if (magnitude > 0 && (magnitude > 0x1p480 || magnitude < 0x1p-480)) {
        /* Squares would overflow or underflow. */
        exponent = ilogb(magnitude);
        scale = ldexp(1, exponent < -1000 ? 1000 : -exponent);
        exponent = exponent < -1000 ? -1000 : exponent;
        lanes->sums_of_doubles(x, count, scale, &sums);
    }
    long zeros = 0;
    if (sums.tiny)
        for (long i = 0; i < count; i++)
            zeros += x[i] == 0;
    found->zeros += zeros, found->subnormals += sums.tiny - zeros;
    extremes(&sums, found);
    double mean = sums.sum / count, rest = 0, deviation = sums.square - sums.sum * mean;
    if (sums.least == sums.largest)
        mean = sums.least * scale + 0.0, deviation = 0;
    else if (cancels(deviation, mean, count))
        deviation = lanes->deviation_of_doubles(x, count, scale, &mean, &rest);
    double typical = ldexp(sums.magnitude / count, exponent);
    struct moments block = {count,       mean,    rest, deviation > 0 ? deviation : 0, ldexp(sums.magnitude, exponent),
                            sums.square, exponent};
    fold(moments, &block);
    if (!with_histogram)
        return;
    /* The exponent as 32-bit floats have it; the first and the last include all smaller and all larger numbers. */
    for (long i = 0; i < count; i++) {
        int exponent_of_float = (int)(bits_of_double(x[i]) >> 52 & 2047) - 1023 + 127;
        room->exponents[i] = (uint8_t)(exponent_of_float < 0 ? 0 : exponent_of_float > 255 ? 255 : exponent_of_float);
    }
    count_exponents(lanes, count, fmin(fmax(typical, 0x1p-126), 0x1p127), zeros, room);
}

#define WHOLE_NUMBERS(type, is_negative, first_bit)                                                                    \
    for (long i = 0; i < count; i++) {                                                                                 \
        type value;                                                                                                    \
        memcpy(&value, x + i * sizeof value, sizeof value);                                                            \
        if (kind == BOOL)                                                                                              \
            value = value != 0;                                                                                        \
        int64_t ordered = (int64_t)((uint64_t)value ^ (uint64_t)(first_bit) << 63);                                    \
        least = ordered < least ? ordered : least;                                                                     \
        largest = ordered > largest ? ordered : largest;                                                               \
        room->doubles[i] = (double)value;                                                                              \
        if (with_histogram && value)                                                                                   \
            room->histogram[190 - __builtin_clzll(is_negative ? 0 - (uint64_t)value : (uint64_t)value)]++;             \
    }                                                                                                                  \
    break;

/* Integers as doubles. Their extremes and exponents are computed here, while they are still exact. */
static void decode_whole(enum kind kind, const char *x, long count, int with_histogram, struct room *room,
                         struct result *found)
{
    int64_t least = INT64_MAX, largest = INT64_MIN;
    switch (kind) {
    case INT8: WHOLE_NUMBERS(int8_t, value < 0, 0)
    case INT16: WHOLE_NUMBERS(int16_t, value < 0, 0)
    case INT32: WHOLE_NUMBERS(int32_t, value < 0, 0)
    case INT64: WHOLE_NUMBERS(int64_t, value < 0, 0)
    case UINT16: WHOLE_NUMBERS(uint16_t, 0, 0)
    case UINT32: WHOLE_NUMBERS(uint32_t, 0, 0)
    case UINT64: WHOLE_NUMBERS(uint64_t, 0, 1)
    default: WHOLE_NUMBERS(uint8_t, 0, 0)
    }
    found->whole_min = least < found->whole_min ? least : found->whole_min;
    found->whole_max = largest > found->whole_max ? largest : found->whole_max;
}

/* Reads bytes of a file; returns whether all could be read. */
static int read_all(int file, int64_t at, char *into, size_t bytes)
{
    while (bytes) {
        ssize_t done = pread(file, into, bytes, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return 0;
        into += done, at += done, bytes -= (size_t)done;
    }
    return 1;
}

/* Where the numbers of a chunk are: in memory, or in a file from `address` on, read into `room` a step at a time. */
struct side {
    int64_t address;
    int file;
    char *room;
};

/* The bytes at an offset; NULL if they could not be read. */
static const char *seen(const struct side *side, int64_t offset, int64_t bytes)
{
    if (side->file < 0)
        return (const char *)(intptr_t)(side->address + offset);
    return read_all(side->file, side->address + offset, side->room, (size_t)bytes) ? side->room : NULL;
}

/* Returns whether the whole chunk could be read. */
static int measure_chunk(const struct lanes *lanes, enum kind kind, const struct side *side, int64_t size,
                         const float *values, float tiny, int with_histogram, struct room *room, struct result *found)
{
    struct moments moments = {0};
    const char *x = NULL;
    memset(found, 0, sizeof *found);
    found->min = INFINITY, found->max = -INFINITY;
    found->whole_min = INT64_MAX, found->whole_max = INT64_MIN;
    for (int64_t start = 0; start < size; start += BLOCK, x += BLOCK * item_bytes[kind]) {
        long count = size - start < BLOCK ? (long)(size - start) : BLOCK;
        /* Only integers of 64 bits cannot all be represented by doubles. */
        int beyond_doubles = item_bytes[kind] == 8;
        if (start % STEP == 0) {
            int64_t some = size - start < STEP ? size - start : STEP;
            if (!(x = seen(side, start * item_bytes[kind], some * item_bytes[kind])))
                return 0;
        }
        switch (kind) {
        case FLOAT32:
        case BFLOAT16:
        case FLOAT16:
        case BYTE_FLOAT: float_block(lanes, kind, x, count, values, tiny, with_histogram, room, &moments, found); break;
        case FLOAT64: double_block(lanes, (const double_at *)x, count, with_histogram, room, &moments, found); break;
        default:
            decode_whole(kind, x, count, with_histogram && beyond_doubles, room, found);
            double_block(lanes, room->doubles, count, with_histogram && !beyond_doubles, room, &moments, found);
        }
    }
    found->finite = (int64_t)moments.count;
    found->mean = ldexp(moments.mean, moments.exponent), found->mean_rest = ldexp(moments.mean_rest, moments.exponent);
    found->l1 = moments.magnitude;
    found->min += 0.0, found->max += 0.0; /* zero has no sign */
    found->std = moments.count ? ldexp(sqrt(moments.deviation / moments.count), moments.exponent) : 0;
    found->l2 = ldexp(sqrt(moments.square), moments.exponent);
    return 1;
}
