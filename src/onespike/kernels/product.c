/* Linear maps and convolutions of spikes: activations fire into counts, which meet 8-bit weights in exact 32-bit sums.
 *
 * Rows are fired block by block into a buffer that stays in the cache, and multiplied from there by panels of outputs.
 * A count beyond its byte is cut, and what is missing is added with its column of weights. A sum is turned into float32
 * once, times its scale and its row's gain, plus its bias. No sum can overflow: whoever calls has checked the largest
 * count against the weights.
 */
#include <stdlib.h>

#include "dot.h"
#include "fire.h"
#include "tile.h"

#define CACHED 589824   /* bytes of counts of a block of rows */
#define PIECE_OF_ROW 64 /* counts that are looked through for large ones together */

typedef struct {
    const float *x;              /* [rows][inputs], or [images][height][width][inputs] */
    const float *center;         /* taken from each input before it fires, or NULL */
    const float *gain;           /* a power of two for row r % gains, or NULL */
    const float *up, *down;      /* steps, one for each input if `each`; 0 is off, and infinite once it is `quick` */
    const float *times_up, *times_down; /* a count of each side is worth so many units; likewise */
    const Form *form;
    int64_t gains, rows, inputs;
    float most_up, most_down;
    int32_t each, quick;
    /* a convolution: rows are the places of its result */
    int64_t height, width, pad_top, pad_left, tall, wide, kernel_height, kernel_width;
    int64_t step_down, step_right, apart_down, apart_right, places_down, places_right;
} Source;

typedef struct {
    const uint8_t *weights; /* [panels][groups][columns] of four bytes, zeros where there is no input or output */
    const int32_t *total;   /* sum of the weights of each output */
    const float *scale;     /* one for each output */
    const float *factor;    /* of all scales */
    const float *bias;      /* [biases][outputs] for row r % biases, or NULL */
    float *out;             /* [rows][outputs] */
    int64_t biases, inputs, outputs;
    int32_t low, path; /* the smallest count of a byte */
} Product;

typedef struct {
    int64_t k;
    int32_t row, rest;
} Event;

typedef struct {
    float *value;
    int16_t *counts;
    uint8_t *fired, *nan;
    int32_t *sums;
    Event *events;
    int64_t *of_row; /* where the events of a row begin */
    int64_t found, room;
    int32_t short_of_memory;
} Scratch;

/* Fires n inputs into 16-bit counts of units. Inputs have steps of their own from the first on if `each`. */
INLINE void fired(const float *x, int64_t n, Source s, float inverse, Sides sides, float *value, int16_t *counts,
                  const int each) {
    if (s.center || s.gain) {
        if (s.center) {
            for (int64_t k = 0; k < n; k++) value[k] = (x[k] - s.center[k]) * inverse;
        } else {
            for (int64_t k = 0; k < n; k++) value[k] = x[k] * inverse;
        }
        x = value;
    }
    run(x, value, n, sides, *s.form, 0, each);
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        const float count = value[k], units = count * side(count, s.times_up[each * k], s.times_down[each * k]);
        counts[k] = (int16_t)(int32_t)(units == units ? units : (float)NOT_A_NUMBER); /* below 2^15: exact */
    }
}

static void fire_row(const float *x, int64_t n, Source s, float inverse, float *value, int16_t *counts) {
    const Sides sides = {s.up, s.down, s.most_up, s.most_down};
    if (s.quick) {
        const float limit = s.most_up < s.most_down ? s.most_up : s.most_down;
        fire_units(x, n, (Units){s.center, s.up, s.down, s.times_up, s.times_down, limit, s.each}, inverse, s.form, counts);
    } else if (s.each) {
        fired(x, n, s, inverse, sides, value, counts, 1);
    } else {
        fired(x, n, s, inverse, sides, value, counts, 0);
    }
}

static void keep_event(Scratch *s, int32_t row, int64_t k, int32_t rest) {
    if (s->found == s->room) {
        Event *const more = realloc(s->events, 2 * (s->room + 512) * sizeof *more);
        if (!more) {
            s->short_of_memory = 1;
            return;
        }
        s->events = more;
        s->room = 2 * (s->room + 512);
    }
    s->events[s->found++] = (Event){k, row, rest};
}

/* Puts n 16-bit counts as inputs from k on into a row of bytes or of 16-bit numbers; large ones become events. */
static void narrow(const int16_t *from, int64_t n, int64_t k, int32_t row, uint8_t *to, const Path *path, int32_t low,
                   Scratch *scratch) {
    const int words = path->bytes == 2;
    const int16_t least = words ? -INT16_MAX : low, most = words ? INT16_MAX : low + 255;
    const int16_t base = words ? 0 : low + (path->is_signed ? 128 : 0);
    for (int64_t start = 0; start < n; start += PIECE_OF_ROW) {
        const int64_t m = n - start < PIECE_OF_ROW ? n - start : PIECE_OF_ROW;
        const int16_t *const piece = from + start;
        int16_t other = 0;
        if (words) {
            int16_t *const place = (int16_t *)to + k + start;
#pragma omp simd reduction(| : other)
            for (int64_t i = 0; i < m; i++) {
                const int16_t held = piece[i] < least ? least : piece[i];
                place[i] = held;
                other |= held ^ piece[i];
            }
        } else {
            uint8_t *const place = to + k + start;
#pragma omp simd reduction(| : other)
            for (int64_t i = 0; i < m; i++) {
                const int16_t above = piece[i] < least ? least : piece[i], held = above > most ? most : above;
                place[i] = (uint8_t)(int16_t)(held - base);
                other |= held ^ piece[i];
            }
        }
        if (!other) continue;
        for (int64_t i = 0; i < m; i++) {
            const int32_t count = piece[i];
            if (count == NOT_A_NUMBER) {
                scratch->nan[row] = 1;
            } else if (count < least || count > most) {
                keep_event(scratch, row, k + start + i, count - (count < least ? least : most));
            }
        }
    }
}

/* One row of counts: of a linear map it is fired here, of a convolution it is gathered from images that have fired. */
static void fill(const Source *s, const int16_t *images, int64_t r, int32_t row, uint8_t *to, const Path *path,
                 int32_t low, Scratch *scratch) {
    if (!images) {
        const float inverse = s->gain ? 1.0f / s->gain[r % s->gains] : 1.0f;
        fire_row(s->x + r * s->inputs, s->inputs, *s, inverse, scratch->value, scratch->counts);
        narrow(scratch->counts, s->inputs, 0, row, to, path, low, scratch);
        return;
    }
    const int64_t depth = s->inputs;
    const int64_t places = s->places_down * s->places_right, image = r / places, place = r % places;
    const int64_t top = place / s->places_right * s->step_down, left = place % s->places_right * s->step_right;
    int64_t k = 0;
    for (int64_t y = 0; y < s->kernel_height; y++) {
        const int16_t *const line = images + ((image * s->tall + top + y * s->apart_down) * s->wide + left) * depth;
        if (s->apart_right == 1) {
            narrow(line, s->kernel_width * depth, k, row, to, path, low, scratch);
            k += s->kernel_width * depth;
        } else {
            for (int64_t x = 0; x < s->kernel_width; x++, k += depth)
                narrow(line + x * s->apart_right * depth, depth, k, row, to, path, low, scratch);
        }
    }
}

/* What bytes could not hold of the rows of one tile. Events lie in the order of their rows. */
static void add_events(const Scratch *s, int64_t first, int64_t rows, const uint8_t *panel, const Path *path) {
    const int columns = path->columns;
    for (int64_t e = s->of_row[first]; e < s->of_row[first + rows]; e++) {
        const Event event = s->events[e];
        int32_t *const sums = s->sums + (event.row - first) * columns;
        if (path->bytes == 2) {
            const int16_t *const w = (const int16_t *)panel + event.k / 2 * 2 * columns + event.k % 2;
            for (int c = 0; c < columns; c++) sums[c] += event.rest * w[2 * c];
        } else {
            const int32_t *const w = (const int32_t *)panel + event.k / 4 * columns;
            const int shift = 24 - 8 * (int)(event.k % 4); /* the byte of this input, with its sign */
#pragma omp simd
            for (int c = 0; c < columns; c++) sums[c] += event.rest * ((int32_t)((uint32_t)w[c] << shift) >> 24);
        }
    }
}

INLINE void finish(const int32_t *sums, const float *scale, const float *bias, float gain, float nothing, float *out,
                   const int columns) {
#pragma omp simd
    for (int c = 0; c < columns; c++) out[c] = (float)sums[c] * scale[c] * gain + bias[c] + nothing;
}

#if defined(X86) && !defined(ONESPIKE_SIMDE)
/* The same past the cache: what follows reads the whole result, of which the cache would hold the last part only. */
TARGET("avx512f")
static void finish_past(const int32_t *sums, const float *scale, const float *bias, float gain, float nothing, float *out) {
    const __m512 more = _mm512_set1_ps(gain), none = _mm512_set1_ps(nothing);
    for (int c = 0; c < 32; c += 16) {
        const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(LOAD512(sums + c)), _mm512_loadu_ps(scale + c));
        const __m512 sum = _mm512_add_ps(_mm512_mul_ps(value, more), _mm512_loadu_ps(bias + c));
        _mm512_stream_ps(out + c, _mm512_add_ps(sum, none));
    }
}
#else
#define finish_past(sums, scale, bias, gain, nothing, out) finish(sums, scale, bias, gain, nothing, out, 32)
#endif

static void block(const Product *p, const Source *source, const int16_t *images, int64_t first, int64_t rows,
                  int64_t groups, Scratch *s) {
    const Path *const path = &PATH[p->path];
    const int columns = path->columns, high = path->rows;
    const int64_t stride = 4 * groups, all = (rows + high - 1) / high * high;
    const int32_t base = path->bytes == 2 ? 0 : p->low + (path->is_signed ? 128 : 0);
    s->found = 0;
    memset(s->nan, 0, rows);
    memset(s->fired + rows * stride, 0, (all - rows) * stride);
    for (int64_t r = 0; r < rows; r++) {
        memset(s->fired + (r + 1) * stride - 4, 0, 4); /* a last group may not be full */
        s->of_row[r] = s->found;
        fill(source, images, first + r, (int32_t)r, s->fired + r * stride, path, p->low, s);
    }
    s->of_row[rows] = s->found;
    for (int64_t start = 0; start < p->outputs; start += columns) {
        const int64_t here = p->outputs - start < columns ? p->outputs - start : columns;
        const uint8_t *const panel = p->weights + start * stride;
        float scale[32] = {0}, bias[32] = {0}, result[32];
        int32_t begin[32] = {0};
        for (int64_t c = 0; c < here; c++) {
            scale[c] = p->scale[start + c] * *p->factor;
            begin[c] = base * p->total[start + c];
            if (p->bias) bias[c] = p->bias[start + c];
        }
        for (int64_t r = 0; r < rows; r += high) { /* sums of one tile stay in the nearest cache */
            const int64_t m = rows - r < high ? rows - r : high;
            for (int64_t i = 0; i < high; i++) memcpy(s->sums + i * columns, begin, columns * sizeof *begin);
            const uint8_t *const counts = s->fired + r * stride;
            if (m > high / 3) {
                path->tile(counts, stride, panel, groups, s->sums);
            } else {
                for (int64_t i = 0; i < m; i++)
                    path->one(counts + i * stride, stride, panel, groups, s->sums + i * columns);
            }
            if (s->found) add_events(s, r, m, panel, path);
            for (int64_t i = 0; i < m; i++) {
                const int64_t row = first + r + i;
                const float gain = source->gain ? source->gain[row % source->gains] : 1.0f;
                float *const out = p->out + row * p->outputs + start;
                float *const to = here == columns ? out : result;
                if (p->bias && p->biases > 1)
                    memcpy(bias, p->bias + row % p->biases * p->outputs + start, here * sizeof *bias);
                const float nothing = s->nan[r + i] ? NAN : 0.0f;
                if (columns == 32 && (uintptr_t)to % 64 == 0) {
                    finish_past(s->sums + i * columns, scale, bias, gain, nothing, to);
                } else if (columns == 32) {
                    finish(s->sums + i * columns, scale, bias, gain, nothing, to, 32);
                } else {
                    finish(s->sums + i * columns, scale, bias, gain, nothing, to, 16);
                }
                if (to != out) memcpy(out, to, here * sizeof *out);
            }
        }
    }
}

/* A row of constants, one for each of n inputs, as often as a line of an image has places. */
static float *along_line(const float **from, int64_t n, int64_t places, float *to) {
    if (!*from) return to;
    for (int64_t i = 0; i < places; i++) memcpy(to + i * n, *from, n * sizeof *to);
    *from = to;
    return to + n * places;
}

/* Images fire once, into 16-bit counts with zeros around them: a line is one run. */
static int fire_images(const Source *images_of, int64_t images, int16_t *to, int32_t threads) {
    Source s = *images_of;
    const int64_t depth = s.inputs, line = s.wide * depth, n = s.width * depth;
    float *const memory = malloc((threads + 5) * n * sizeof *memory);
    if (!memory) return 1;
    float *room = along_line(&s.center, depth, s.width, memory + threads * n);
    if (s.each) {
        room = along_line(&s.up, depth, s.width, room), room = along_line(&s.down, depth, s.width, room);
        room = along_line(&s.times_up, depth, s.width, room), along_line(&s.times_down, depth, s.width, room);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t y = 0; y < images * s.tall; y++) {
        const int64_t image = y / s.tall, from = y % s.tall - s.pad_top;
        memset(to + y * line, 0, line * sizeof *to);
        if (from < 0 || from >= s.height) continue;
        const float *const x = s.x + (image * s.height + from) * n;
        fire_row(x, n, s, 1.0f, memory + THREAD * n, to + y * line + s.pad_left * depth);
    }
    free(memory);
    return 0;
}

static int multiply(const Product *p, const Source *source, const int16_t *images, int32_t threads) {
    const Path *const path = &PATH[p->path];
    const int64_t rows = source->rows, high = path->rows, groups = (p->inputs * path->bytes + 3) / 4;
    /* blocks of whole tiles that fit the cache, as many for each thread and of one size */
    const int64_t share = (rows + threads - 1) / threads;
    const int64_t fit = CACHED / (4 * groups) > high ? CACHED / (4 * groups) : high;
    const int64_t parts = threads * ((share + fit - 1) / fit);
    const int64_t most = ((rows + parts - 1) / parts + high - 1) / high * high, blocks = (rows + most - 1) / most;
    const size_t numbers = p->inputs * 6 + high * path->columns * 4 + most * (4 * groups + 9) + 8;
    const size_t each = (numbers + 255) / 64 * 64;
    char *const memory = malloc(threads * each);
    int failed = !memory;
    if (failed) return 1;
#pragma omp parallel num_threads(threads) reduction(| : failed) if (threads > 1)
    {
        Scratch s = {.of_row = (int64_t *)(memory + THREAD * each)};
        s.sums = (int32_t *)(s.of_row + most + 1);
        s.value = (float *)(s.sums + high * path->columns);
        s.fired = (uint8_t *)(s.value + p->inputs);
        s.counts = (int16_t *)(s.fired + most * 4 * groups);
        s.nan = (uint8_t *)(s.counts + p->inputs);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = b * most;
            block(p, source, images, first, rows - first < most ? rows - first : most, groups, &s);
        }
        failed |= s.short_of_memory;
        free(s.events);
    }
    free(memory);
    return failed;
}

/* out = scale·factor·gain·(counts·W) + bias. Returns 1 if a step that is on has vanished or memory is short: what is
 * written then is not to be used. */
int32_t onespike_product(const Product *p, const Source *given, int32_t threads) {
    Source s = *given;
    if ((isinf(s.most_up) && !(s.up[0] > 0)) || (isinf(s.most_down) && !(s.down[0] > 0))) return 1;
    if (!s.rows) return 0;
    const int64_t steps = s.each ? s.inputs : 1, images = s.height ? s.rows / (s.places_down * s.places_right) : 0;
    float *const sides = malloc(2 * steps * sizeof *sides);
    int16_t *const counts = images ? malloc(images * s.tall * s.wide * s.inputs * sizeof *counts) : NULL;
    int failed = !sides || (images && !counts);
    if (!failed && is_quick(s.form)) {
        on_or_infinite(s.up, steps, sides);
        on_or_infinite(s.down, steps, sides + steps);
        s.up = sides, s.down = memcmp(sides, sides + steps, steps * sizeof *sides) ? sides + steps : sides, s.quick = 1;
        /* what is equal is read once: a row and its constants fit the nearest cache */
        if (!memcmp(s.times_up, s.times_down, steps * sizeof *sides)) s.times_down = s.times_up;
    }
    failed = failed || (images && fire_images(&s, images, counts, threads)) || multiply(p, &s, counts, threads);
    free(sides);
    free(counts);
    return failed;
}

/* Whether a path can run here, and its layout: [rows, columns, bytes of one number]. */
int32_t onespike_path(int32_t path, int32_t *layout) {
    if (path < 0 || path >= PATHS || !PATH[path].tile || !has(path)) return 0;
    layout[0] = PATH[path].rows, layout[1] = PATH[path].columns, layout[2] = PATH[path].bytes;
    return 1;
}
