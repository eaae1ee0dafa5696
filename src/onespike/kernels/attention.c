/* Attention whose probabilities fire: softmax(q·kᵀ + mask), spikes, times v, a few rows at a time.
 *
 * A block of rows has its scores, probabilities and spikes in one buffer that stays in the cache, so that none of them
 * ever exists for a whole head. Keys and values of a head are laid out once, in panels of 16, for the products.
 */
#include <stdlib.h>

#include "softmax.h"
#include "tile.h"

#define SCORES 131072 /* of a block of rows, at most, unless one tile has more */
#define MOST_ROWS 48

typedef struct {
    Operand q, k, v, mask, out; /* mask.start is NULL without one */
    int64_t heads, rows, keys, inner, outer;
    const float *step; /* of the probabilities: step[head·by_head + row·by_row] */
    int64_t by_head, by_row;
    const Form *form;
} Attention;

/* out[r][c] = Σ_k left[r][k]·panel[k][c] for one tile; rows of `out` are `width` apart. */
#ifdef __AVX2__
#define START(r) __m256 low##r = _mm256_setzero_ps(), high##r = _mm256_setzero_ps();
#define MULTIPLY_ADD(r)                                                                             \
    one = _mm256_broadcast_ss(left + r * stride + k);                                               \
    low##r = _mm256_fmadd_ps(one, low, low##r);                                                     \
    high##r = _mm256_fmadd_ps(one, high, high##r);
#define KEEP(r)                                                                                     \
    _mm256_storeu_ps(out + r * width, low##r);                                                      \
    _mm256_storeu_ps(out + r * width + 8, high##r);

static FMA __attribute__((noinline)) void tile(const float *left, int64_t stride, const float *panel, int64_t depth,
                                               float *out, int64_t width) {
    EACH_ROW(START)
    for (int64_t k = 0; k < depth; k++, panel += COLUMNS) {
        const __m256 low = _mm256_loadu_ps(panel), high = _mm256_loadu_ps(panel + 8);
        __m256 one;
        EACH_ROW(MULTIPLY_ADD)
    }
    EACH_ROW(KEEP)
}
#else
static __attribute__((noinline)) void tile(const float *left, int64_t stride, const float *panel, int64_t depth,
                                           float *out, int64_t width) {
    float sums[ROWS][COLUMNS] = {{0}};
    for (int64_t k = 0; k < depth; k++, panel += COLUMNS)
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++) sums[r][c] += left[r * stride + k] * panel[c];
    for (int r = 0; r < ROWS; r++) memcpy(out + r * width, sums[r], sizeof sums[r]);
}
#endif

/* [panel][k][16] of an operand whose k and columns have these strides, zeros where there is no column. */
static void lay_out(const float *from, int64_t depth, int64_t columns, int64_t by_k, int64_t by_column, float *to) {
    for (int64_t start = 0; start < columns; start += COLUMNS, to += depth * COLUMNS) {
        const int64_t here = columns - start < COLUMNS ? columns - start : COLUMNS;
        const float *const source = from + start * by_column;
        if (here < COLUMNS) memset(to, 0, depth * COLUMNS * sizeof *to);
        if (by_column == 1 && here == COLUMNS) { /* of a constant size, which needs no call */
            for (int64_t k = 0; k < depth; k++) memcpy(to + k * COLUMNS, source + k * by_k, COLUMNS * sizeof *to);
        } else {
            for (int64_t c = 0; c < here; c++)
                for (int64_t k = 0; k < depth; k++) to[k * COLUMNS + c] = source[k * by_k + c * by_column];
        }
    }
}

typedef struct {
    float *keys, *values, *queries, *scores, *result;
} Scratch;

/* Rows from first to last of one head, whose keys and values are laid out. */
static void block(const Attention *a, int64_t batch, int64_t head, int64_t first, int64_t last, Scratch s) {
    const int64_t rows = last - first, tiles = (rows + ROWS - 1) / ROWS;
    const int64_t width = (a->keys + COLUMNS - 1) / COLUMNS * COLUMNS;
    for (int64_t r = 0; r < tiles * ROWS; r++) { /* rows of a last tile that are not there repeat the last one */
        const float *const q = at(a->q, batch, head, first + (r < rows ? r : rows - 1));
        float *const to = s.queries + r * a->inner;
        if (a->q.column == 1) {
            memcpy(to, q, a->inner * sizeof *to);
        } else {
            for (int64_t d = 0; d < a->inner; d++) to[d] = q[d * a->q.column];
        }
    }
    for (int64_t start = 0; start < a->keys; start += COLUMNS)
        for (int64_t t = 0; t < tiles; t++)
            tile(s.queries + t * ROWS * a->inner, a->inner, s.keys + start * a->inner, a->inner,
                 s.scores + t * ROWS * width + start, width);
    const float off = 0.0f;
    for (int64_t r = 0; r < rows; r++) {
        float *const scores = s.scores + r * width;
        if (a->mask.start) {
            const float *const mask = at(a->mask, batch, head, first + r);
            for (int64_t i = 0; i < a->keys; i++) scores[i] += mask[i * a->mask.column];
        }
        const Sides sides = {a->step + head * a->by_head + (first + r) * a->by_row, &off, HUGE_VALF, 0.0f};
        /* whole vectors: a sum then has one order, however many masked keys follow */
        for (int64_t i = a->keys; i < width; i++) scores[i] = -INFINITY;
        fired_values(scores, width, a->mask.start != NULL, sides, a->form);
    }
    for (int64_t start = 0; start < a->outer; start += COLUMNS) {
        const int64_t columns = a->outer - start < COLUMNS ? a->outer - start : COLUMNS;
        for (int64_t t = 0; t < tiles; t++) {
            tile(s.scores + t * ROWS * width, width, s.values + start * a->keys, a->keys, s.result, COLUMNS);
            for (int64_t r = t * ROWS; r < rows && r < (t + 1) * ROWS; r++) {
                float *const out = (float *)at(a->out, batch, head, first + r) + start;
                for (int64_t c = 0; c < columns; c++) out[c] = s.result[r % ROWS * COLUMNS + c];
            }
        }
    }
}

/* Fills `out`, whose columns are dense. Returns 1, and writes nothing, if memory is short. */
int32_t onespike_attend(const Attention *attention, int64_t batches, int32_t threads) {
    const Attention a = *attention;
    const int64_t width = (a.keys + COLUMNS - 1) / COLUMNS * COLUMNS;
    const int64_t outer = (a.outer + COLUMNS - 1) / COLUMNS * COLUMNS;
    int64_t most = SCORES / width < MOST_ROWS ? SCORES / width / ROWS * ROWS : MOST_ROWS;
    most = most < ROWS ? ROWS : most;
    /* a head is one piece of work, or several where there are few of them */
    const int64_t heads = batches * a.heads, wanted = 4 * threads;
    const int64_t parts = threads == 1 || heads >= wanted ? 1 : (wanted + heads - 1) / heads;
    const int64_t share = ((a.rows + parts - 1) / parts + ROWS - 1) / ROWS * ROWS;
    const int64_t each = width * a.inner + outer * a.keys + most * (a.inner + width) + ROWS * COLUMNS;
    float *const memory = malloc(threads * each * sizeof(float));
    if (!memory) return 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t piece = 0; piece < heads * parts; piece++) {
        Scratch s = {.keys = memory + THREAD * each};
        s.values = s.keys + width * a.inner;
        s.queries = s.values + outer * a.keys;
        s.scores = s.queries + most * a.inner;
        s.result = s.scores + most * width;
        const int64_t batch = piece / parts / a.heads, head = piece / parts % a.heads, first = piece % parts * share;
        const int64_t last = first + share < a.rows ? first + share : a.rows;
        if (first >= last) continue;
        lay_out(at(a.k, batch, head, 0), a.inner, a.keys, a.k.column, a.k.row, s.keys);
        lay_out(at(a.v, batch, head, 0), a.keys, a.outer, a.v.row, a.v.column, s.values);
        for (int64_t start = first; start < last; start += most)
            block(&a, batch, head, start, start + most < last ? start + most : last, s);
    }
    free(memory);
    return 0;
}
