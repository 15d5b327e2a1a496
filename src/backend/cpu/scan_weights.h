/* From scores of a page to weights for its values: exponentials in powers of two, rounded to bytes. */
#pragma once
#include "backend/cpu/scan_int.h"

enum { TOKENS = KV_PAGE_TOKENS, LANES = 16, TOKEN_BLOCKS = TOKENS / LANES, TOKEN_QUADS = TOKENS / 4 };
static const float LEAST_SCALE = 0x1p-24f; /* of f16: what a scale of 0 counts as, for its logarithm */
static const float TO_TWO = SCAN_TO_TWO;

/* log₂ x to 2e-5 for normal x > 0, exact for powers of two. */
VEC_INLINE Vec vec_log2(Vec x) {
    Vec y, exponent = vec_exponent(x, &y);
    y = vec_sub(y, vec_set(1));
    Vec p = vec_set(0.0451490618f);
    p = vec_fma(p, y, vec_set(-0.19357574f));
    p = vec_fma(p, y, vec_set(0.415606081f));
    p = vec_fma(p, y, vec_set(-0.709096432f));
    p = vec_fma(p, y, vec_set(1.44191706f));
    return vec_fma(p, y, exponent);
}

/* Logarithms of the values' scales, and what makes scores of the first group's weights again. */
static void take_logs(const ScanForm *f, const uint8_t *page, ScanWork *work) {
    for (int g = 0; g < f->layout.groups; g++)
        for (int t = 0; t < TOKENS; t += LANES) {
            const size_t at = (size_t)(g * TOKENS + t);
            const Vec scale = vec_max(vec_load_f16(page + f->layout.scale + 2 * at), vec_set(LEAST_SCALE));
            if (g == 0) vec_store(work->inverse + t, vec_div(vec_set(1), scale));
            vec_store(work->logs + at, vec_log2(scale));
        }
}

/* 2ˣ to 1e-4 for x < 127, exact for whole x. */
VEC_INLINE Vec power_of_two(Vec x) {
    Vec n;
    const Vec r = vec_fraction(x, &n);
    Vec p = vec_set(0.0782679692f);
    p = vec_fma(p, r, vec_set(0.226307675f));
    p = vec_fma(p, r, vec_set(0.695424318f));
    p = vec_fma(p, r, vec_set(1));
    return vec_raise(p, n);
}

/* Bytes of 2^(p − less), each the step that the running sum over a lane's tokens takes when it is rounded. */
VEC_INLINE void round_weights(const float *p, float less, const float *inverse, uint8_t *bytes, float *l, float *half) {
    const Vec one = vec_set(1), down = vec_set(-less);
    Vec exact = vec_set(0), sum = vec_set(0);
    Wholes before = wholes_of(exact);
    for (int t = 0; t < TOKENS; t += 4 * LANES) {
        Wholes steps[4];
        for (int i = 0; i < 4; i++) {
            const int at = t + i * LANES;
            const Vec weight = power_of_two(vec_fma(vec_load(p + at), one, down)); /* where adding is busier */
            sum = vec_fma(weight, vec_load(inverse + at), sum);
            exact = vec_add(exact, weight);
            const Wholes now = wholes_of(exact);
            steps[i] = wholes_less(now, before);
            before = now;
        }
        wholes_store_bytes(bytes + t, steps);
    }
    *l = vec_sum(sum);
    *half = 0.5f * vec_sum(vec_of_wholes(before));
}

/* From the logarithms of a query's weights in one group to those in the next. */
VEC_INLINE float next_group(const float *logs, float *p) {
    Vec most = vec_set(-INFINITY);
    for (int t = 0; t < TOKENS; t += LANES) {
        const Vec log = vec_add(vec_load(p + t), vec_sub(vec_load(logs + TOKENS + t), vec_load(logs + t)));
        most = vec_max(most, log);
        vec_store(p + t, log);
    }
    return vec_most(most);
}

static void weigh_query(int i, ScanWork *work) {
    const ScanForm *f = work->values;
    const int groups = f->layout.groups;
    ScanWeights *w = &work->weights;
    float *p = work->p + i * TOKENS, most = work->most[i], l;
    for (int g = 0; g < groups; g++) {
        if (g > 0) most = next_group(work->logs + (g - 1) * TOKENS, p);
        const float less = w->log[g][i] = most - weight_log(f->form);
        round_weights(p, less, work->inverse, w->bytes + (i * groups + g) * TOKENS, &l, &w->half[g][i]);
        if (g == 0) work->sum[i] = l;
    }
}

/* Weights of queries before number `end`. */
static void weigh_until(ScanWork *work, int end) {
    for (; work->weighed < end; work->weighed++) weigh_query(work->weighed, work);
}

static void scan_weigh(ScanWork *work) { weigh_until(work, work->count); }
