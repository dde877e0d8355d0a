/* Compares two arrays of one dtype, in one pass over both. See comparing.py for how it is called, and reference.py for
   the reference.

   Chunks and threads are as in cpu.c. In each step, a part of a chunk is read from both sides and compared bit by bit.
   Only if they differ are the bits converted to numbers. A step of both sides stays in the cache. */

/* The results for a chunk; comparing.py knows the layout. Norms and the cosine are those of the finite pairs; they are
   zero if both sides are the same and they were not requested. The largest difference is NaN if a pair that is not
   finite changed; `nonfinite_changed` counts these pairs. The distance and the norms are in units of 2 to the power of
   the exponents below: without them, they could overflow a double, or lose digits. */
struct comparison {
    int64_t differs, changed, nonfinite;
    double distance, norm, other_norm, cosine, largest;
    int64_t nonfinite_changed, distance_power, norm_power, other_power;
};

/* Sums so far. Squares are in units of 4 to the power of their exponents. Each has its own exponent: one side may be
   huge, the other small, and the distances smaller than both. `dot` is in units of 2 to the power of the sum of both
   exponents, `largest` in units of one. */
struct gap {
    struct apart sums;
    int distance, norm, other_norm;
};

struct pair_room {
    float floats[2][BLOCK];
    double doubles[3][BLOCK]; /* both sides, and the distances */
};

static void add_squares(double *sum, int *exponent, double more, int more_exponent)
{
    /* The exponent of values that are all zero is ignored. */
    if (!more)
        return;
    int most = !*sum || more_exponent > *exponent ? more_exponent : *exponent;
    *sum = ldexp(*sum, 2 * (*exponent - most)) + ldexp(more, 2 * (more_exponent - most));
    *exponent = most;
}

static void fold_gap(struct gap *into, const struct gap *other)
{
    int before = into->norm + into->other_norm, theirs = other->norm + other->other_norm;
    add_squares(&into->sums.distance, &into->distance, other->sums.distance, other->distance);
    add_squares(&into->sums.square, &into->norm, other->sums.square, other->norm);
    add_squares(&into->sums.other_square, &into->other_norm, other->sums.other_square, other->other_norm);
    int exponent = into->norm + into->other_norm;
    into->sums.dot = ldexp(into->sums.dot, before - exponent) + ldexp(other->sums.dot, theirs - exponent);
    into->sums.largest = other->sums.largest > into->sums.largest ? other->sums.largest : into->sums.largest;
}

/* Compares floats; also needs the bytes from which they were decoded. */
static void floats_apart(const struct lanes *lanes, const float_at *x, const float_at *y, const char *bytes,
                         const char *other_bytes, int item_bytes, long count, struct pair_room *room, struct gap *gap,
                         struct comparison *found)
{
    struct gap block = {{0}, 0, 0, 0};
    lanes->apart_of_floats(x, y, count, &block.sums);
    if (!isfinite(block.sums.square + block.sums.other_square)) {
        /* Some values are not finite: compared again without them. */
        long kept = 0;
        for (long i = 0; i < count; i++) {
            float a = x[i], b = y[i];
            if (isfinite(a) && isfinite(b))
                room->floats[0][kept] = a, room->floats[1][kept++] = b;
            else
                found->nonfinite_changed +=
                    memcmp(bytes + i * item_bytes, other_bytes + i * item_bytes, (size_t)item_bytes) != 0;
        }
        found->nonfinite += count - kept;
        lanes->apart_of_floats(room->floats[0], room->floats[1], kept, &block.sums);
    }
    fold_gap(gap, &block);
}

/* The power of two by which numbers are divided so that their squares neither overflow nor underflow; mostly 0. */
static int exponent_of(double magnitude)
{
    if (!(magnitude > 0) || (magnitude <= 0x1p480 && magnitude >= 0x1p-480))
        return 0;
    return ilogb(magnitude) < -1000 ? -1000 : ilogb(magnitude);
}

static double largest_of(const double *x, long count)
{
    double largest = 0;
    for (long i = 0; i < count; i++)
        largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    return largest;
}

/* Compares doubles in `room`, which also has the distances if those of integers would be lost by rounding. */
static void doubles_apart(struct pair_room *room, long count, int with_distances, struct gap *gap,
                          struct comparison *found)
{
    double *x = room->doubles[0], *y = room->doubles[1], *apart = room->doubles[2], far;
    struct gap block = {{0}, 0, 0, 0};
    long kept = 0;
    int halved = 0;
    for (long i = 0; i < count; i++)
        if (isfinite(x[i]) && isfinite(y[i]))
            x[kept] = x[i], y[kept] = y[i], apart[kept] = with_distances ? apart[i] : x[i] - y[i], kept++;
        else
            found->nonfinite_changed += memcmp(x + i, y + i, sizeof *x) != 0;
    found->nonfinite += count - kept;
    if (isinf(far = largest_of(apart, kept))) {
        /* The difference of two finite numbers may be larger than any double. */
        for (long i = 0; i < kept; i++)
            apart[i] = x[i] / 2 - y[i] / 2;
        halved = 1, far = largest_of(apart, kept);
    }
    block.norm = exponent_of(largest_of(x, kept)), block.other_norm = exponent_of(largest_of(y, kept));
    block.distance = exponent_of(far);
    const double scale = ldexp(1, -block.norm), other_scale = ldexp(1, -block.other_norm),
                 apart_scale = ldexp(1, -block.distance);
    for (long i = 0; i < kept; i++) {
        double a = x[i] * scale, b = y[i] * other_scale, between = apart[i] * apart_scale;
        block.sums.distance += between * between;
        block.sums.square += a * a, block.sums.other_square += b * b, block.sums.dot += a * b;
    }
    block.distance += halved;
    block.sums.largest = ldexp(far, halved);
    fold_gap(gap, &block);
}

#define WHOLE_PAIRS(type)                                                                                              \
    for (long i = 0; i < count; i++) {                                                                                 \
        type a, b;                                                                                                     \
        memcpy(&a, x + i * sizeof a, sizeof a), memcpy(&b, y + i * sizeof b, sizeof b);                                \
        if (kind == BOOL)                                                                                              \
            a = a != 0, b = b != 0;                                                                                    \
        room->doubles[0][i] = (double)a, room->doubles[1][i] = (double)b;                                              \
        room->doubles[2][i] = (double)(a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a);                 \
    }                                                                                                                  \
    break;

static void decode_pairs(enum kind kind, const char *x, const char *y, long count, struct pair_room *room)
{
    switch (kind) {
    case INT8: WHOLE_PAIRS(int8_t)
    case INT16: WHOLE_PAIRS(int16_t)
    case INT32: WHOLE_PAIRS(int32_t)
    case INT64: WHOLE_PAIRS(int64_t)
    case UINT16: WHOLE_PAIRS(uint16_t)
    case UINT32: WHOLE_PAIRS(uint32_t)
    case UINT64: WHOLE_PAIRS(uint64_t)
    case FLOAT64: memcpy(room->doubles[0], x, (size_t)count * 8), memcpy(room->doubles[1], y, (size_t)count * 8); break;
    default: WHOLE_PAIRS(uint8_t)
    }
}

static void compare_step(const struct lanes *lanes, enum kind kind, const char *x, const char *y, int64_t size,
                         const float *values, struct pair_room *room, struct gap *gap, struct comparison *found)
{
    int bytes = item_bytes[kind];
    for (int64_t start = 0; start < size; start += BLOCK, x += BLOCK * bytes, y += BLOCK * bytes) {
        long count = size - start < BLOCK ? (long)(size - start) : BLOCK;
        found->changed += lanes->differing(x, y, count, bytes);
        if (kind <= BYTE_FLOAT && kind != FLOAT64) {
            const char *sides[2] = {x, y};
            const float_at *floats[2];
            for (int side = 0; side < 2; side++) {
                enum kind its_kind = kind;
                floats[side] =
                    (const float_at *)as_floats(lanes, &its_kind, sides[side], count, values, room->floats[side]);
            }
            floats_apart(lanes, floats[0], floats[1], x, y, bytes, count, room, gap, found);
        } else {
            decode_pairs(kind, x, y, count, room);
            doubles_apart(room, count, kind != FLOAT64, gap, found);
        }
    }
}

/* Compares a chunk; returns the side that could not be read, 1 or 2, or else 0. */
static int compare_chunk(const struct lanes *lanes, enum kind kind, const struct side sides[2], int64_t size,
                         const float *values, int always, struct pair_room *room, struct comparison *found)
{
    const char *x = NULL, *y = NULL;
    const int64_t bytes = size * item_bytes[kind], step = STEP * item_bytes[kind];
    int64_t at = 0, held = -1;
    struct gap gap = {{0}, 0, 0, 0};
    memset(found, 0, sizeof *found);
    for (; at < bytes; at += step) {
        int64_t some = bytes - at < step ? bytes - at : step;
        if (!(x = seen(sides, at, some)))
            return 1;
        if (!(y = seen(sides + 1, at, some)))
            return 2;
        held = at;
        if (always || memcmp(x, y, (size_t)some) != 0)
            break;
    }
    if (at >= bytes)
        return 0;
    /* The steps before this one were equal and were skipped. They are read again, because they count in the norms. */
    for (at = 0; at < bytes; at += step) {
        int64_t some = bytes - at < step ? bytes - at : step;
        if (at != held && !(x = seen(sides, at, some)))
            return 1;
        if (at != held && !(y = seen(sides + 1, at, some)))
            return 2;
        held = -1;
        compare_step(lanes, kind, x, y, some / item_bytes[kind], values, room, &gap, found);
    }
    double both = sqrt(gap.sums.square) * sqrt(gap.sums.other_square);
    found->differs = found->changed > 0;
    found->distance = sqrt(gap.sums.distance), found->distance_power = gap.distance;
    found->norm = sqrt(gap.sums.square), found->norm_power = gap.norm;
    found->other_norm = sqrt(gap.sums.other_square), found->other_power = gap.other_norm;
    found->cosine = both > 0 ? gap.sums.dot / both : NAN;
    found->largest = found->nonfinite_changed ? NAN : gap.sums.largest;
    return 0;
}

struct comparing {
    struct work work; /* its addresses and files are those of the first side */
    const int64_t *other_addresses;
    const int32_t *other_files;
    struct comparison *results;
    int always;
};

static void *compare(void *given)
{
    struct comparing *all = given;
    struct work *work = &all->work;
    int64_t chunks = work->first_chunks[work->arrays], number;
    struct pair_room *room = malloc(sizeof *room);
    char *bytes = malloc((size_t)STEP * 16);
    fenv_t before;
    if (!room || !bytes) {
        free(room), free(bytes);
        return given;
    }
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    while ((number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t array = array_of(work, number);
        int64_t start = (number - work->first_chunks[array]) * work->chunk, left = work->sizes[array] - start;
        enum kind kind = (enum kind)work->kinds[array];
        int64_t offset = start * item_bytes[kind];
        struct side sides[2] = {{work->addresses[array] + offset, work->files[array], bytes},
                                {all->other_addresses[array] + offset, all->other_files[array], bytes + STEP * 8}};
        int unread =
            compare_chunk(work->lanes, kind, sides, left < work->chunk ? left : work->chunk,
                          work->values + BINS * work->values_of[array], all->always, room, all->results + number);
        if (unread) {
            __atomic_store_n(&work->unread, 2 * array + unread, __ATOMIC_RELAXED);
            break;
        }
    }
    fesetenv(&before);
    free(room), free(bytes);
    return NULL;
}

/* See leafwise_result_bytes. */
int64_t leafwise_comparison_bytes(void)
{
    return (int64_t)sizeof(struct comparison);
}

/* Compares arrays with others of the same dtypes and sizes. There is one result for each chunk. For equal chunks, norms
   are computed only with `always`. `files` are descriptors, or -1 for arrays in memory. Returns 0 for success, -1 if
   there was not enough memory, 2 n + 1 if the first side of pair n could not be read, and 2 n + 2 if the second could
   not. */
int64_t leafwise_compare(int64_t arrays, int64_t chunk, const int64_t *addresses, const int64_t *other_addresses,
                         const int64_t *sizes, const int64_t *first_chunks, const int32_t *files,
                         const int32_t *other_files, const int32_t *kinds, const int32_t *values_of,
                         const float *values, void *results, int always, int threads, int instruction_set)
{
    struct comparing all = {{instruction_sets[instruction_set], arrays, chunk, 0, 0, addresses, sizes, first_chunks,
                             files, kinds, values_of, values, NULL, NULL, NULL},
                            other_addresses,
                            other_files,
                            results,
                            always};
    int failed = in_threads(compare, &all, threads);
    return all.work.unread ? all.work.unread : failed && all.work.next < first_chunks[arrays] ? -1 : 0;
}
