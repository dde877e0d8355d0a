/* Statistics of many arrays, each in one pass. See cpu.py for how it is called, and reference.py for what is right.

   An array is cut into chunks, which threads take one after another, and a chunk into blocks that stay in the cache
   while they are looked at more than once. Blocks are folded in order within their chunk, and each chunk has a result
   of its own: so nothing depends on how many threads there are. */

#include <errno.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* What follows is compiled for an instruction set that the machine may not have; it is asked before it is used. */
#if defined(__clang__)
#define BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define BEGIN_AVX512 \
    _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,fma,f16c\"))), apply_to = function)")
#define END _Pragma("clang attribute pop")
#else
#define BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define BEGIN_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,fma,f16c\")")
#define END _Pragma("GCC pop_options")
#endif

#define LANES 8
#define BLOCK 4096
#define BINS 256

/* Numbers at any address: those in files begin where they like. */
typedef float float_at __attribute__((aligned(1), may_alias));
typedef double double_at __attribute__((aligned(1), may_alias));
typedef uint16_t uint16_at __attribute__((aligned(1), may_alias));

struct sums {
    double sum, magnitude, square, least, largest;
    long tiny;
};

/* What is read next: memory is asked for it early, since the machine by itself stops at the end of a page. */
struct coming {
    const char *bytes;
    int item_bytes;
};

struct lanes {
    void (*sums_of_floats)(const float_at *, long, float, struct coming, struct sums *);
    void (*sums_of_doubles)(const double_at *, long, double, struct sums *);
    double (*deviation_of_floats)(const float_at *, long, double *, double *);
    double (*deviation_of_doubles)(const double_at *, long, double, double *, double *);
    long (*zeros_of_floats)(const float_at *, long);
    void (*count_exponents)(const float_at *, long, int, uint8_t *, uint32_t *);
    void (*decode_bfloat16)(const uint16_at *, long, float *);
    void (*decode_float16)(const uint16_at *, long, float *);
};

static inline int32_t bits_of_float(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline int64_t bits_of_double(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double corrected(double sum, double square, long count, double *mean, double *rest)
{
    double left = sum / count, deviation = square - sum * left, before = *mean;
    *mean += left;
    *rest = (before - *mean) + left;
    return deviation > 0 ? deviation : 0;
}

static void decode_float16(const uint16_at *x, long count, float *out)
{
    for (long i = 0; i < count; i++) {
        uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16, rest = (uint32_t)(x[i] & 0x7fff) << 13, bits;
        float value;
        if (rest >= 0x0f800000)
            bits = rest + 0x70000000; /* infinite, or no number */
        else {
            memcpy(&value, &rest, sizeof value);
            value *= 0x1p112f; /* from a bias of 15 to one of 127; subnormals come right by themselves */
            memcpy(&bits, &value, sizeof bits);
        }
        bits |= sign;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* -- the compiler's vector types, which are SSE2, NEON, or whatever there is ---------------------------------------- */

#define WIDTH 16
#define NAME(x) base_##x
#define MIN(a, b) base_select((a) < (b), a, b)
#define MAX(a, b) base_select((a) > (b), a, b)
#define ANY(mask) base_any((base_longs)(mask))
#define COUNT_EQUAL(counts, e, wanted) ((counts) - (base_bytes)((e) == (wanted)))
#define PACK(x) base_pack(x)
#define WIDEN(x) __builtin_convertvector(*(const base_half_floats *)(x), base_doubles)
#define ADD_SQUARE(sum, x) ((sum) + (x) * (x))
#define COUNT_BELOW(counts, x, limit) ((counts) - ((x) < (limit)))
#define DECODE_FLOAT16 decode_float16

typedef float base_floats __attribute__((vector_size(16)));
typedef float base_half_floats __attribute__((vector_size(8), aligned(1), may_alias));
typedef int32_t base_words __attribute__((vector_size(16)));
typedef int64_t base_longs __attribute__((vector_size(16)));
typedef uint8_t base_bytes __attribute__((vector_size(16)));

static inline base_floats base_select(base_words mask, base_floats yes, base_floats no)
{
    return (base_floats)((mask & (base_words)yes) | (~mask & (base_words)no));
}

static inline int base_any(base_longs mask)
{
    return (mask[0] | mask[1]) != 0;
}

static inline base_bytes base_pack(const float_at *x)
{
    base_bytes packed;
    for (int i = 0; i < 16; i++)
        packed[i] = (uint8_t)(bits_of_float(x[i]) >> 23);
    return packed;
}

#include "lanes.h"

/* -- x86 with wider vectors ----------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
BEGIN_AVX2
#define WIDTH 32
#define NAME(x) avx2_##x
#define MIN(a, b) _mm256_min_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define ANY(mask) (!_mm256_testz_si256((__m256i)(mask), (__m256i)(mask)))
#define COUNT_EQUAL(counts, e, wanted) ((counts) - (avx2_bytes)((e) == (wanted)))
#define PACK(x) (avx2_bytes) avx2_pack(x)
#define WIDEN(x) _mm256_cvtps_pd(_mm_loadu_ps(x))
#define ADD_SQUARE(sum, x) _mm256_fmadd_pd(x, x, sum)
#define COUNT_BELOW(counts, x, limit) ((counts) - ((x) < (limit)))
#define DECODE_FLOAT16 avx2_decode_float16

/* In whatever order: they are only counted. */
static inline __m256i avx2_pack(const float_at *x)
{
    __m256i e[4];
    for (int i = 0; i < 4; i++)
        e[i] = _mm256_srli_epi32(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(x + 8 * i)), 1), 24);
    return _mm256_packus_epi16(_mm256_packus_epi32(e[0], e[1]), _mm256_packus_epi32(e[2], e[3]));
}

static void avx2_decode_float16(const uint16_at *x, long count, float *out)
{
    long i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    decode_float16(x + i, count - i, out + i);
}

#include "lanes.h"
END

BEGIN_AVX512
#define WIDTH 64
#define NAME(x) avx512_##x
#define MIN(a, b) _mm512_min_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define ANY(mask) (_mm512_test_epi8_mask((__m512i)(mask), (__m512i)(mask)) != 0)
#define COUNT_EQUAL(counts, e, wanted) (avx512_bytes) avx512_count((__m512i)(counts), (__m512i)(e), (__m512i)(wanted))
#define PACK(x) (avx512_bytes) avx512_pack(x)
#define WIDEN(x) _mm512_cvtps_pd(_mm256_loadu_ps(x))
#define ADD_SQUARE(sum, x) _mm512_fmadd_pd(x, x, sum)
#define COUNT_BELOW(counts, x, limit) (avx512_words) avx512_count_below((__m512i)(counts), (__m512i)(x), (__m512i)(limit))
#define DECODE_FLOAT16 avx512_decode_float16

static inline __m512i avx512_count_below(__m512i counts, __m512i x, __m512i limit)
{
    return _mm512_mask_sub_epi32(counts, _mm512_cmplt_epi32_mask(x, limit), counts, _mm512_set1_epi32(-1));
}

static inline __m512i avx512_count(__m512i counts, __m512i e, __m512i wanted)
{
    return _mm512_mask_sub_epi8(counts, _mm512_cmpeq_epi8_mask(e, wanted), counts, _mm512_set1_epi8(-1));
}

static inline __m512i avx512_pack(const float_at *x)
{
    __m512i e[4];
    for (int i = 0; i < 4; i++)
        e[i] = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_loadu_si512(x + 16 * i), 1), 24);
    return _mm512_packus_epi16(_mm512_packus_epi32(e[0], e[1]), _mm512_packus_epi32(e[2], e[3]));
}

static void avx512_decode_float16(const uint16_at *x, long count, float *out)
{
    long i = 0;
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
    decode_float16(x + i, count - i, out + i);
}

#include "lanes.h"
END
#endif

/* -- a chunk --------------------------------------------------------------------------------------------------------- */

enum kind { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, BYTE_FLOAT, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, BOOL };

static const int item_bytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};

/* What is found in a chunk; the layout is known to cpu.py. The extremes of whole numbers are exact, in `whole_least` and
   `whole_largest`; those of uint64 have their first bit flipped. */
struct result {
    int64_t nan, positive, negative, zeros, subnormals, finite, whole_least, whole_largest;
    double least, largest, mean, mean_rest, std, l1, l2;
};

/* The moments of the finite values so far. The mean is `mean + mean_rest`: far from zero, the distance of two means that
   were rounded to doubles would be too rough. Means are in units of 2 to the power `exponent`, squares in units of 4. */
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
    /* What is all zero has no exponent that would matter. */
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

/* Whether squares minus the square of the mean would lose more than ten bits. */
static int cancels(double deviation, double mean, double count)
{
    return mean * mean * count > 1024 * deviation;
}

static void count_nonfinite(double x, struct result *found)
{
    if (x != x)
        found->nan++;
    else if (x > 0)
        found->positive++;
    else
        found->negative++;
}

static void extremes(const struct sums *sums, struct result *found)
{
    found->least = sums->least < found->least ? sums->least : found->least;
    found->largest = sums->largest > found->largest ? sums->largest : found->largest;
}

static void count_exponents(const struct lanes *lanes, const float_at *x, long count, double typical, long zeros, struct room *room)
{
    /* The window ends two above the exponent of the typical magnitude. */
    int middle = typical > 0 ? ilogb(typical) + 127 : 1;
    int lowest = middle - 13 < 1 ? 1 : middle - 13 > 240 ? 240 : middle - 13;
    lanes->count_exponents(x, count, lowest, room->exponents, room->histogram);
    room->histogram[0] -= (uint32_t)zeros;
}

static void float_block(const struct lanes *lanes, const float_at *x, long count, float tiny, struct coming coming,
                        int with_histogram, struct room *room, struct moments *moments, struct result *found)
{
    struct sums sums;
    lanes->sums_of_floats(x, count, tiny, coming, &sums);
    if (!isfinite(sums.magnitude)) {
        /* Something in it is not finite: looked at again, without that. */
        long kept = 0;
        for (long i = 0; i < count; i++) {
            float value = x[i];
            if (isfinite(value))
                room->floats[kept++] = value;
            else
                count_nonfinite(value, found);
        }
        x = room->floats, count = kept;
        lanes->sums_of_floats(x, count, tiny, coming, &sums);
    }
    if (!count)
        return;
    long zeros = sums.tiny ? lanes->zeros_of_floats(x, count) : 0;
    found->zeros += zeros, found->subnormals += sums.tiny - zeros;
    extremes(&sums, found);
    double mean = sums.sum / count, rest = 0, deviation = sums.square - sums.sum * mean;
    if (sums.least == sums.largest)
        mean = sums.least + 0.0, deviation = 0; /* zero has no sign */
    else if (cancels(deviation, mean, count))
        deviation = lanes->deviation_of_floats(x, count, &mean, &rest);
    struct moments block = {count, mean, rest, deviation > 0 ? deviation : 0, sums.magnitude, sums.square, 0};
    fold(moments, &block);
    if (with_histogram)
        count_exponents(lanes, x, count, sums.magnitude / count, zeros, room);
}

static void double_block(const struct lanes *lanes, const double_at *x, long count, int with_histogram, struct room *room,
                         struct moments *moments, struct result *found)
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
        /* Squares would overflow, or vanish. */
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
    struct moments block = {count, mean, rest, deviation > 0 ? deviation : 0, ldexp(sums.magnitude, exponent), sums.square,
                            exponent};
    fold(moments, &block);
    if (!with_histogram)
        return;
    /* As floats that have the same exponent, or one that stands for all that are larger or smaller. */
    for (long i = 0; i < count; i++) {
        int64_t bits = bits_of_double(x[i]) & (int64_t)0xfff0000000000000;
        double power;
        memcpy(&power, &bits, sizeof power);
        room->floats[i] = (float)power;
    }
    count_exponents(lanes, room->floats, count, fmin(fmax(typical, 0x1p-126), 0x1p127), zeros, room);
}

#define WHOLE_NUMBERS(type, is_negative, first_bit)                                                                    \
    for (long i = 0; i < count; i++) {                                                                                 \
        type value;                                                                                                    \
        memcpy(&value, x + i * sizeof value, sizeof value);                                                            \
        if (kind == BOOL)                                                                                              \
            value = value != 0;                                                                                        \
        int64_t ordered = (int64_t)((uint64_t)value ^ (uint64_t)(first_bit) << 63);                                    \
        uint64_t magnitude = is_negative ? 0 - (uint64_t)value : (uint64_t)value;                                      \
        found->whole_least = ordered < found->whole_least ? ordered : found->whole_least;                              \
        found->whole_largest = ordered > found->whole_largest ? ordered : found->whole_largest;                        \
        if (with_histogram && magnitude)                                                                               \
            room->histogram[127 + 63 - __builtin_clzll(magnitude)]++;                                                  \
        room->doubles[i] = (double)value;                                                                              \
    }                                                                                                                  \
    break;

/* Whole numbers as doubles; their extremes and their exponents are found on the way, where they are exact. */
static void decode_whole(enum kind kind, const char *x, long count, int with_histogram, struct room *room, struct result *found)
{
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
}

static void measure_chunk(const struct lanes *lanes, enum kind kind, const char *x, int64_t size, const float *values,
                          float tiny, int with_histogram, struct room *room, struct result *found)
{
    struct moments moments = {0};
    memset(found, 0, sizeof *found);
    found->least = INFINITY, found->largest = -INFINITY;
    found->whole_least = INT64_MAX, found->whole_largest = INT64_MIN;
    for (int64_t start = 0; start < size; start += BLOCK, x += BLOCK * item_bytes[kind]) {
        long count = size - start < BLOCK ? (long)(size - start) : BLOCK;
        const float_at *floats = room->floats;
        switch (kind) {
        case FLOAT32: floats = (const float_at *)x; break;
        case BFLOAT16: lanes->decode_bfloat16((const uint16_at *)x, count, room->floats); break;
        case FLOAT16: lanes->decode_float16((const uint16_at *)x, count, room->floats); break;
        case BYTE_FLOAT:
            for (long i = 0; i < count; i++)
                room->floats[i] = values[(uint8_t)x[i]];
            break;
        case FLOAT64: double_block(lanes, (const double_at *)x, count, with_histogram, room, &moments, found); continue;
        default:
            decode_whole(kind, x, count, with_histogram, room, found);
            double_block(lanes, room->doubles, count, 0, room, &moments, found);
            continue;
        }
        struct coming coming = {x + BLOCK * item_bytes[kind], item_bytes[kind]};
        float_block(lanes, floats, count, tiny, coming, with_histogram, room, &moments, found);
    }
    found->finite = (int64_t)moments.count;
    found->mean = ldexp(moments.mean, moments.exponent), found->mean_rest = ldexp(moments.mean_rest, moments.exponent);
    found->l1 = moments.magnitude;
    found->least += 0.0, found->largest += 0.0; /* zero has no sign */
    found->std = moments.count ? ldexp(sqrt(moments.deviation / moments.count), moments.exponent) : 0;
    found->l2 = ldexp(sqrt(moments.square), moments.exponent);
}

/* -- many arrays, by threads ------------------------------------------------------------------------------------------ */

struct work {
    const struct lanes *lanes;
    int64_t arrays, chunk, next, unread; /* unread: one more than the number of an array that could not be read */
    const int64_t *addresses, *sizes, *first_chunks; /* first_chunks has one more than there are arrays */
    const int32_t *files, *kinds, *values_of; /* of what is in a file, the address is where it begins there */
    const float *values, *tiny;
    struct result *results;
    int64_t *histograms;
};

static int64_t array_of(const struct work *work, int64_t chunk)
{
    int64_t low = 0, high = work->arrays;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (work->first_chunks[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    /* Those without elements have no chunks, and begin where the next begins. */
    return low;
}

/* Whether all these bytes of a file were read. */
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

static void *run(void *given)
{
    struct work *work = given;
    int64_t chunks = work->first_chunks[work->arrays], number;
    struct room *room = malloc(sizeof *room);
    char *bytes = work->files ? malloc((size_t)work->chunk * 8) : NULL;
    fenv_t before;
    if (!room || (work->files && !bytes)) {
        free(room), free(bytes);
        return given;
    }
    /* Somebody may have told this thread to take subnormals for zeros. */
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    while ((number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t array = array_of(work, number);
        int64_t start = (number - work->first_chunks[array]) * work->chunk, left = work->sizes[array] - start;
        enum kind kind = (enum kind)work->kinds[array];
        int64_t size = left < work->chunk ? left : work->chunk, at = work->addresses[array] + start * item_bytes[kind];
        const char *x = (const char *)(intptr_t)at;
        if (work->files && work->files[array] >= 0) {
            x = bytes;
            if (!read_all(work->files[array], at, bytes, (size_t)size * (size_t)item_bytes[kind])) {
                __atomic_store_n(&work->unread, array + 1, __ATOMIC_RELAXED);
                break;
            }
        }
        memset(room->histogram, 0, sizeof room->histogram);
        measure_chunk(work->lanes, kind, x, size, work->values + BINS * work->values_of[array], work->tiny[array], work->histograms != NULL, room,
                      work->results + number);
        for (int bin = 0; work->histograms && bin < BINS; bin++)
            if (room->histogram[bin])
                __atomic_fetch_add(work->histograms + array * BINS + bin, room->histogram[bin], __ATOMIC_RELAXED);
    }
    fesetenv(&before);
    free(room), free(bytes);
    return NULL;
}

/* How many instruction sets this machine has of those below; the widest is the last. */
int leafwise_instruction_sets(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl")
                   ? 3
                   : 2;
#endif
    return 1;
}

/* Measures arrays. The results are one for each chunk, the histograms one for each array, of 256 bins, to which is
   added; NULL where none are wanted. `files` are descriptors, -1 for what is in memory, or NULL where all is. Gives 0
   where all went well, -1 where there was no memory, and one more than its number for an array that could not be
   read. */
int64_t leafwise_measure(int64_t arrays, int64_t chunk, const int64_t *addresses, const int64_t *sizes,
                     const int64_t *first_chunks, const int32_t *files, const int32_t *kinds, const int32_t *values_of, const float *values,
                     const float *tiny, void *results, int64_t *histograms, int threads, int instruction_set)
{
#if defined(__x86_64__)
    static const struct lanes *const all[] = {&base_lanes, &avx2_lanes, &avx512_lanes};
#else
    static const struct lanes *const all[] = {&base_lanes};
#endif
    struct work work = {all[instruction_set], arrays, chunk, 0, 0, addresses, sizes, first_chunks, files, kinds, values_of,
                        values, tiny, results, histograms};
    pthread_t others[64];
    int started = 0, failed;
    while (started < threads - 1 && started < 64 && !pthread_create(&others[started], NULL, run, &work))
        started++;
    failed = run(&work) != NULL;
    while (started)
        pthread_join(others[--started], NULL);
    /* A thread without memory leaves its chunks to the others; only if this one had none may some be left. */
    return work.unread ? work.unread : failed && work.next < first_chunks[arrays] ? -1 : 0;
}
