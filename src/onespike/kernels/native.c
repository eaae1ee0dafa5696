/* The fire function in one pass over memory, and the counting of bit patterns as observers.py does it. */
#include "fire.h"

#define PIECE 16384

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
