/* The fire function of one run of elements: what `SpikeCode.fire` in spikes/code.py says, operation for operation.
 *
 * Divisions are true divisions and nothing may be contracted to a fused multiply-add: what includes this is compiled with
 * -ffp-contract=off and without -ffast-math. Every choice is written so that a compiler can turn it into a vector
 * minimum, maximum or blend. The output may be the input.
 */
#ifndef ONESPIKE_FIRE
#define ONESPIKE_FIRE

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPONENT 0x7F800000
#define BLOCK 256
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int32_t jumps;             /* beyond the closed form; 0 if that is all */
    int32_t inside;            /* 1: a = (|x| + step/2)/step, the multi-threshold neuron's; 0: a = |x|/step + 1/2 */
    int32_t carry;             /* added to the bits before the exponent is taken */
    float dense, offset, top;  /* M, what is taken from a before its power of two, the largest power */
    const float *bound, *rise; /* where the count jumps beyond the closed form, and by how much */
    const float *table;        /* with jumps, G(a) = table[min(whole·a, last)]; NULL if it were too long */
    float whole, last;
} Form;

typedef struct {
    const float *up, *down; /* steps of the two sides, one for each channel; 0 is off */
    float most_up, most_down; /* magnitudes are held below these */
} Sides;

INLINE float coordinate(float x, float step, float most, int inside) {
    const float size = fabsf(x), held = most < size ? most : size; /* a NaN stays */
    const float above = step > 0 ? step : 1.0f, part = step > 0 ? held : held * 0.0f;
    return inside ? (part + above * 0.5f) / above : part / above + 0.5f;
}

INLINE float closed(float a, Form form) {
    const float whole = floorf(a), rest = a - form.offset;
    const float dense = form.dense < whole ? form.dense : whole; /* a NaN stays */
    const float above = rest > 1.0f ? rest : 1.0f, power = above < form.top ? above : form.top;
    int32_t bits;
    float leading;
    memcpy(&bits, &power, 4);
    bits = (bits + form.carry) & EXPONENT;
    memcpy(&leading, &bits, 4);
    return dense + (leading - 1.0f);
}

INLINE float looked_up(float a, Form form) {
    const float place = a * form.whole, held = place < form.last ? place : form.last; /* the last for NaN */
    const float count = form.table[(int32_t)held];
    return a == a ? count : a;
}

INLINE float signed_value(float x, float count, float step, int decoded) {
    const float size = decoded ? step * count : count;
    return x < 0 ? 0.0f - size : size; /* a silent neuron gives +0 on both sides */
}

INLINE float side(float x, float up, float down) { return x < 0 ? down : up; }

/* What fires in one pass into 16-bit units, a count times what one of its side is worth. */
typedef struct {
    const float *center;                /* of each element, or NULL */
    const float *up, *down;             /* infinite for a side that is off: it fires nothing */
    const float *times_up, *times_down;
    float limit;                        /* of magnitudes; finite if a side is off */
    int32_t each;                       /* whether every element has steps of its own */
} Units;

#define NOT_A_NUMBER INT16_MIN
#define FEW_DENSE 8 /* counts that hardly any block stays within */

INLINE int is_quick(const Form *form) { return !form->inside && (!form->jumps || form->table); }

/* Steps as `Units` takes them. */
INLINE void on_or_infinite(const float *steps, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) to[i] = steps[i] > 0 ? steps[i] : INFINITY;
}

enum { NAN_FIRED = 1, JUMPS = 2 };

/* Returns whether a value is NaN, and whether one jumps beyond the closed form, where only a table has its count. */
INLINE int units_of(const float *x, int64_t n, Units u, float inverse, Form form, int16_t *to, const int each, const int centered,
                    const int table) {
    const float bound = form.jumps ? *form.bound : INFINITY;
    int flags = 0;
#pragma omp simd reduction(| : flags)
    for (int64_t i = 0; i < n; i++) {
        const float v = (centered ? x[i] - u.center[i] : x[i]) * inverse;
        const float size = fabsf(v), held = u.limit < size ? u.limit : size; /* a NaN stays */
        const float a = held / side(v, u.up[each * i], u.down[each * i]) + 0.5f;
        const float count = table ? looked_up(a, form) : closed(a, form);
        const float units = count * side(v, u.times_up[each * i], -u.times_down[each * i]);
        to[i] = (int16_t)(int32_t)(units == units ? units : (float)NOT_A_NUMBER); /* below 2^15: exact */
        flags |= (units != units ? NAN_FIRED : 0) | (a >= bound ? JUMPS : 0);
    }
    return flags;
}

INLINE int units_in_blocks(const float *x, int64_t n, Units u, float inverse, Form form, int16_t *to, const int each,
                           const int centered) {
    if (!form.jumps) return units_of(x, n, u, inverse, form, to, each, centered, 0);
    int lost = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t m = n - start < BLOCK ? n - start : BLOCK, own = each * start;
        const Units here = {centered ? u.center + start : NULL, u.up + own, u.down + own, u.times_up + own, u.times_down + own, u.limit, each};
        int flags = JUMPS;
        if (form.dense >= FEW_DENSE) flags = units_of(x + start, m, here, inverse, form, to + start, each, centered, 0);
        if (flags & JUMPS) flags = units_of(x + start, m, here, inverse, form, to + start, each, centered, 1);
        lost |= flags & NAN_FIRED;
    }
    return lost;
}

/* Fires n values; NaN becomes NOT_A_NUMBER, and is reported. */
static int fire_units(const float *x, int64_t n, Units u, float inverse, const Form *form, int16_t *to) {
    if (u.each && u.center) return units_in_blocks(x, n, u, inverse, *form, to, 1, 1);
    if (u.each) return units_in_blocks(x, n, u, inverse, *form, to, 1, 0);
    if (u.center) return units_in_blocks(x, n, u, inverse, *form, to, 0, 1);
    return units_in_blocks(x, n, u, inverse, *form, to, 0, 0);
}

/* `each` says whether every element has a channel of its own, and is a constant wherever this is inlined. */
INLINE void run(const float *x, float *out, int64_t n, Sides s, Form form, int decoded, int each) {
    if (!form.jumps) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float v = x[i], step = side(v, s.up[each * i], s.down[each * i]);
            const float a = coordinate(v, step, side(v, s.most_up, s.most_down), form.inside);
            out[i] = signed_value(v, closed(a, form), step, decoded);
        }
        return;
    }
    float a[BLOCK], count[BLOCK], steps[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t m = n - start < BLOCK ? n - start : BLOCK;
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            const float v = x[start + i];
            steps[i] = side(v, s.up[each * (start + i)], s.down[each * (start + i)]);
            a[i] = coordinate(v, steps[i], side(v, s.most_up, s.most_down), form.inside);
        }
        float most = 0.0f; /* levels that nothing in the block reaches are not tried */
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < m; i++) most = a[i] > most ? a[i] : most;
        if (most >= *form.bound && form.table) {
#pragma omp simd
            for (int64_t i = 0; i < m; i++) count[i] = looked_up(a[i], form);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < m; i++) count[i] = closed(a[i], form);
            for (int k = 0; k < form.jumps && form.bound[k] <= most; k++) {
                const float bound = form.bound[k], rise = form.rise[k];
                for (int64_t i = 0; i < m; i++) count[i] += a[i] >= bound ? rise : 0.0f;
            }
        }
#pragma omp simd
        for (int64_t i = 0; i < m; i++) out[start + i] = signed_value(x[start + i], count[i], steps[i], decoded);
    }
}

#endif
