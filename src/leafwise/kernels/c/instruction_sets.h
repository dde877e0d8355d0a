/* Operations on a block of numbers, for each instruction set that the machine may have; see lanes.h. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Compiles the following code for an instruction set that the machine may not have. This is checked before it runs. */
/* clang-format off: a pragma is one literal */
#if defined(__clang__)
#define BEGIN_AVX2 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define BEGIN_AVX512                                                                                                   \
    _Pragma(                                                                                                           \
        "clang attribute push(__attribute__((target(\"avx512bw,avx512dq,avx512vl,fma,f16c\"))), apply_to = function)")
#define END _Pragma("clang attribute pop")
#else
#define BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define BEGIN_AVX512 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512bw,avx512dq,avx512vl,fma,f16c\")")
#define END _Pragma("GCC pop_options")
#endif
/* clang-format on */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this code reads the little-endian numbers of files as they are, and needs a little-endian machine"
#endif

#define LANES 8        /* for sums; see lanes.h */
#define HALF_LANES 16  /* for sums of 16-bit floats: with only 8, each addition would wait for the previous one */
#define BLOCK 4096     /* elements that are read several times while they are in the cache */
#define HALF_PART 1024 /* 16-bit floats to widen at a time, so that a block and its copies fit into 32 KiB */
#define AHEAD 4096     /* how many bytes ahead to prefetch: hardware prefetching stops at the end of each page */
#define BINS 256
#define WINDOW 16 /* exponents that are counted together */

enum kind {
    FLOAT32,
    FLOAT64,
    BFLOAT16,
    FLOAT16,
    BYTE_FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    BOOL
};

static const int item_bytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};

/* Numbers at any address: arrays in files may not be aligned. */
typedef float float_at __attribute__((aligned(1), may_alias));
typedef double double_at __attribute__((aligned(1), may_alias));
typedef uint16_t uint16_at __attribute__((aligned(1), may_alias));
typedef uint32_t uint32_at __attribute__((aligned(1), may_alias));
typedef uint64_t uint64_at __attribute__((aligned(1), may_alias));

/* `tiny` counts zeros and subnormals, `zeros` only zeros (not filled in for doubles). */
struct sums {
    double sum, magnitude, square, least, largest;
    long tiny, zeros;
};

/* What to prefetch while a block is added up: `item_bytes` for each of its elements. */
struct ahead {
    const char *bytes;
    int item_bytes;
};

/* For pairs: the sums of squared distances, of squares of each side and of products, and the largest distance. */
struct apart {
    double distance, square, other_square, dot, largest;
};

struct lanes {
    void (*decode)(enum kind, const char *, long, const float *, float *);
    void (*sums_of_floats)(const float_at *, long, float, struct ahead, struct sums *);
    void (*sums_of_halves)(enum kind, const uint16_at *, long, struct sums *);
    void (*sums_of_doubles)(const double_at *, long, double, struct sums *);
    double (*deviation_of_floats)(const float_at *, long, double *, double *);
    double (*deviation_of_doubles)(const double_at *, long, double, double *, double *);
    void (*exponents_of_floats)(const float_at *, long, uint8_t *);
    void (*exponents_of_bfloat16)(const uint16_at *, long, uint8_t *);
    void (*count_exponents)(const uint8_t *, long, int, uint32_t *);
    void (*apart_of_floats)(const float_at *, const float_at *, long, struct apart *);
    long (*differing)(const char *, const char *, long, int);
    void (*add_floats)(const float_at *, long, double, int, double *);
    void (*add_doubles)(const double_at *, long, double, int, double *);
    long (*outside)(const double *, long, double);
    void (*narrow)(enum kind, const double *, long, float *, char *);
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

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double double_of_bits(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void decode_float16(const uint16_at *x, long count, float *out)
{
    for (long i = 0; i < count; i++) {
        uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16, rest = (uint32_t)(x[i] & 0x7fff) << 13;
        if (rest >= 0x0f800000)
            rest += 0x70000000; /* infinite, or NaN */
        else
            /* Changes the bias from 15 to 127; this is right for subnormals, too. */
            rest = (uint32_t)bits_of_float(float_of_bits(rest) * 0x1p112f);
        out[i] = float_of_bits(rest | sign);
    }
}

/* Floats as float16, rounded to nearest. Numbers that are too large become infinite. */
static void encode_float16(const float *x, long count, uint16_at *out)
{
    for (long i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)bits_of_float(x[i]), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
        if (rest >= 0x47800000)
            rest = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
        else if (rest < 0x38800000)
            /* Subnormal: the last bit of a float between 0.5 and 1 is as large as the smallest of them. */
            rest = (uint32_t)bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000;
        else
            rest = (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13;
        out[i] = (uint16_t)(rest | sign);
    }
}

static float float_of_half(enum kind kind, uint16_t bits)
{
    float x = float_of_bits((uint32_t)bits << 16);
    if (kind == FLOAT16)
        decode_float16(&bits, 1, &x);
    return x;
}

/* -- the compiler's vector types: SSE2, NEON, or what the machine has -----------------------------------------------
 */

#define WIDTH 16
#define NAME(x) base_##x
#define MIN(a, b) (base_floats) base_select((a) < (b), (base_words)(a), (base_words)(b))
#define MAX(a, b) (base_floats) base_select((a) > (b), (base_words)(a), (base_words)(b))
#define MIN_WORDS(a, b) base_select((a) < (b), a, b)
#define MIN_SHORTS(a, b) (base_shorts) base_select((base_words)((a) < (b)), (base_words)(a), (base_words)(b))
#define MAX_SHORTS(a, b) (base_shorts) base_select((base_words)((a) > (b)), (base_words)(a), (base_words)(b))
#define MAX_UNSIGNED_SHORTS(a, b)                                                                                      \
    (base_shorts) base_select((base_words)((base_unsigned_shorts)(a) > (base_unsigned_shorts)(b)), (base_words)(a),    \
                              (base_words)(b))
#define MAX_DOUBLES(a, b) base_larger(a, b)
#define ANY(mask) base_any((base_longs)(mask))
#define PACK(x) base_pack(x)
#define WIDEN(x) __builtin_convertvector(*(const base_half_floats *)(x), base_doubles)
#define ADD_PRODUCT(sum, x, y) ((sum) + (x) * (y))
#define DECODE_FLOAT16 decode_float16
#define ENCODE_FLOAT16 encode_float16

typedef float base_floats __attribute__((vector_size(16)));
typedef float base_half_floats __attribute__((vector_size(8), aligned(1), may_alias));
typedef int32_t base_words __attribute__((vector_size(16)));
typedef int16_t base_shorts __attribute__((vector_size(16)));
typedef uint16_t base_unsigned_shorts __attribute__((vector_size(16)));
typedef double base_pair __attribute__((vector_size(16)));
typedef int64_t base_longs __attribute__((vector_size(16)));
typedef uint8_t base_bytes __attribute__((vector_size(16)));

static inline base_words base_select(base_words mask, base_words yes, base_words no)
{
    return (mask & yes) | (~mask & no);
}

static inline base_pair base_larger(base_pair a, base_pair b)
{
    base_longs more = a > b;
    return (base_pair)((more & (base_longs)a) | (~more & (base_longs)b));
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

/* -- x86 with wider vectors -----------------------------------------------------------------------------------------
 */

#if defined(__x86_64__)
BEGIN_AVX2
#define WIDTH 32
#define NAME(x) avx2_##x
#define MIN(a, b) _mm256_min_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define MIN_WORDS(a, b) (avx2_words) _mm256_min_epi32((__m256i)(a), (__m256i)(b))
#define MIN_SHORTS(a, b) (avx2_shorts) _mm256_min_epi16((__m256i)(a), (__m256i)(b))
#define MAX_SHORTS(a, b) (avx2_shorts) _mm256_max_epi16((__m256i)(a), (__m256i)(b))
#define MAX_UNSIGNED_SHORTS(a, b) (avx2_shorts) _mm256_max_epu16((__m256i)(a), (__m256i)(b))
#define MAX_DOUBLES(a, b) _mm256_max_pd(a, b)
#define ANY(mask) (!_mm256_testz_si256((__m256i)(mask), (__m256i)(mask)))
#define LOOK_UP(table, index) (avx2_bytes) _mm256_shuffle_epi8((__m256i)(table), (__m256i)(index))
#define ADD_UP_TO_255(a, b) (avx2_bytes) _mm256_adds_epu8((__m256i)(a), (__m256i)(b))
#define PACK(x) (avx2_bytes) avx2_pack(x)
#define WIDEN(x) _mm256_cvtps_pd(_mm_loadu_ps((const float *)(x)))
#define ADD_PRODUCT(sum, x, y) _mm256_fmadd_pd(x, y, sum)
#define DECODE_FLOAT16 avx2_decode_float16
#define ENCODE_FLOAT16 avx2_encode_float16

/* The order does not matter: they are only counted. */
static inline __m256i avx2_pack(const float_at *x)
{
    __m256i e[4];
    for (int i = 0; i < 4; i++)
        e[i] = _mm256_srli_epi32(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(x + 8 * i)), 1), 24);
    return _mm256_packus_epi16(_mm256_packus_epi32(e[0], e[1]), _mm256_packus_epi32(e[2], e[3]));
}

static void avx2_encode_float16(const float *x, long count, uint16_at *out)
{
    long i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    encode_float16(x + i, count - i, out + i);
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
#define MIN_WORDS(a, b) (avx512_words) _mm512_min_epi32((__m512i)(a), (__m512i)(b))
#define MIN_SHORTS(a, b) (avx512_shorts) _mm512_min_epi16((__m512i)(a), (__m512i)(b))
#define MAX_SHORTS(a, b) (avx512_shorts) _mm512_max_epi16((__m512i)(a), (__m512i)(b))
#define MAX_UNSIGNED_SHORTS(a, b) (avx512_shorts) _mm512_max_epu16((__m512i)(a), (__m512i)(b))
#define MAX_DOUBLES(a, b) _mm512_max_pd(a, b)
#define ANY(mask) (_mm512_test_epi8_mask((__m512i)(mask), (__m512i)(mask)) != 0)
#define LOOK_UP(table, index) (avx512_bytes) _mm512_shuffle_epi8((__m512i)(table), (__m512i)(index))
#define ADD_UP_TO_255(a, b) (avx512_bytes) _mm512_adds_epu8((__m512i)(a), (__m512i)(b))
#define PACK(x) (avx512_bytes) avx512_pack(x)
#define WIDEN(x) _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(x)))
#define ADD_PRODUCT(sum, x, y) _mm512_fmadd_pd(x, y, sum)
#define DECODE_FLOAT16 avx512_decode_float16
#define ENCODE_FLOAT16 avx512_encode_float16

    static inline __m512i avx512_pack(const float_at *x)
{
    __m512i e[4];
    for (int i = 0; i < 4; i++)
        e[i] = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_loadu_si512(x + 16 * i), 1), 24);
    return _mm512_packus_epi16(_mm512_packus_epi32(e[0], e[1]), _mm512_packus_epi32(e[2], e[3]));
}

static void avx512_encode_float16(const float *x, long count, uint16_at *out)
{
    long i = 0;
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    encode_float16(x + i, count - i, out + i);
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

#if defined(__x86_64__)
    static const struct lanes *const instruction_sets[] = {&base_lanes, &avx2_lanes, &avx512_lanes};
#else
static const struct lanes *const instruction_sets[] = {&base_lanes};
#endif

/* How many of the instruction sets below this machine has; the last is the widest. */
int leafwise_instruction_sets(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl")
                   ? 3
                   : 2;
#endif
    return 1;
}
