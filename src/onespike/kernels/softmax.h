/* What both forms of attention share: operands with strides, and the softmax of a row that fires. */
#ifndef ONESPIKE_SOFTMAX
#define ONESPIKE_SOFTMAX

#include "fire.h"

#ifdef __AVX2__
#define FMA __attribute__((target("avx2,fma"))) /* where an expression says so: no other is contracted */
#define MULADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA
#define MULADD(a, b, c) ((a) * (b) + (c))
#endif

typedef struct {
    const float *start;
    int64_t batch, head, row, column; /* strides, in elements */
} Operand;

INLINE const float *at(Operand x, int64_t batch, int64_t head, int64_t row) {
    return x.start + batch * x.batch + head * x.head + row * x.row;
}

/* e^x for x ≤ 0, within two units of the last place; 0 below the normal numbers, NaN for NaN. */
INLINE FMA float exponential(float x) {
    const float shift = 12582912.0f, held = x < -87.0f ? -87.0f : x; /* a NaN stays */
    const float moved = MULADD(held, 1.44269504f, shift), n = moved - shift;
    const float r = MULADD(n, 2.12194440e-4f, MULADD(n, -0.693359375f, held)); /* ln 2 in two parts */
    float p = 1.9875691500e-4f;
    p = MULADD(p, r, 1.3981999507e-3f);
    p = MULADD(p, r, 8.3334519073e-3f);
    p = MULADD(p, r, 4.1665795894e-2f);
    p = MULADD(p, r, 1.6666665459e-1f);
    p = MULADD(p, r, 5.0000001201e-1f);
    p = MULADD(p * r, r, r) + 1.0f;
    int32_t bits;
    memcpy(&bits, &moved, 4);
    bits = (bits - 0x4B400000 + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : p * power;
}

/* Scores become e^(score − largest), in place. Returns one over their sum; 0 for a row that is masked altogether, whose
 * scores become zeros. */
static FMA float exponentials(float *s, int64_t n, int masked) {
    float most = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) most = s[i] > most ? s[i] : most;
    if (masked && isinf(most) && most < 0) {
        for (int64_t i = 0; i < n; i++) s[i] = s[i] == s[i] ? 0.0f : s[i];
        return 0.0f;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        s[i] = exponential(s[i] - most);
        sum += s[i];
    }
    return 1.0f / sum;
}

/* Scores become values of fired probabilities, in place. */
static FMA void fired_values(float *s, int64_t n, int masked, Sides sides, const Form *form) {
    const float inverse = exponentials(s, n, masked);
    if (inverse == 0.0f) return;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) s[i] = s[i] * inverse;
    run(s, s, n, sides, *form, 1, 0);
}

/* Scores become counts of fired probabilities, 16-bit numbers; they are lost. Returns the sum of the counts: whole numbers,
 * exact in any order; NaN, and counts of no meaning, if a score is NaN. */
static FMA float fired_counts(float *s, int64_t n, int masked, Sides sides, const Form *form, int16_t *to) {
    const float inverse = exponentials(s, n, masked);
    const Form levels = *form;
    const float step = *sides.up, most = sides.most_up;
    float total = 0.0f;
    if (!is_quick(form) || !(step > 0) || inverse == 0.0f) {
        for (int64_t i = 0; i < n; i++) s[i] = s[i] * inverse;
        run(s, s, n, sides, *form, 0, 0);
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; i++) total += s[i];
        for (int64_t i = 0; i < n; i++) to[i] = (int16_t)(int32_t)s[i];
        return total;
    }
    float largest = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) largest = s[i] > largest ? s[i] : largest;
    const float reach = largest * inverse / step + 0.5f;
    if (levels.jumps && !(reach < *levels.bound)) {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; i++) {
            const float p = s[i] * inverse, count = looked_up((most < p ? most : p) / step + 0.5f, levels);
            total += count;
            to[i] = (int16_t)(int32_t)count;
        }
        return total;
    }
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; i++) {
        const float p = s[i] * inverse, count = closed((most < p ? most : p) / step + 0.5f, levels);
        total += count;
        to[i] = (int16_t)(int32_t)count;
    }
    return total;
}

#endif
