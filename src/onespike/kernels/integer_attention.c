/* Attention of spikes on integers: counts of q, k and v are 16-bit numbers, both products exact 32-bit sums.
 *
 * As in attention.c a few rows at a time go through scores, softmax, spikes and the product with v. The softmax is in
 * float, row by row. What is the same for all keys of a row leaves it unchanged, so of the offsets of q and k only q's
 * meets the keys.
 */
#include <stdlib.h>

#include "dot.h"
#include "softmax.h"
#include "tile.h"

#define MOST_ROWS 48
#define SCORES 131072 /* of a block of rows, at most, unless one tile has more */

typedef struct {
    Operand q, k, v, mask, out; /* q, k, v are counts in float32; mask.start is NULL without one */
    int64_t heads, rows, keys, inner, outer;
    const float *step; /* of the probabilities: step[head·by_head + row·by_row] */
    int64_t by_head, by_row;
    const Form *form;
    const float *q_times, *k_times, *v_times; /* [2][heads], and [2][heads][outer]: units of each sign's counts */
    const float *factor;                      /* [heads], what one unit of a score is worth */
    const float *q_gain, *k_gain, *v_gain;    /* of each row or key, or NULL; v's are whole numbers */
    const float *offset, *offset_factor;      /* of q: [heads][inner] whole numbers and what one is worth, or NULL */
    const float *v_unit, *v_offset;           /* [heads][outer]; v_offset may be NULL */
    int64_t path;
} Integers;

typedef struct {
    int16_t *keys, *values, *queries, *fired, *row;
    int32_t *scores, *result;
    float *added;
    uint8_t *nan;
} Room;

/* Counts of a row as 16-bit numbers of units, with times of their own if `each`; 0 and a flag for NaN. */
INLINE void units(const float *from, int64_t apart, int64_t n, const float *up, const float *down, const int each,
                  int16_t *to, uint8_t *nan, const int flags) {
    int32_t any = 0;
    const float one_up = up[0], one_down = down[0];
    if (apart == 1) {
#pragma omp simd reduction(| : any)
        for (int64_t i = 0; i < n; i++) {
            const float count = from[i], number = count == count ? count : 0.0f;
            any |= count != count;
            to[i] = (int16_t)(int32_t)(number * side(number, each ? up[i] : one_up, each ? down[i] : one_down));
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            const float count = from[i * apart], number = count == count ? count : 0.0f;
            any |= count != count;
            to[i] = (int16_t)(int32_t)(number * side(number, each ? up[i] : one_up, each ? down[i] : one_down));
        }
    }
    if (!any) return;
    for (int64_t i = 0; i < n; i++) nan[flags * i] |= from[i * apart] != from[i * apart];
}

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* counts[r][k]·panels[c][k] for all rows and columns, into sums that are `width` apart. */
static void products(const Path *path, const int16_t *counts, int64_t rows, int64_t depth, const int16_t *panels,
                     int64_t columns, int32_t *sums, int64_t width, int32_t *tile) {
    const int high = path->rows, wide = path->columns;
    for (int64_t start = 0; start < columns; start += wide, panels += depth * wide)
        for (int64_t r = 0; r < rows; r += high) {
            const int64_t here = rows - r < high ? rows - r : high;
            memset(tile, 0, high * wide * sizeof *tile);
            const uint8_t *const left = (const uint8_t *)(counts + r * depth), *const right = (const uint8_t *)panels;
            if (here > high / 3) {
                path->tile(left, 2 * depth, right, depth / 2, tile);
            } else {
                for (int64_t i = 0; i < here; i++)
                    path->one(left + i * 2 * depth, 2 * depth, right, depth / 2, tile + i * wide);
            }
            for (int64_t i = 0; i < here; i++)
                memcpy(sums + (r + i) * width + start, tile + i * wide, wide * sizeof *sums);
        }
}

/* Keys and values of a head in panels of pairs; flags for NaN: one for the keys, one for each column of the values. */
static void lay_out(const Integers *a, int64_t batch, int64_t head, int64_t deep, int64_t many, Room room) {
    const int wide = PATH[a->path].columns;
    const int64_t outer = up_to(a->outer, wide);
    memset(room.nan, 0, 1 + a->outer);
    memset(room.row, 0, deep * sizeof *room.row);
    memset(room.keys, 0, up_to(a->keys, wide) * deep * sizeof *room.keys);
    for (int64_t j = 0; j < a->keys; j++) {
        int16_t *const key = room.keys + j / wide * wide * deep + j % wide * 2;
        units(at(a->k, batch, head, j), a->k.column, a->inner, a->k_times + head, a->k_times + a->heads + head, 0, room.row,
              room.nan, 0);
        for (int64_t d = 0; d < deep; d += 2) memcpy(key + d * wide, room.row + d, 4);
    }
    int16_t *const even = room.row, *const odd = room.row + outer;
    const float *const up = a->v_times + head * a->outer, *const down = up + a->heads * a->outer;
    memset(even, 0, 2 * outer * sizeof *even);
    for (int64_t j = 0; j < a->keys; j += 2) {
        units(at(a->v, batch, head, j), a->v.column, a->outer, up, down, 1, even, room.nan + 1, 1);
        if (j + 1 < a->keys) {
            units(at(a->v, batch, head, j + 1), a->v.column, a->outer, up, down, 1, odd, room.nan + 1, 1);
        } else {
            memset(odd, 0, outer * sizeof *odd);
        }
        for (int64_t start = 0; start < outer; start += wide) {
            int16_t *const to = room.values + (start / wide * many + j) * wide;
            for (int c = 0; c < wide; c++) to[2 * c] = even[start + c], to[2 * c + 1] = odd[start + c];
        }
    }
}

static void block(const Integers *a, int64_t batch, int64_t head, int64_t first, int64_t rows, int64_t deep, int64_t many,
                  Room room) {
    const Path *const path = &PATH[a->path];
    const int64_t width = up_to(a->keys, path->columns), outer = up_to(a->outer, path->columns);
    uint8_t lost[MOST_ROWS] = {0};
    memset(room.queries, 0, up_to(rows, path->rows) * deep * sizeof *room.queries);
    memset(room.fired, 0, up_to(rows, path->rows) * many * sizeof *room.fired);
    for (int64_t r = 0; r < rows; r++) {
        const float *const q = at(a->q, batch, head, first + r);
        lost[r] = room.nan[0];
        units(q, a->q.column, a->inner, a->q_times + head, a->q_times + a->heads + head, 0, room.queries + r * deep,
              lost + r, 0);
    }
    int32_t *const tile = room.result + MOST_ROWS * outer;
    products(path, room.queries, rows, deep, room.keys, a->keys, room.scores, width, tile);
    const float off = 0.0f;
    float total[MOST_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        const int64_t row = first + r;
        const float factor = a->factor[head] * (a->q_gain ? a->q_gain[row] : 1.0f);
        float *const scores = (float *)(room.scores + r * width);
#pragma omp simd
        for (int64_t i = 0; i < a->keys; i++) {
            int32_t sum;
            memcpy(&sum, scores + i, 4);
            scores[i] = (float)sum * factor;
        }
        if (a->k_gain)
            for (int64_t i = 0; i < a->keys; i++) scores[i] *= a->k_gain[i];
        if (a->offset)
            for (int64_t i = 0; i < a->keys; i++) scores[i] += room.added[i];
        if (a->mask.start) {
            const float *const mask = at(a->mask, batch, head, row);
            for (int64_t i = 0; i < a->keys; i++) scores[i] += mask[i * a->mask.column];
        }
        for (int64_t i = a->keys; i < width; i++) scores[i] = -INFINITY;
        const float *const step = a->step + head * a->by_head + row * a->by_row;
        const Sides sides = {step, &off, HUGE_VALF, 0.0f};
        fired(scores, width, a->mask.start != NULL, sides, a->form, 0);
        float count = 0.0f;
        int16_t *const to = room.fired + r * many;
#pragma omp simd reduction(+ : count)
        for (int64_t i = 0; i < a->keys; i++) count += scores[i]; /* whole numbers: exact in any order */
        if (count != count) {
            lost[r] = 1;
            continue;
        }
        if (a->v_gain) {
            for (int64_t i = 0; i < a->keys; i++) to[i] = (int16_t)(int32_t)(scores[i] * a->v_gain[i]);
        } else {
            for (int64_t i = 0; i < a->keys; i++) to[i] = (int16_t)(int32_t)scores[i];
        }
        total[r] = count * *step;
    }
    products(path, room.fired, rows, many, room.values, a->outer, room.result, outer, tile);
    for (int64_t r = 0; r < rows; r++) {
        float *const out = (float *)at(a->out, batch, head, first + r);
        const float step = a->step[head * a->by_head + (first + r) * a->by_row];
        const float *const unit = a->v_unit + head * a->outer;
        for (int64_t c = 0; c < a->outer; c++) out[c] = (float)room.result[r * outer + c] * unit[c] * step;
        if (a->v_offset)
            for (int64_t c = 0; c < a->outer; c++) out[c] += a->v_offset[head * a->outer + c] * total[r];
        for (int64_t c = 0; c < a->outer; c++) out[c] = lost[r] || room.nan[1 + c] ? NAN : out[c];
    }
}

/* q's offset times every key: one row more of scores, which is the same for all queries. */
static void add_offset(const Integers *a, int64_t head, int64_t deep, Room room) {
    const Path *const path = &PATH[a->path];
    const int64_t width = up_to(a->keys, path->columns), outer = up_to(a->outer, path->columns);
    memset(room.queries, 0, path->rows * deep * sizeof *room.queries);
    for (int64_t d = 0; d < a->inner; d++) room.queries[d] = (int16_t)a->offset[head * a->inner + d];
    products(path, room.queries, 1, deep, room.keys, a->keys, room.scores, width, room.result + MOST_ROWS * outer);
    for (int64_t i = 0; i < a->keys; i++)
        room.added[i] = (float)room.scores[i] * a->offset_factor[head] * (a->k_gain ? a->k_gain[i] : 1.0f);
}

/* Fills `out`, whose columns are dense. Returns 1, and writes nothing, if memory is short. */
int32_t onespike_attend_integers(const Integers *attention, int64_t batches, int32_t threads) {
    const Integers a = *attention;
    const Path *const path = &PATH[a.path];
    const int64_t wide = path->columns, high = path->rows, deep = up_to(a.inner, 2), many = up_to(a.keys, 2);
    const int64_t width = up_to(a.keys, wide), outer = up_to(a.outer, wide);
    int64_t most = SCORES / width < MOST_ROWS ? SCORES / width / high * high : MOST_ROWS;
    most = most < high ? high : most;
    const int64_t heads = batches * a.heads, wanted = 4 * threads;
    const int64_t parts = threads == 1 || heads >= wanted ? 1 : (wanted + heads - 1) / heads;
    const int64_t share = up_to((a.rows + parts - 1) / parts, high);
    const size_t words = width * deep + outer * many + most * (deep + many) + deep + 2 * outer;
    const size_t numbers = most * width + MOST_ROWS * outer + high * wide + width;
    const size_t each = up_to(words * 2 + numbers * 4 + 1 + a.outer, 64) + 64;
    char *const memory = malloc(threads * each);
    if (!memory) return 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t piece = 0; piece < heads * parts; piece++) {
        Room room = {.scores = (int32_t *)(memory + THREAD * each)};
        room.result = room.scores + most * width;
        room.added = (float *)(room.result + MOST_ROWS * outer + high * wide);
        room.keys = (int16_t *)(room.added + width);
        room.values = room.keys + width * deep;
        room.queries = room.values + outer * many;
        room.fired = room.queries + most * deep;
        room.row = room.fired + most * many;
        room.nan = (uint8_t *)(room.row + deep + 2 * outer);
        const int64_t batch = piece / parts / a.heads, head = piece / parts % a.heads, first = piece % parts * share;
        const int64_t last = first + share < a.rows ? first + share : a.rows;
        if (first >= last) continue;
        lay_out(&a, batch, head, deep, many, room);
        if (a.offset) add_offset(&a, head, deep, room);
        for (int64_t start = first; start < last; start += most)
            block(&a, batch, head, start, last - start < most ? last - start : most, deep, many, room);
    }
    free(memory);
    return 0;
}
