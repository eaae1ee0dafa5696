/* The fire function in one pass over memory, and what calibration takes of an activation: bit patterns and moments. */
#include "fire.h"

#define PIECE 16384

/* Element i belongs to channel (i / inner) % channels. With a `run`, so many elements lie together in x, and the next
 * ones `apart` from their start. Returns 1, and does nothing, if the one step of a side that is on has vanished: the
 * plain form divides by that zero. */
int32_t onespike_fire(const float *x, float *out, int64_t n, int64_t run_of, int64_t apart, int64_t channels,
                      int64_t inner, const float *up, const float *down, float most_up, float most_down,
                      const Form *form, int32_t decoded, int32_t threads) {
    if ((isinf(most_up) && !(up[0] > 0)) || (isinf(most_down) && !(down[0] > 0))) return 1;
    const int each = channels > 1 && inner == 1;
    const int64_t length = run_of ? run_of : channels == 1 ? PIECE : each ? channels : inner;
    const int64_t pieces = (n + length - 1) / length, distance = run_of ? apart : length;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t start = piece * length, c = each || channels == 1 ? 0 : piece % channels;
        const int64_t m = n - start < length ? n - start : length;
        const Sides sides = {up + c, down + c, most_up, most_down};
        if (each) {
            run(x + start, out + start, m, sides, *form, decoded, 1);
        } else {
            run(x + piece * distance, out + start, m, sides, *form, decoded, 0);
        }
    }
    return 0;
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
