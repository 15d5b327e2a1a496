#include "media/mel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 128 };

static const double pi = 3.14159265358979323846;

const MelRule mel_gemma4 = {.frame = 320,
    .hop = 160,
    .fft = 512,
    .bins = 128,
    .left = 160,
    .low_hz = 0,
    .high_hz = 8000,
    .floor = 1e-3,
    .floor_added = true,
    .real_only = true};
const MelRule mel_gemma3n = {.frame = 512,
    .hop = 160,
    .fft = 1024,
    .bins = 128,
    .low_hz = 125,
    .high_hz = 7600,
    .preemphasis = 0.97F, /* the reference's is that f32 */
    .floor = 1e-5};

int mel_frames(const MelRule *rule, int samples) {
    const int64_t padded = rule->real_only ? samples : ((int64_t)samples + PADDING - 1) / PADDING * PADDING;
    const int64_t behind = rule->left + padded - rule->frame - 1; /* the references read one sample more than a frame */
    return behind < 0 ? 0 : (int)(behind / rule->hop) + 1;
}

/* ---- spectrum ---- */

typedef struct Complex {
    double re, im;
} Complex;

/* In place; size: a power of two; roots[k] = e^(−2πik/size), k < size / 2. */
static void transform(Complex *x, int size, const Complex *roots) {
    for (int i = 1, j = 0; i < size; i++) {
        int bit = size >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i >= j) continue;
        const Complex swap = x[i];
        x[i] = x[j];
        x[j] = swap;
    }
    for (int half = 1; half < size; half *= 2)
        for (int begin = 0; begin < size; begin += 2 * half)
            for (int k = 0; k < half; k++) {
                const Complex r = roots[k * (size / (2 * half))], b = x[begin + half + k], a = x[begin + k];
                const Complex turned = {b.re * r.re - b.im * r.im, b.re * r.im + b.im * r.re};
                x[begin + k] = (Complex){a.re + turned.re, a.im + turned.im};
                x[begin + half + k] = (Complex){a.re - turned.re, a.im - turned.im};
            }
}

/* ---- filters ---- */

static double mel_of(double hz) { return 2595 * log10(1 + hz / 700); }
static double hz_of(double mel) { return 700 * (pow(10, mel / 2595) - 1); }

/* Corner `i` of the filters: number m rises from corner m to m + 1 and falls to m + 2. */
static double corner_hz(const MelRule *rule, int i) {
    const double low = mel_of(rule->low_hz), high = mel_of(rule->high_hz);
    return hz_of(low + (high - low) * i / (rule->bins + 1));
}

typedef struct Tables {
    double *window;    /* [frame] */
    double *filters;   /* [bins][fft / 2 + 1] */
    int *first, *last; /* [bins] the part of a filter that is not 0: first ≤ f < last */
    double *magnitude; /* [fft / 2 + 1] */
    Complex *roots;    /* [fft / 2] */
    Complex *x;        /* [fft] */
} Tables;

static void fill_filters(const MelRule *rule, const Tables *t) {
    const int lines = rule->fft / 2 + 1;
    for (int m = 0; m < rule->bins; m++) {
        const double left = corner_hz(rule, m), top = corner_hz(rule, m + 1), right = corner_hz(rule, m + 2);
        t->first[m] = lines;
        t->last[m] = 0;
        for (int f = 0; f < lines; f++) {
            const double hz = 16000.0 * f / rule->fft;
            const double weight = fmax(0, fmin((hz - left) / (top - left), (right - hz) / (right - top)));
            t->filters[m * lines + f] = weight;
            if (weight == 0) continue;
            if (t->first[m] == lines) t->first[m] = f;
            t->last[m] = f + 1;
        }
    }
}

static void close_tables(Tables *t) {
    free(t->window);
    free(t->filters);
    free(t->first);
    free(t->last);
    free(t->magnitude);
    free(t->roots);
    free(t->x);
}

static bool open_tables(const MelRule *rule, Tables *t, Error *error) {
    const size_t lines = (size_t)rule->fft / 2 + 1, bins = (size_t)rule->bins;
    *t = (Tables){.window = malloc((size_t)rule->frame * sizeof *t->window),
        .filters = malloc(bins * lines * sizeof *t->filters),
        .first = malloc(bins * sizeof *t->first),
        .last = malloc(bins * sizeof *t->last),
        .magnitude = malloc(lines * sizeof *t->magnitude),
        .roots = malloc(lines * sizeof *t->roots),
        .x = malloc((size_t)rule->fft * sizeof *t->x)};
    if (!t->window || !t->filters || !t->first || !t->last || !t->magnitude || !t->roots || !t->x) {
        close_tables(t);
        return fail(error, ERROR_MEMORY, "no memory for a spectrogram");
    }
    for (int i = 0; i < rule->frame; i++) t->window[i] = (float)(0.5 - 0.5 * cos(2 * pi * i / rule->frame));
    for (int k = 0; k < rule->fft / 2; k++)
        t->roots[k] = (Complex){cos(2 * pi * k / rule->fft), -sin(2 * pi * k / rule->fft)};
    fill_filters(rule, t);
    return true;
}

/* ---- frames ---- */

static double sample_at(const float *samples, int count, int at) { return at >= 0 && at < count ? samples[at] : 0; }

static void window_frame(const MelRule *rule, const Tables *t, const float *samples, int count, int begin) {
    for (int i = 0; i < rule->frame; i++) {
        const double x = sample_at(samples, count, begin + i);
        const double before = i ? sample_at(samples, count, begin + i - 1) : x;
        t->x[i] = (Complex){(x - rule->preemphasis * before) * t->window[i], 0};
    }
    memset(t->x + rule->frame, 0, (size_t)(rule->fft - rule->frame) * sizeof *t->x);
}

bool mel_compute(const MelRule *rule, const float *samples, int count, float *out, Error *error) {
    Tables t;
    const int frames = mel_frames(rule, count), lines = rule->fft / 2 + 1;
    if (!open_tables(rule, &t, error)) return false;
    for (int frame = 0; frame < frames; frame++) {
        window_frame(rule, &t, samples, count, frame * rule->hop - rule->left);
        transform(t.x, rule->fft, t.roots);
        for (int f = 0; f < lines; f++) t.magnitude[f] = sqrt(t.x[f].re * t.x[f].re + t.x[f].im * t.x[f].im);
        for (int m = 0; m < rule->bins; m++) {
            double sum = 0;
            for (int f = t.first[m]; f < t.last[m]; f++) sum += t.filters[m * lines + f] * t.magnitude[f];
            *out++ = (float)log(rule->floor_added ? sum + rule->floor : fmax(sum, rule->floor));
        }
    }
    close_tables(&t);
    return true;
}
