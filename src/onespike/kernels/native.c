/* The fire function in one pass over memory, and what calibration takes of an activation: bit patterns and moments. */
#include <stdlib.h>

#include "fire.h"

#define PIECE 16384
#define DIMS 6
#define CONSTANTS 4
#define FEW 64 /* constants that need no memory of their own */

typedef struct {
    int64_t dims, numel, size[DIMS]; /* the input's axes in the order of the result's memory, the innermost last */
    int64_t apart[DIMS];             /* its own strides, the last one 1; the result is dense */
    const float *scale;              /* of both steps, or NULL for 1 */
    const float *gain;               /* a power of two by row, or NULL for 1 */
    int64_t by_row[DIMS];            /* its strides, the last one 0 */
    const float *constant[CONSTANTS]; /* steps of the two sides, center and offset, or NULL for 0 */
    int64_t by[CONSTANTS][DIMS];      /* their strides */
    const Form *form;
    float most_up, most_down;
} Fire;

typedef struct {
    int64_t count, step[DIMS]; /* constants that differ, and the strides of their tables */
    float *table[CONSTANTS];
    float few[CONSTANTS * FEW], *many;
} Constants;

/* Lays the constants out densely along the axes on which any of them differs, steps times the scale. */
static int lay_out(const Fire *f, Constants *c) {
    const int last = (int)f->dims - 1;
    const float scale = f->scale ? *f->scale : 1.0f;
    c->count = 1;
    for (int d = last; d >= 0; d--) {
        int differs = 0;
        for (int k = 0; k < CONSTANTS; k++) differs |= f->constant[k] && f->by[k][d];
        c->step[d] = differs ? c->count : 0;
        if (differs) c->count *= f->size[d];
    }
    c->many = c->count > FEW ? malloc(CONSTANTS * c->count * sizeof(float)) : NULL;
    if (c->count > FEW && !c->many) return 1;
    for (int k = 0; k < CONSTANTS; k++) {
        c->table[k] = (c->many ? c->many : c->few) + k * c->count;
        const int64_t inner = c->step[last] ? f->size[last] : 1, by = f->by[k][last];
        for (int64_t i = 0; i < c->count; i += inner) {
            const float *from = f->constant[k];
            for (int d = 0; from && d < last; d++)
                if (c->step[d]) from += i / c->step[d] % f->size[d] * f->by[k][d];
            for (int64_t j = 0; j < inner; j++) c->table[k][i + j] = from ? from[j * by] : 0.0f;
            for (int64_t j = 0; k < 2 && j < inner; j++) c->table[k][i + j] *= scale;
        }
    }
    return 0;
}

/* A run of elements with center, gain and offset: a few at a time, so that they stay in the cache. */
INLINE void around(const float *x, float *out, int64_t n, Sides s, const float *center, const float *offset, float gain,
                   Form form, int decoded, const int each) {
    float part[4 * BLOCK];
    const float inverse = 1.0f / gain; /* exact, as gain is */
    for (int64_t start = 0; start < n; start += 4 * BLOCK) {
        const int64_t m = n - start < 4 * BLOCK ? n - start : 4 * BLOCK;
        const Sides here = {s.up + each * start, s.down + each * start, s.most_up, s.most_down};
#pragma omp simd
        for (int64_t i = 0; i < m; i++) part[i] = (x[start + i] - center[each * (start + i)]) * inverse;
        run(part, decoded ? part : out + start, m, here, form, decoded, each);
        if (!decoded) continue;
#pragma omp simd
        for (int64_t i = 0; i < m; i++) out[start + i] = part[i] * gain + offset[each * (start + i)];
    }
}

/* Returns 1, and does nothing, if memory is short or the one step of a side that is on has vanished: the plain form
 * divides by that zero. */
int32_t onespike_fire(const Fire *fire, const float *x, float *out, int32_t decoded, int32_t threads) {
    const Fire f = *fire;
    Constants c;
    if (lay_out(&f, &c)) return 1;
    const float *const up = c.table[0], *const down = c.table[1];
    const int vanished = (isinf(f.most_up) && !(up[0] > 0)) || (isinf(f.most_down) && !(down[0] > 0));
    const int plain = !f.gain && !f.constant[2] && !f.constant[3];
    const int64_t last = f.dims - 1, inner = f.size[last], each = c.step[last] != 0;
    const int64_t parts = (inner + PIECE - 1) / PIECE, pieces = vanished || !f.numel ? 0 : f.numel / inner * parts;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t row = piece / parts, first = piece % parts * PIECE, m = inner - first < PIECE ? inner - first : PIECE;
        const float *from = x + first, *gain = f.gain;
        int64_t place = each * first, left = row;
        for (int64_t d = last - 1; d >= 0; d--) {
            const int64_t i = d ? left % f.size[d] : left;
            left /= f.size[d];
            from += i * f.apart[d];
            place += i * c.step[d];
            if (gain) gain += i * f.by_row[d];
        }
        float *const to = out + row * inner + first;
        const Sides sides = {up + place, down + place, f.most_up, f.most_down};
        const float *const center = c.table[2] + place, *const offset = c.table[3] + place;
        if (plain && each) {
            run(from, to, m, sides, *f.form, decoded, 1);
        } else if (plain) {
            run(from, to, m, sides, *f.form, decoded, 0);
        } else if (each) {
            around(from, to, m, sides, center, offset, gain ? *gain : 1.0f, *f.form, decoded, 1);
        } else {
            around(from, to, m, sides, center, offset, gain ? *gain : 1.0f, *f.form, decoded, 0);
        }
    }
    free(c.many);
    return vanished;
}

/* Adds to counts[sign][bin], the bin being the bits of |x| from `shift` on, less lowest - 1, within 0 ... bins - 1.
 * Bins first, as vectors, and then the additions: one after the other they would wait for each other. */
void onespike_count(const float *x, int64_t n, int32_t shift, int32_t lowest, int32_t bins, int64_t *counts) {
    int32_t place[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int m = n - start < BLOCK ? (int)(n - start) : BLOCK;
        for (int i = 0; i < m; i++) {
            int32_t bits;
            memcpy(&bits, x + start + i, 4);
            const int32_t above = ((bits & 0x7FFFFFFF) >> shift) - (lowest - 1);
            const int32_t held = above < 0 ? 0 : above, bin = held < bins ? held : bins - 1;
            place[i] = bin + (bits < 0 ? bins : 0);
        }
        for (int i = 0; i < m; i++) counts[place[i]]++;
    }
}

/* The sum of x and of its squares, in double and in an order that depends on n alone. */
void onespike_moments(const float *x, int64_t n, double *moments) {
    double sum[8] = {0}, square[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++) {
            const double value = x[i + j];
            sum[j] += value;
            square[j] += value * value;
        }
    }
    for (; i < n; i++) {
        sum[i % 8] += x[i];
        square[i % 8] += (double)x[i] * x[i];
    }
    moments[0] = moments[1] = 0;
    for (int j = 0; j < 8; j++) {
        moments[0] += sum[j];
        moments[1] += square[j];
    }
}
