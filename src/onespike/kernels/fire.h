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
    int32_t jumps;             /* entries of the table; 0 for the closed form */
    int32_t inside;            /* 1: a = (|x| + step/2)/step, the multi-threshold neuron's; 0: a = |x|/step + 1/2 */
    int32_t carry;             /* closed form: added to the bits before the exponent is taken */
    float dense, offset, top;  /* closed form: M, what is taken from a before its power of two, the largest power */
    const float *bound, *rise; /* table: where the count jumps, and by how much */
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

INLINE float signed_value(float x, float count, float step, int decoded) {
    const float size = decoded ? step * count : count;
    return x < 0 ? 0.0f - size : size; /* a silent neuron gives +0 on both sides */
}

INLINE float side(float x, float up, float down) { return x < 0 ? down : up; }

/* The units that a value fires, a count times what one of its side is worth; `lost` for NaN. For closed forms that are
 * not `inside`; a side that is off has an infinite step and fires nothing. `limit` is finite if one is off. */
INLINE int32_t units_of(float x, float up, float down, float times_up, float times_down, float limit, Form form, float lost) {
    const float size = fabsf(x), held = limit < size ? limit : size; /* a NaN stays */
    const float units = closed(held / side(x, up, down) + 0.5f, form) * side(x, times_up, -times_down);
    return (int32_t)(units == units ? units : lost);
}

INLINE int is_quick(const Form *form) { return !form->jumps && !form->inside; }

/* Steps as `units_of` takes them. */
INLINE void on_or_infinite(const float *steps, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) to[i] = steps[i] > 0 ? steps[i] : INFINITY;
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
        for (int64_t i = 0; i < m; i++) {
            const float v = x[start + i];
            steps[i] = side(v, s.up[each * (start + i)], s.down[each * (start + i)]);
            a[i] = coordinate(v, steps[i], side(v, s.most_up, s.most_down), form.inside);
            count[i] = a[i] != a[i] ? a[i] : 0.0f;
        }
        float most = 0.0f; /* levels that nothing in the block reaches are not tried */
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < m; i++) most = a[i] > most ? a[i] : most;
        for (int k = 0; k < form.jumps && form.bound[k] <= most; k++) {
            const float bound = form.bound[k], rise = form.rise[k];
            for (int64_t i = 0; i < m; i++) count[i] += a[i] >= bound ? rise : 0.0f;
        }
#pragma omp simd
        for (int64_t i = 0; i < m; i++) out[start + i] = signed_value(x[start + i], count[i], steps[i], decoded);
    }
}

#endif
