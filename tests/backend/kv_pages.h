/* Numbers for tests of coded pages, and what integer kernels must find in them. */
#pragma once
#include <math.h>

#include "backend/kv_quant.h"
#include "test.h"

enum { KV_DIM_MAX = 576, KV_NUMBERS_MAX = KV_PAGE_TOKENS * KV_DIM_MAX };

static const int kv_dims[] = {64, 80, 96, 112, 128, 160, 192, 256, 512, 576};

static inline float kv_gauss(uint64_t *state) { /* Box and Muller */
    const double u = (double)(test_random(state) >> 11) * 0x1p-53, v = (double)(test_random(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u + 0x1p-54)) * cos(6.283185307179586 * v));
}

/* [128][d] as pages' functions take it, [8][d][16]. */
static inline void kv_block(int d, const float *tokens, float *blocks) {
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < d; i++) blocks[(t / 16 * d + i) * 16 + t % 16] = tokens[t * d + i];
}

/* out [groups][128]: Σ q · value over a group's dims. */
static inline void kv_score_integers(int d, KvForm form, const uint8_t *page, const int8_t *q, int32_t *out) {
    const KvQuantLayout layout = kv_quant_layout(d, form, false);
    memset(out, 0, (size_t)(layout.groups * KV_PAGE_TOKENS) * sizeof *out);
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < d; i++)
            out[i / layout.group * KV_PAGE_TOKENS + t] +=
                q[i] * kv_codebook(form)[kv_quant_get(&layout, form, false, page, t, i)];
}

/* out [d]: Σ weight · value over `count` tokens from the first on. */
static inline void kv_value_integers(
    int d, KvForm form, const uint8_t *page, const int32_t *weights, int first, int count, int32_t *out) {
    const KvQuantLayout layout = kv_quant_layout(d, form, true);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int t = first; t < first + count; t++)
        for (int i = 0; i < d; i++)
            out[i] += weights[t] * kv_codebook(form)[kv_quant_get(&layout, form, true, page, t, i)];
}
