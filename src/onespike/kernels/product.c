/* A linear map of spikes: activations fire into 16-bit counts, which meet 8-bit weights in exact 32-bit sums.
 *
 * Rows are fired block by block into a buffer that stays in the cache, and multiplied from there by panels of 16
 * outputs. A sum is turned into float32 once, times its scale, plus its bias. No sum can overflow: whoever calls has
 * checked the largest count against the weights.
 */
#include <stdlib.h>

#include "fire.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

#define ROWS 6      /* of a tile: with 16 columns its sums fill 12 of 16 vector registers */
#define COLUMNS 16
#define DEPTH 512     /* inputs that are multiplied at a time */
#define CACHED 131072 /* counts of a block of rows, in elements */

/* sums[r][c] += Σ_k counts[r][k]·weights[c][k]; weights lie as [pair of k][column][2]. */
#ifdef __AVX2__
/* Written out, and together: a compiler that keeps the sums in an array, or delays the additions, runs out of
 * registers, which costs half of the speed. */
#define EACH_ROW(do) do(0) do(1) do(2) do(3) do(4) do(5)
#define ADD(sum, weight)                                                                            \
    __asm__ volatile("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(weight), "x"(both));
#define START(r) __m256i left##r = _mm256_setzero_si256(), right##r = _mm256_setzero_si256();
#define MULTIPLY_ADD(r)                                                                             \
    memcpy(&pair, counts + r * width + k, 4);                                                       \
    both = _mm256_set1_epi32(pair);                                                                 \
    ADD(left##r, left) ADD(right##r, right)
#define KEEP(r)                                                                                     \
    place = (__m256i *)(sums + r * COLUMNS);                                                        \
    _mm256_storeu_si256(place, _mm256_add_epi32(_mm256_loadu_si256(place), left##r));               \
    _mm256_storeu_si256(place + 1, _mm256_add_epi32(_mm256_loadu_si256(place + 1), right##r));

static __attribute__((noinline)) void tile(const int16_t *counts, int64_t width, const int16_t *weights, int64_t depth,
                                           int32_t *sums) {
    EACH_ROW(START)
    for (int64_t k = 0; k < depth; k += 2, weights += 2 * COLUMNS) {
        const __m256i left = _mm256_loadu_si256((const __m256i *)weights);
        const __m256i right = _mm256_loadu_si256((const __m256i *)(weights + COLUMNS));
        __m256i both, product;
        int32_t pair;
        EACH_ROW(MULTIPLY_ADD)
    }
    __m256i *place;
    EACH_ROW(KEEP)
}
#else
static __attribute__((noinline)) void tile(const int16_t *counts, int64_t width, const int16_t *weights, int64_t depth,
                                           int32_t *sums) {
    for (int64_t k = 0; k < depth; k++) {
        const int16_t *const column = weights + (k / 2) * 2 * COLUMNS + k % 2;
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++) sums[r * COLUMNS + c] += counts[r * width + k] * column[2 * c];
    }
}
#endif

typedef struct {
    const float *x;         /* [rows][inputs] */
    const int16_t *weights; /* [panels][width / 2][16][2], zeros where there is no input or output */
    const float *scale;     /* one an output */
    const float *bias;      /* one an output, or NULL */
    float *out;             /* [rows][outputs] */
    int64_t rows, inputs, width, outputs;
    int32_t times_up, times_down; /* a count of each side is worth so many units */
    float unit;
} Linear;

/* Fires one row into counts; returns whether it holds a NaN, which no integer is. */
INLINE int fired(const float *x, float *value, int16_t *counts, Linear m, Sides sides, const Form *form) {
    const float up = m.times_up, down = m.times_down;
    int32_t nan = 0;
    run(x, value, m.inputs, sides, *form, 0, 0);
#pragma omp simd reduction(| : nan)
    for (int64_t k = 0; k < m.inputs; k++) {
        const float count = value[k], number = count == count ? count : 0.0f;
        nan |= count != count;
        counts[k] = (int16_t)(int32_t)(number * (number < 0 ? down : up)); /* below 2^15: exact */
    }
    return nan;
}

static void block(Linear m, int64_t first, int64_t rows, Sides sides, const Form *form, float *value, int32_t *sums,
                  int16_t *counts, uint8_t *nan) {
    const int64_t tiles = (rows + ROWS - 1) / ROWS;
    memset(counts, 0, tiles * ROWS * m.width * sizeof *counts);
    for (int64_t r = 0; r < rows; r++)
        nan[r] = fired(m.x + (first + r) * m.inputs, value, counts + r * m.width, m, sides, form);
    for (int64_t start = 0; start < m.outputs; start += COLUMNS) {
        const int64_t columns = m.outputs - start < COLUMNS ? m.outputs - start : COLUMNS;
        float scale[COLUMNS] = {0}, bias[COLUMNS] = {0};
        for (int64_t c = 0; c < columns; c++) {
            scale[c] = m.unit * m.scale[start + c];
            bias[c] = m.bias ? m.bias[start + c] : 0.0f;
        }
        memset(sums, 0, tiles * ROWS * COLUMNS * sizeof *sums);
        for (int64_t k = 0; k < m.width; k += DEPTH) { /* so much of a panel stays in the nearest cache for all tiles */
            const int64_t depth = m.width - k < DEPTH ? m.width - k : DEPTH;
            const int16_t *const weights = m.weights + start * m.width + k * COLUMNS;
            for (int64_t t = 0; t < tiles; t++)
                tile(counts + t * ROWS * m.width + k, m.width, weights, depth, sums + t * ROWS * COLUMNS);
        }
        for (int64_t r = 0; r < rows; r++) {
            float result[COLUMNS];
            const float nothing = nan[r] ? NAN : 0.0f;
            for (int c = 0; c < COLUMNS; c++)
                result[c] = (float)sums[r * COLUMNS + c] * scale[c] + bias[c] + nothing;
            memcpy(m.out + (first + r) * m.outputs + start, result, columns * sizeof *result);
        }
    }
}

/* out = unit·scale·(counts·W) + bias. Returns 1, and writes nothing, if a step that is on has vanished or memory is
 * short. */
int32_t onespike_product(const float *x, float *out, int64_t rows, int64_t inputs, int64_t outputs,
                         const int16_t *weights, const float *scale, const float *bias, const float *up,
                         const float *down, float most_up, float most_down, int32_t times_up, int32_t times_down,
                         const Form *form, int32_t threads) {
    if ((isinf(most_up) && !(up[0] > 0)) || (isinf(most_down) && !(down[0] > 0))) return 1;
    if (!rows) return 0;
    const float unit = isinf(most_up) ? up[0] / (float)times_up : down[0] / (float)times_down;
    const int64_t width = inputs + inputs % 2;
    const Linear linear = {x, weights, scale, bias, out, rows, inputs, width, outputs, times_up, times_down, unit};
    const Sides sides = {up, down, most_up, most_down};
    /* blocks of whole tiles that fit the cache, as many for each thread and of one size */
    const int64_t share = (rows + threads - 1) / threads, fit = CACHED / width > ROWS ? CACHED / width : ROWS;
    const int64_t parts = threads * ((share + fit - 1) / fit);
    const int64_t most = ((rows + parts - 1) / parts + ROWS - 1) / ROWS * ROWS;
    const int64_t blocks = (rows + most - 1) / most;
    const size_t each = ((inputs + most * COLUMNS) * 4 + most * (width * 2 + 1)) / 64 * 64 + 64;
    char *const memory = malloc(threads * each);
    if (!memory) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t b = 0; b < blocks; b++) {
        float *const value = (float *)(memory + THREAD * each);
        int32_t *const sums = (int32_t *)(value + inputs);
        int16_t *const counts = (int16_t *)(sums + most * COLUMNS);
        const int64_t first = b * most, m = rows - first < most ? rows - first : most;
        block(linear, first, m, sides, form, value, sums, counts, (uint8_t *)(counts + most * width));
    }
    free(memory);
    return 0;
}
