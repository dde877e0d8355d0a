/* Weighted sums of arrays of floats. See combining.py for how it is called, and reference.py for the reference.

   A block of sums stays in the cache while the inputs are added, in their order. Threads are the caller's. */

#define COMBINED 1024 /* elements in a block */

struct combined_room {
    double sums[COMBINED];
    float floats[COMBINED];
};

struct combination {
    const struct lanes *lanes;
    int64_t inputs;
    const int64_t *addresses;
    const int32_t *kinds, *values_of;
    const float *values;
    const double *weights;
};

static void add_input(const struct combination *all, int64_t input, int64_t start, long count,
                      struct combined_room *room)
{
    enum kind kind = (enum kind)all->kinds[input];
    const char *x = (const char *)(intptr_t)all->addresses[input] + start * item_bytes[kind];
    if (kind == FLOAT64) {
        all->lanes->add_doubles((const double_at *)x, count, all->weights[input], !input, room->sums);
        return;
    }
    if (kind != FLOAT32) {
        all->lanes->decode(kind, x, count, all->values + BINS * all->values_of[input], room->floats);
        x = (const char *)room->floats;
    }
    all->lanes->add_floats((const float_at *)x, count, all->weights[input], !input, room->sums);
}

static int is_finite_at(const struct combination *all, int64_t input, int64_t at)
{
    enum kind kind = (enum kind)all->kinds[input];
    const char *x = (const char *)(intptr_t)all->addresses[input] + at * item_bytes[kind];
    float single;
    if (kind == FLOAT64)
        return isfinite(*(const double_at *)x);
    all->lanes->decode(kind, x, 1, all->values + BINS * all->values_of[input], &single);
    return isfinite(single);
}

enum outcome { FIT, DO_NOT_FIT, FIT_WITH_NAN };

/* Whether sums fit that are large, infinite or NaN: infinities and NaN must come from the inputs. All NaN get the same
   bits. */
static enum outcome unusual_fit(const struct combination *all, int64_t start, long count, double limit, double *sums)
{
    enum outcome outcome = FIT;
    for (long i = 0; i < count; i++) {
        int from_inputs = 0;
        if (fabs(sums[i]) < limit)
            continue;
        if (isfinite(sums[i]))
            return DO_NOT_FIT;
        for (int64_t input = 0; input < all->inputs && !from_inputs; input++)
            from_inputs = !is_finite_at(all, input, start + i);
        if (!from_inputs)
            return DO_NOT_FIT;
        if (isnan(sums[i]))
            sums[i] = NAN, outcome = FIT_WITH_NAN;
    }
    return outcome;
}

/* Writes the sum of the inputs, each multiplied by its weight. Returns 1 if some sums do not fit into the kind of
   `out`, whose content is then undefined; otherwise 0. */
int64_t leafwise_combine(int64_t inputs, int64_t size, const int64_t *addresses, const int32_t *kinds,
                         const int32_t *values_of, const float *values, const double *weights, char *out, int out_kind,
                         int instruction_set)
{
    const struct combination all = {
        instruction_sets[instruction_set], inputs, addresses, kinds, values_of, values, weights};
    enum kind kind = (enum kind)out_kind;
    /* Halfway between the largest number and the next, if there were one. */
    const double limit = kind == FLOAT64    ? INFINITY
                         : kind == FLOAT32  ? 0x1.ffffffp127
                         : kind == BFLOAT16 ? 0x1.ffp127
                                            : 65520.0;
    struct combined_room room;
    fenv_t before;
    enum outcome outcome = FIT, of_block;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    for (int64_t start = 0; start < size && outcome != DO_NOT_FIT; start += COMBINED) {
        long count = (long)(size - start < COMBINED ? size - start : COMBINED);
        for (int64_t input = 0; input < inputs; input++)
            add_input(&all, input, start, count, &room);
        if (all.lanes->outside(room.sums, count, limit) &&
            (of_block = unusual_fit(&all, start, count, limit, room.sums)) != FIT)
            outcome = of_block;
        all.lanes->narrow(kind, room.sums, count, room.floats, out + start * item_bytes[kind]);
    }
    fesetenv(&before);
    return outcome;
}
