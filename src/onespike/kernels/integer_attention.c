/* Attention of spikes on integers: q, k and v fire into 16-bit counts, both products are exact 32-bit sums.
 *
 * As in attention.c a few rows at a time go through scores, softmax, spikes and the product with v. The softmax is in
 * float, row by row. What is the same for all keys of a row leaves it unchanged, so of the offsets of q and k only q's
 * meets the keys.
 */
#include <float.h>
#include <stdlib.h>

#include "dot.h"
#include "softmax.h"
#include "tile.h"

#define MOST_ROWS 48
#define AHEAD 6 /* rows that are fetched before their turn */
#define SCORES 131072 /* of a block of rows, at most, unless one tile has more */

typedef struct {
    const float *up, *down, *times_up, *times_down; /* [heads][depth]: steps, and the units of each sign's counts */
    const float *center;                            /* likewise, or NULL */
    const float *gain;                              /* a power of two for each row, or NULL */
    const Form *form;
    int64_t quick; /* the form is closed, and steps that are off are infinite */
} Firing;

typedef struct {
    Operand q, k, v, mask, out; /* mask.start is NULL without one */
    int64_t heads, rows, keys, inner, outer;
    const float *step; /* of the probabilities: step[head·by_head + row·by_row] */
    int64_t by_head, by_row;
    const Form *form;
    const Firing *q_fires, *k_fires, *v_fires;
    const float *factor;                      /* [heads], what one unit of a score is worth */
    const float *v_gain, *v_times;            /* [keys]: v's gains as whole multiples, or NULL; what counts of v take of them */
    const float *offset, *offset_factor;      /* of q: [heads][inner] whole numbers and what one is worth, or NULL */
    const float *v_unit, *v_offset;           /* [heads][outer]; v_offset may be NULL */
    int64_t path;
} Integers;

typedef struct {
    int16_t *keys, *values, *queries, *fired, *row;
    float *scores, *result, *added, *value;
    int32_t *tile;
    uint8_t *nan;
} Room;

/* Fires a row into 16-bit numbers of units; 0 and a flag for NaN. */
static void units(Operand x, int64_t batch, int64_t head, int64_t row, int64_t n, const Firing *f, float *value, int16_t *to,
                  uint8_t *nan, const int flags) {
    const float *from = at(x, batch, head, row);
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(from + AHEAD * x.row + i * x.column); /* rows lie far apart */
    const float inverse = f->gain ? 1.0f / f->gain[row] : 1.0f;
    if (x.column != 1) {
        for (int64_t i = 0; i < n; i++) value[i] = from[i * x.column];
        from = value;
    }
    if (f->quick) {
        const int64_t first = head * n;
        const Units u = {f->center ? f->center + first : NULL, f->up + first, f->down + first, f->times_up + first,
                         f->times_down + first, FLT_MAX, 1};
        if (fire_units(from, n, u, inverse, f->form, to))
            for (int64_t i = 0; i < n; i++)
                if (to[i] == NOT_A_NUMBER) nan[flags * i] = 1, to[i] = 0;
        return;
    }
    if (f->center) {
        const float *const center = f->center + head * n;
        for (int64_t i = 0; i < n; i++) value[i] = (from[i] - center[i]) * inverse;
        from = value;
    } else if (f->gain) {
        for (int64_t i = 0; i < n; i++) value[i] = from[i] * inverse;
        from = value;
    }
    const Sides sides = {f->up + head * n, f->down + head * n, FLT_MAX, FLT_MAX};
    run(from, value, n, sides, *f->form, 0, 1);
    const float *const up = f->times_up + head * n, *const down = f->times_down + head * n;
    for (int64_t i = 0; i < n; i++) {
        const float count = value[i] * side(value[i], up[i], down[i]);
        if (count != count) nan[flags * i] = 1;
        to[i] = (int16_t)(int32_t)(count == count ? count : 0.0f);
    }
}

/* The same firing with steps that `Units` takes, in memory for two of each; what is left of that memory. */
static float *quick(const Firing **fires, Firing *own, int64_t steps, float *memory) {
    if (!is_quick((*fires)->form)) return memory;
    *own = **fires;
    on_or_infinite(own->up, steps, memory);
    on_or_infinite(own->down, steps, memory + steps);
    own->up = memory, own->down = memory + steps, own->quick = 1;
    *fires = own;
    return memory + 2 * steps;
}

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* counts[r][k]·panels[c][k]·factor[r] for all rows and columns; rows of counts and of results lie `apart` and `width`
 * numbers apart. */
static void products(const Path *path, const int16_t *counts, int64_t apart, int64_t rows, int64_t depth, const int16_t *panels,
                     int64_t columns, const float *factor, float *out, int64_t width, int32_t *tile) {
    const int high = path->rows, wide = path->columns;
    for (int64_t start = 0; start < columns; start += wide, panels += depth * wide)
        for (int64_t r = 0; r < rows; r += high) {
            const int64_t here = rows - r < high ? rows - r : high;
            memset(tile, 0, high * wide * sizeof *tile);
            const uint8_t *const left = (const uint8_t *)(counts + r * apart), *const right = (const uint8_t *)panels;
            if (here > high / 3) {
                path->tile(left, 2 * apart, right, depth / 2, tile);
            } else {
                for (int64_t i = 0; i < here; i++)
                    path->one(left + i * 2 * apart, 2 * apart, right, depth / 2, tile + i * wide);
            }
            for (int64_t i = 0; i < here; i++) {
                float *const to = out + (r + i) * width + start;
                const float one = factor[r + i];
#pragma omp simd
                for (int c = 0; c < wide; c++) to[c] = (float)tile[i * wide + c] * one;
            }
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
        units(a->k, batch, head, j, a->inner, a->k_fires, room.value, room.row, room.nan, 0);
        for (int64_t d = 0; d < deep; d += 2) memcpy(key + d * wide, room.row + d, 4);
    }
    int16_t *const even = room.row, *const odd = room.row + outer;
    memset(even, 0, 2 * outer * sizeof *even);
    for (int64_t j = 0; j < a->keys; j += 2) {
        units(a->v, batch, head, j, a->outer, a->v_fires, room.value, even, room.nan + 1, 1);
        if (j + 1 < a->keys) {
            units(a->v, batch, head, j + 1, a->outer, a->v_fires, room.value, odd, room.nan + 1, 1);
        } else {
            memset(odd, 0, outer * sizeof *odd);
        }
        if (a->v_times) {
            for (int64_t i = 0; i < a->outer; i++) even[i] *= (int16_t)a->v_times[j];
            for (int64_t i = 0; j + 1 < a->keys && i < a->outer; i++) odd[i] *= (int16_t)a->v_times[j + 1];
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
    float factor[MOST_ROWS], total[MOST_ROWS];
    memset(room.queries, 0, up_to(rows, path->rows) * deep * sizeof *room.queries);
    for (int64_t r = 0; r < rows; r++) {
        lost[r] = room.nan[0];
        factor[r] = a->factor[head] * (a->q_fires->gain ? a->q_fires->gain[first + r] : 1.0f);
        units(a->q, batch, head, first + r, a->inner, a->q_fires, room.value, room.queries + r * deep, lost + r, 0);
    }
    products(path, room.queries, deep, rows, deep, room.keys, a->keys, factor, room.scores, width, room.tile);
    const float off = 0.0f;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t row = first + r;
        float *const scores = room.scores + r * width;
        if (a->k_fires->gain)
            for (int64_t i = 0; i < a->keys; i++) scores[i] *= a->k_fires->gain[i];
        if (a->offset)
            for (int64_t i = 0; i < a->keys; i++) scores[i] += room.added[i];
        if (a->mask.start) {
            const float *const mask = at(a->mask, batch, head, row);
            for (int64_t i = 0; i < a->keys; i++) scores[i] += mask[i * a->mask.column];
        }
        for (int64_t i = a->keys; i < width; i++) scores[i] = -INFINITY;
        const float *const step = a->step + head * a->by_head + row * a->by_row;
        const Sides sides = {step, &off, HUGE_VALF, 0.0f};
        int16_t *const to = room.fired + r * width; /* what follows the keys fires nothing */
        const float count = fired_counts(scores, width, a->mask.start != NULL, sides, a->form, to);
        if (count != count) {
            lost[r] = 1;
            memset(to, 0, width * sizeof *to);
        }
        if (a->v_gain)
            for (int64_t i = 0; i < a->keys; i++) to[i] = (int16_t)(int32_t)((float)to[i] * a->v_gain[i]);
        factor[r] = 1.0f;
        total[r] = count * *step;
    }
    products(path, room.fired, width, rows, many, room.values, a->outer, factor, room.result, outer, room.tile);
    for (int64_t r = 0; r < rows; r++) {
        float *const out = (float *)at(a->out, batch, head, first + r);
        const float step = a->step[head * a->by_head + (first + r) * a->by_row];
        const float *const unit = a->v_unit + head * a->outer, *const result = room.result + r * outer;
        for (int64_t c = 0; c < a->outer; c++) out[c] = result[c] * unit[c] * step;
        if (a->v_offset)
            for (int64_t c = 0; c < a->outer; c++) out[c] += a->v_offset[head * a->outer + c] * total[r];
        for (int64_t c = 0; c < a->outer; c++) out[c] = lost[r] || room.nan[1 + c] ? NAN : out[c];
    }
}

/* q's offset times every key: one row more of scores, which is the same for all queries. */
static void add_offset(const Integers *a, int64_t head, int64_t deep, Room room) {
    const Path *const path = &PATH[a->path];
    const int64_t width = up_to(a->keys, path->columns);
    memset(room.queries, 0, path->rows * deep * sizeof *room.queries);
    for (int64_t d = 0; d < a->inner; d++) room.queries[d] = (int16_t)a->offset[head * a->inner + d];
    products(path, room.queries, deep, 1, deep, room.keys, a->keys, a->offset_factor + head, room.scores, width, room.tile);
    for (int64_t i = 0; i < a->keys; i++) room.added[i] = room.scores[i] * (a->k_fires->gain ? a->k_fires->gain[i] : 1.0f);
}

/* Fills `out`, whose columns are dense. Returns 1, and writes nothing, if memory is short. */
int32_t onespike_attend_integers(const Integers *attention, int64_t batches, int32_t threads) {
    Integers a = *attention;
    const Path *const path = &PATH[a.path];
    const int64_t wide = path->columns, high = path->rows, deep = up_to(a.inner, 2), width = up_to(a.keys, wide);
    const int64_t many = up_to(a.keys, 2), outer = up_to(a.outer, wide);
    int64_t most = SCORES / width < MOST_ROWS ? SCORES / width / high * high : MOST_ROWS;
    most = most < high ? high : most;
    const int64_t heads = batches * a.heads, wanted = 4 * threads;
    const int64_t parts = threads == 1 || heads >= wanted ? 1 : (wanted + heads - 1) / heads;
    const int64_t share = up_to((a.rows + parts - 1) / parts, high);
    const size_t words = width * deep + outer * many + most * (deep + width) + deep + 2 * outer;
    const int64_t longest = a.inner > a.outer ? a.inner : a.outer;
    const size_t numbers = most * width + MOST_ROWS * outer + high * wide + width + longest;
    const size_t each = up_to(words * 2 + numbers * 4 + 1 + a.outer, 64) + 64;
    const size_t steps = 2 * a.heads * (2 * a.inner + a.outer);
    char *const memory = malloc(threads * each + steps * sizeof(float));
    if (!memory) return 1;
    Firing own[3];
    float *free_steps = (float *)(memory + threads * each);
    free_steps = quick(&a.q_fires, own, a.heads * a.inner, free_steps);
    free_steps = quick(&a.k_fires, own + 1, a.heads * a.inner, free_steps);
    quick(&a.v_fires, own + 2, a.heads * a.outer, free_steps);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t piece = 0; piece < heads * parts; piece++) {
        Room room = {.scores = (float *)(memory + THREAD * each)};
        room.result = room.scores + most * width;
        room.tile = (int32_t *)(room.result + MOST_ROWS * outer);
        room.added = (float *)(room.tile + high * wide);
        room.value = room.added + width;
        room.keys = (int16_t *)(room.value + longest);
        room.values = room.keys + width * deep;
        room.queries = room.values + outer * many;
        room.fired = room.queries + most * deep;
        room.row = room.fired + most * width;
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
