/* The fire function in one pass over memory: what neurons/fire.py and neurons/sides.py say, operation for operation;
 * and the counting of bit patterns, as observers.py does it.
 *
 * Divisions are true divisions and nothing may be contracted to a fused multiply-add: this file is compiled with
 * -ffp-contract=off and without -ffast-math. Every choice is written so that a compiler can turn it into a vector
 * minimum, maximum or blend. The output may be the input.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPONENT 0x7F800000
#define BLOCK 256
#define PIECE 16384
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
        for (int k = 0; k < form.jumps; k++) {
            const float bound = form.bound[k], rise = form.rise[k];
            for (int64_t i = 0; i < m; i++) count[i] += a[i] >= bound ? rise : 0.0f;
        }
#pragma omp simd
        for (int64_t i = 0; i < m; i++) out[start + i] = signed_value(x[start + i], count[i], steps[i], decoded);
    }
}

/* Element i belongs to channel (i / inner) % channels. Returns 1, and does nothing, if the one step of a side that is
 * on has vanished: the plain form divides by that zero. */
int32_t onespike_fire(const float *x, float *out, int64_t n, int64_t channels, int64_t inner, const float *up,
                      const float *down, float most_up, float most_down, const Form *form, int32_t decoded,
                      int32_t threads) {
    if ((isinf(most_up) && !(up[0] > 0)) || (isinf(most_down) && !(down[0] > 0))) return 1;
    const int each = channels > 1 && inner == 1;
    const int64_t length = channels == 1 ? PIECE : each ? channels : inner, pieces = (n + length - 1) / length;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t start = piece * length, c = each || channels == 1 ? 0 : piece % channels;
        const int64_t m = n - start < length ? n - start : length;
        const Sides sides = {up + c, down + c, most_up, most_down};
        if (each) {
            run(x + start, out + start, m, sides, *form, decoded, 1);
        } else {
            run(x + start, out + start, m, sides, *form, decoded, 0);
        }
    }
    return 0;
}

/* Adds to counts[sign][bin], the bin being the bits of |x| from `shift` on, less lowest - 1, within 0 ... bins - 1. */
void onespike_count(const float *x, int64_t n, int32_t shift, int32_t lowest, int32_t bins, int64_t *counts) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        const int32_t above = (int32_t)((bits & 0x7FFFFFFF) >> shift) - (lowest - 1);
        const int32_t bin = above < 0 ? 0 : above < bins ? above : bins - 1;
        counts[(bits >> 31) * (int64_t)bins + bin]++;
    }
}
