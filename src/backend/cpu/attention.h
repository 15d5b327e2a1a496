/* Attention over pages, the same bits however rows, runs and threads are cut.
 *
 * Keys are visited by absolute position in spans of ATTENTION_SPAN, a span page by page. Within a span a query keeps (m, l, o): the
 * largest score, the sum of exp(s − m), the sum of exp(s − m)·v; a page with largest score m' makes them
 * (M, l·e^(m−M) + Σ, o·e^(m−M) + Σv) with M = max(m, m'). Span results are merged in order. Pages and spans without a visible key
 * for a query are skipped. So the result depends on the query's position and the cache alone.
 *
 * A page of a layer, per kv head: K as [16 positions][head_dim][16] f16, so that lanes are positions and no sum runs across a
 * register, then V as [position][value_dim rounded up to 16] f16. */
#pragma once
#include "backend/backend.h"

enum {
    ATTENTION_SPAN = 512,
    ATTENTION_QUERIES = 64, /* of one kv head, that visit a page together */
    ATTENTION_VALUES = 512, /* largest value_dim */
    ATTENTION_KEYS = 512,   /* largest head_dim */
};

static inline int attention_value_stride(int value_dim) { return (value_dim + 15) / 16 * 16; }
static inline size_t attention_head_halfs(const KvLayout *l) {
    return (size_t)KV_PAGE_TOKENS * (size_t)(l->head_dim + attention_value_stride(l->value_dim));
}

/* Queries of one kv head that visit pages together. Per query: visible positions first ≤ j < last. */
typedef struct AttentionTile {
    int queries, head_dim, value_dim, value_stride;
    float softcap;
    const float *q; /* [queries][head_dim], scaled */
    int first[ATTENTION_QUERIES], last[ATTENTION_QUERIES];
    float *p;       /* [queries][KV_PAGE_TOKENS] work */
    float m[ATTENTION_QUERIES], l[ATTENTION_QUERIES];
    float *o;       /* [queries][value_stride] */
} AttentionTile;

/* Takes one page in: k and v of the kv head, base = position of the page's first token. */
typedef void AttentionPage(AttentionTile *tile, const uint16_t *k, const uint16_t *v, int base);
/* Norm excepted, what happens to a head before use: rotation by cos/sin [dims/2] times scale. */
typedef void RotateRow(const Rope *rope, const float *cosines, const float *sines, float *head);

/* The operation, and the memory it needs besides the step's scratch. */
typedef struct CpuBackend CpuBackend;
size_t attention_thread_bytes(void);
size_t attention_shared_bytes(void);
void cpu_attention(Backend *backend, const Attention *op);
