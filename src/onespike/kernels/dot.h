/* Sums of products of small integers, one function for each kind of processor, chosen at run time.
 *
 * Counts and weights lie in groups of four bytes: four bytes of each where a processor multiplies bytes, else two
 * 16-bit numbers. A tile adds rows × columns sums, sums[r][c] += Σ counts[r][k]·weights[c][k]; weights lie as
 * [group][column]. All forms are exact: nothing saturates, and 32 bits wrap only if the true sum does not fit.
 * With ONESPIKE_SIMDE all of them are compiled for any processor, through SIMDe.
 */
#ifndef ONESPIKE_DOT
#define ONESPIKE_DOT

#include <stdint.h>
#include <string.h>

#ifdef ONESPIKE_SIMDE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/arm/neon.h>
#include <simde/x86/avx512.h>
#define TARGET(features)
#define X86 1
#define AVXVNNI 1
#define ARM 1
#else
#define TARGET(features) __attribute__((target(features)))
#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#if (defined(__clang_major__) && __clang_major__ >= 13) || (!defined(__clang__) && __GNUC__ >= 12)
#define AVXVNNI 1 /* older compilers do not know it */
#endif
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define ARM 1
#include <arm_neon.h>
#endif
#endif

typedef void Tile(const uint8_t *counts, int64_t stride, const uint8_t *weights, int64_t groups, int32_t *sums);

typedef struct {
    Tile *tile, *one; /* of `rows` rows, and of one row */
    int32_t rows, columns;
    int32_t bytes;     /* of one number: 1 or 2 */
    int32_t is_signed; /* bytes only: the tile takes counts as signed bytes, 128 less */
} Path;

static void plain(const uint8_t *counts, int64_t stride, const uint8_t *weights, int64_t groups, int32_t *sums) {
    for (int64_t g = 0; g < groups; g++, counts += 4, weights += 64)
        for (int c = 0; c < 16; c++)
            for (int i = 0; i < 4; i++) sums[c] += counts[i] * (int8_t)weights[4 * c + i];
}

#ifdef X86
/* Written as loops over a constant number of rows: unrolled, the sums stay in registers. */
#define VECTOR_TILE(name, features, ROWS, TYPE, LANES, LOAD, STORE, BROADCAST, DOT)                            \
    TARGET(features)                                                                                            \
    static void name(const uint8_t *counts, int64_t stride, const uint8_t *weights, int64_t groups, int32_t *sums) { \
        TYPE left[ROWS], right[ROWS];                                                                           \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) {                                               \
            left[r] = LOAD(sums + r * 2 * LANES);                                                               \
            right[r] = LOAD(sums + r * 2 * LANES + LANES);                                                      \
        }                                                                                                       \
        for (int64_t g = 0; g < groups; g++, weights += 8 * LANES) {                                            \
            const TYPE first = LOAD(weights), second = LOAD(weights + 4 * LANES);                               \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) {                                           \
                int32_t group;                                                                                  \
                memcpy(&group, counts + r * stride + 4 * g, 4);                                                 \
                const TYPE all = BROADCAST(group);                                                              \
                left[r] = DOT(left[r], all, first);                                                             \
                right[r] = DOT(right[r], all, second);                                                          \
            }                                                                                                   \
        }                                                                                                       \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) {                                               \
            STORE(sums + r * 2 * LANES, left[r]);                                                               \
            STORE(sums + r * 2 * LANES + LANES, right[r]);                                                      \
        }                                                                                                       \
    }

#define LOAD512(p) _mm512_loadu_si512((const void *)(p))
#define STORE512(p, v) _mm512_storeu_si512((void *)(p), v)
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE256(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#ifdef ONESPIKE_SIMDE
#define DOT256(sum, a, b) simde_mm256_dpbusd_epi32(sum, a, b)
#else
#define DOT256(sum, a, b) _mm256_dpbusd_avx_epi32(sum, a, b)
#endif
#define WORDS256(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))

VECTOR_TILE(vnni512, "avx512f,avx512bw,avx512vl,avx512vnni", 12, __m512i, 16, LOAD512, STORE512, _mm512_set1_epi32,
            _mm512_dpbusd_epi32)
VECTOR_TILE(words512, "avx512f,avx512bw,avx512vl,avx512vnni", 12, __m512i, 16, LOAD512, STORE512, _mm512_set1_epi32,
            _mm512_dpwssd_epi32)
VECTOR_TILE(words512_one, "avx512f,avx512bw,avx512vl,avx512vnni", 1, __m512i, 16, LOAD512, STORE512, _mm512_set1_epi32,
            _mm512_dpwssd_epi32)
VECTOR_TILE(vnni512_one, "avx512f,avx512bw,avx512vl,avx512vnni", 1, __m512i, 16, LOAD512, STORE512, _mm512_set1_epi32,
            _mm512_dpbusd_epi32)
#ifdef AVXVNNI
VECTOR_TILE(vnni256, "avx2,avxvnni", 6, __m256i, 8, LOAD256, STORE256, _mm256_set1_epi32, DOT256)
VECTOR_TILE(vnni256_one, "avx2,avxvnni", 1, __m256i, 8, LOAD256, STORE256, _mm256_set1_epi32, DOT256)
#endif
VECTOR_TILE(avx2_one, "avx2", 1, __m256i, 8, LOAD256, STORE256, _mm256_set1_epi32, WORDS256)

#ifdef ONESPIKE_SIMDE
VECTOR_TILE(avx2, "avx2", 6, __m256i, 8, LOAD256, STORE256, _mm256_set1_epi32, WORDS256)
#else
/* Written out, and together: a compiler that delays the additions runs out of registers, at half of the speed. */
#define EACH_OF_SIX(do) do(0) do(1) do(2) do(3) do(4) do(5)
#define ADD(sum, weight)                                                                                        \
    __asm__ volatile("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(weight), "x"(both));
#define START(r) __m256i left##r = LOAD256(sums + r * 16), right##r = LOAD256(sums + r * 16 + 8);
#define MULTIPLY_ADD(r)                                                                                         \
    memcpy(&pair, counts + r * stride + 4 * g, 4);                                                              \
    both = _mm256_set1_epi32(pair);                                                                             \
    ADD(left##r, left) ADD(right##r, right)
#define KEEP(r)                                                                                                 \
    STORE256(sums + r * 16, left##r);                                                                           \
    STORE256(sums + r * 16 + 8, right##r);

TARGET("avx2")
static void avx2(const uint8_t *counts, int64_t stride, const uint8_t *weights, int64_t groups, int32_t *sums) {
    EACH_OF_SIX(START)
    for (int64_t g = 0; g < groups; g++, weights += 64) {
        const __m256i left = LOAD256(weights), right = LOAD256(weights + 32);
        __m256i both, product;
        int32_t pair;
        EACH_OF_SIX(MULTIPLY_ADD)
    }
    EACH_OF_SIX(KEEP)
}
#endif
#endif

#ifdef ARM
#define NEON_TILE(name, ROWS)                                                                                   \
    static void name(const uint8_t *counts, int64_t stride, const uint8_t *weights, int64_t groups, int32_t *sums) { \
        int32x4_t sum[ROWS][4];                                                                                 \
        _Pragma("GCC unroll 24") for (int i = 0; i < ROWS * 4; i++) sum[i / 4][i % 4] = vld1q_s32(sums + 4 * i); \
        for (int64_t g = 0; g < groups; g++, weights += 64) {                                                   \
            const int8x16_t w0 = vld1q_s8((const int8_t *)weights), w1 = vld1q_s8((const int8_t *)weights + 16); \
            const int8x16_t w2 = vld1q_s8((const int8_t *)weights + 32), w3 = vld1q_s8((const int8_t *)weights + 48); \
            _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                                            \
                int32_t group;                                                                                  \
                memcpy(&group, counts + r * stride + 4 * g, 4);                                                 \
                const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(group));                                 \
                sum[r][0] = vdotq_s32(sum[r][0], all, w0);                                                      \
                sum[r][1] = vdotq_s32(sum[r][1], all, w1);                                                      \
                sum[r][2] = vdotq_s32(sum[r][2], all, w2);                                                      \
                sum[r][3] = vdotq_s32(sum[r][3], all, w3);                                                      \
            }                                                                                                   \
        }                                                                                                       \
        _Pragma("GCC unroll 24") for (int i = 0; i < ROWS * 4; i++) vst1q_s32(sums + 4 * i, sum[i / 4][i % 4]); \
    }
NEON_TILE(neon, 6)
NEON_TILE(neon_one, 1)
#endif

enum { VNNI512, VNNI256, NEON, WORDS512, AVX2, PLAIN, PATHS };

static const Path PATH[PATHS] = {
#ifdef X86
    [VNNI512] = {vnni512, vnni512_one, 12, 32, 1, 0},
    [WORDS512] = {words512, words512_one, 12, 32, 2, 0},
    [AVX2] = {avx2, avx2_one, 6, 16, 2, 0},
#endif
#ifdef AVXVNNI
    [VNNI256] = {vnni256, vnni256_one, 6, 16, 1, 0},
#endif
#ifdef ARM
    [NEON] = {neon, neon_one, 6, 16, 1, 1},
#endif
    [PLAIN] = {plain, plain, 1, 16, 1, 0},
};

/* Whether this processor has what a path is written for. */
static inline int has(int path) {
#ifdef ONESPIKE_SIMDE
    return 1;
#else
#ifdef X86
    __builtin_cpu_init();
    if (path == VNNI512 || path == WORDS512)
        return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
#ifdef AVXVNNI
    if (path == VNNI256) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avxvnni");
#endif
    if (path == AVX2) return __builtin_cpu_supports("avx2");
#endif
    return path == PLAIN || (path == NEON && PATH[NEON].tile);
#endif
}

#endif
