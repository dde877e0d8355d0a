/* XXH3 with 64 bits, the checksum of the chunks of arrays: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md. Only
 * for more than 240 bytes; shorter inputs are hashed in other ways. */

#define STRIPE 64
#define STRIPES 16 /* in a block, after which the sums are scrambled */
#define SECRET 192

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87ULL
#define PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define PRIME64_3 0x165667B19E3779F9ULL
#define PRIME64_4 0x85EBCA77C2B2AE63ULL
#define PRIME64_5 0x27D4EB2F165667C5ULL

static const uint8_t hash_secret[SECRET] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t hash_key(int64_t at)
{
    return *(const uint64_at *)(hash_secret + at);
}

/* Adds stripes to the eight sums, each with the secret from a byte further by eight. */
static void add_stripes_plain(uint64_t *sums, const char *data, int64_t stripes, const uint8_t *secret)
{
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        for (int lane = 0; lane < 8; lane++) {
            uint64_t value = *(const uint64_at *)(data + STRIPE * stripe + 8 * lane);
            uint64_t mixed = value ^ *(const uint64_at *)(secret + 8 * stripe + 8 * lane);
            sums[lane ^ 1] += value;
            sums[lane] += (mixed & 0xFFFFFFFFU) * (mixed >> 32);
        }
    }
}

#if defined(__x86_64__)
BEGIN_AVX2
static void add_stripes_avx2(uint64_t *sums, const char *data, int64_t stripes, const uint8_t *secret)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)sums), high = _mm256_loadu_si256((const __m256i *)(sums + 4));
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        const char *from = data + STRIPE * stripe;
        _mm_prefetch(from + 512, _MM_HINT_T0);
        __m256i first = _mm256_loadu_si256((const __m256i *)from);
        __m256i second = _mm256_loadu_si256((const __m256i *)(from + 32));
        __m256i mixed = _mm256_xor_si256(first, _mm256_loadu_si256((const __m256i *)(secret + 8 * stripe)));
        __m256i other = _mm256_xor_si256(second, _mm256_loadu_si256((const __m256i *)(secret + 8 * stripe + 32)));
        low = _mm256_add_epi64(low, _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(other, _mm256_srli_epi64(other, 32)));
        low = _mm256_add_epi64(low, _mm256_shuffle_epi32(first, _MM_SHUFFLE(1, 0, 3, 2)));
        high = _mm256_add_epi64(high, _mm256_shuffle_epi32(second, _MM_SHUFFLE(1, 0, 3, 2)));
    }
    _mm256_storeu_si256((__m256i *)sums, low);
    _mm256_storeu_si256((__m256i *)(sums + 4), high);
}
END
#endif

    typedef void adds_stripes(uint64_t *, const char *, int64_t, const uint8_t *);

/* The lower half of the product of 128 bits, xor its upper half. From products of 32 bits, which every compiler has. */
static uint64_t folded_product(uint64_t a, uint64_t b)
{
    uint64_t a_low = a & 0xFFFFFFFFU, a_high = a >> 32, b_low = b & 0xFFFFFFFFU, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t rest = a_low * b_high + (middle & 0xFFFFFFFFU);
    uint64_t upper = a_high * b_high + (middle >> 32) + (rest >> 32);
    return (a * b) ^ upper;
}

/* The checksum of more than 240 bytes. */
static uint64_t xxh3_of(const char *data, int64_t length, adds_stripes *add_stripes)
{
    uint64_t sums[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    int64_t block = STRIPE * STRIPES, blocks = (length - 1) / block;
    for (int64_t number = 0; number < blocks; number++) {
        add_stripes(sums, data + number * block, STRIPES, hash_secret);
        for (int lane = 0; lane < 8; lane++) {
            sums[lane] ^= sums[lane] >> 47;
            sums[lane] = (sums[lane] ^ hash_key(SECRET - STRIPE + 8 * lane)) * PRIME32_1;
        }
    }
    add_stripes(sums, data + blocks * block, (length - 1 - blocks * block) / STRIPE, hash_secret);
    add_stripes(sums, data + length - STRIPE, 1, hash_secret + SECRET - STRIPE - 7);
    uint64_t result = (uint64_t)length * PRIME64_1;
    for (int pair = 0; pair < 4; pair++)
        result +=
            folded_product(sums[2 * pair] ^ hash_key(11 + 16 * pair), sums[2 * pair + 1] ^ hash_key(19 + 16 * pair));
    result ^= result >> 37;
    result *= 0x165667919E3779F9ULL;
    return result ^ result >> 32;
}

static adds_stripes *fastest_stripes(int instruction_set)
{
#if defined(__x86_64__)
    if (instruction_set > 1)
        return add_stripes_avx2;
#else
    (void)instruction_set;
#endif
    return add_stripes_plain;
}

/* The checksum of each piece of some bytes. The last piece may be shorter, but must have more than 240 bytes.
 * `instruction_set` is at most what `leafwise_instruction_sets` returns, which is too slow to be called here. */
void leafwise_hash(const char *data, int64_t length, int64_t piece, int instruction_set, uint64_t *checksums)
{
    adds_stripes *add_stripes = fastest_stripes(instruction_set);
    for (int64_t start = 0; start < length; start += piece)
        *checksums++ = xxh3_of(data + start, length - start < piece ? length - start : piece, add_stripes);
}
