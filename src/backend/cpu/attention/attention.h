/* backend/cpu/attention/: attention over pages; the bits of a row do not depend on batch, cuts or threads.
 *
 * Keys are visited by absolute position in spans of ATTENTION_SPAN, a span page by page. Within a span a query keeps
 * (m, l, o): the largest score, the sum of exp(s − m), the sum of exp(s − m)·v; a page with largest score m' makes them
 * (M, l·e^(m−M) + Σ, o·e^(m−M) + Σv) with M = max(m, m'). Span results are merged in order. Pages and spans without a
 * visible key for a query are skipped, and so are keys that are not visible. So the result depends on the query's
 * position and the cache alone.
 *
 * A page of a layer, per kv head: K as [16 positions][head_dim][16], so that lanes are positions and no sum runs across
 * a register, then V as [position][value_dim rounded up to 16], elements of the layout's dtype, then
 * the energy of the queries of each key's row as f32 [position]. */
#pragma once
#include "backend/backend.h"

enum {
    ATTENTION_SPAN = 1024, /* a multiple of KV_PAGE_TOKENS: beginning and merging a span costs as much as half a page */
    ATTENTION_QUERIES = 48,           /* queries of one kv head that visit a page together */
    SHARED_FLOATS = INDEX_SCORES_MAX, /* floats of partial results of distributed spans, and of an indexer's scores */
    ATTENTION_FULL = 1,               /* some visible key lay in a full-precision page */
    ATTENTION_QUANTISED = 2,          /* some visible key lay in a quantised page */
};

static inline int attention_value_stride(int value_dim) { return (value_dim + 15) / 16 * 16; }
static inline size_t attention_key_bytes(const KvLayout *l) {
    return (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim * dtype_bytes(l->dtype);
}
static inline size_t attention_energy_offset(const KvLayout *l) {
    return attention_key_bytes(l) +
        (size_t)KV_PAGE_TOKENS * (size_t)attention_value_stride(l->value_dim) * dtype_bytes(l->dtype);
}
static inline size_t attention_head_bytes(const KvLayout *l) {
    return attention_energy_offset(l) + KV_PAGE_TOKENS * sizeof(float);
}
static inline float *attention_energies(const KvLayout *l, uint8_t *head) {
    return (float *)(void *)(head + attention_energy_offset(l));
}
/* A kv head's data in a page. */
static inline uint8_t *attention_head(const KvLayer *kv, int32_t page, int kv_head) {
    CHECK(page >= 0);
    return kv->base + (size_t)page * kv->page_stride + kv->layer_offset +
        (size_t)kv_head * attention_head_bytes(&kv->layout);
}

/* Queries of one kv head that visit pages together. Query i sees positions first[i] ≤ j < last[i]; neither decreases
 * with i. */
typedef struct AttentionTile {
    int queries, head_dim, value_stride;
    DType dtype;
    float softcap;
    const float *slopes; /* [heads] ALiBi; NULL: none */
    float slopes_bf16;
    int heads[ATTENTION_QUERIES],
        positions[ATTENTION_QUERIES]; /* heads and positions of the queries, read where there are slopes */
    int base;                         /* position of the first token of the page */
    const float *q;                   /* as packed by attention_pack */
    int first[ATTENTION_QUERIES], last[ATTENTION_QUERIES];
    float m[ATTENTION_QUERIES], l[ATTENTION_QUERIES];
    int kinds[ATTENTION_QUERIES]; /* bits ATTENTION_FULL, ATTENTION_QUANTISED: the kinds of pages visited, a function of
                                     the positions */
    const float
        *latent; /* [queries][value_stride] MLA: its products with the values are added to the scores; NULL: none */
    const KeyMask *reads; /* [queries] keys of the page that a query reads, of those visible; NULL: all */
    float *o;             /* [queries][value_stride] */
    float *quantised;     /* like o, for quantised values, in their rotated space; NULL: no quantised page is visible */
} AttentionTile;

typedef struct ScanKernels ScanKernels; /* scan.h */

typedef struct AttentionKernels {
    /* Queries in the order that page() reads them: [head_dim][queries of a register tile], tile after tile. */
    void (*pack)(int queries, int head_dim, const float *const *q, float *out);
    /* Processes one page: k and v of the kv head; base: position of its first token. next: the page after, or k. */
    void (*page)(AttentionTile *tile, const uint8_t *k, const uint8_t *v, const uint8_t *next, int base);
    /* out = total·a + part·b */
    void (*mix)(int count, float *total, float a, const float *part, float b);
    /* Rotates a head by cos and sin [dims/2], times Rope.scale. */
    void (*rotate)(const Rope *rope, const float *cosines, const float *sines, float *head);
    /* Scores of the keys of one page for IndexSelect, of a row whose heads are rotated: scores[head · stride + position
     * in the page], with weights one for all heads. */
    void (*index_page)(const IndexSelect *op, int row, const uint8_t *k, int64_t stride, float *scores);
    void (*to_f16)(const float *x, int count, uint16_t *out);
    float (*square)(const float *x, int count); /* Σ x² */
    const ScanKernels *scan;
} AttentionKernels;

/* The operation, and the bytes it needs besides the step's scratch. */
typedef struct CpuBackend CpuBackend;
size_t attention_thread_bytes(void);
size_t attention_shared_bytes(void);
size_t attention_turns_bytes(void);
void cpu_attention(Backend *backend, const Attention *op);
void cpu_index_select(Backend *backend, const IndexSelect *op); /* index_select.c */
/* Numbers of the top_k largest of `count` scores, ascending, then −1; of equal scores the lower number. */
void index_best(const float *scores, int count, int top_k, int32_t *chosen);
bool cpu_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out);
bool cpu_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from);
size_t cpu_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values);
void cpu_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations);
void cpu_kv_quantise(Backend *backend, int count, const KvQuantise *pages);
