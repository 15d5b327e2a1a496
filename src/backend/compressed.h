/* Operations of attention to compressed keys, and of hyper-connections (DeepSeek-V4; transformers/models/deepseek_v4,
 * mHC: arXiv 2512.24880).
 *
 * Rows. A cache entry may hold plain f32 numbers of each position instead of keys and values: KvLayout with kv_heads 0
 * and no anchor. Its pages are [KV_PAGE_TOKENS, row_bytes / 4] on every backend.
 *
 * Compressed keys. Each window of `rate` positions has one key for all heads, which is its value as well. An entry
 * holds them as rows of width / rate numbers, so that a key lies in the rows of its window, and a page holds as many
 * keys as it has whole windows. Key i exists for rows from position (i + 1) · rate − 1 on. Rows, chunks, positions and
 * page tables are those of the step. What a row computes depends on the rows up to it alone. */
#pragma once
#include "backend/backend.h"

/* Address arithmetic only. */
static inline float *cache_row(const KvLayer *kv, const SequenceChunk *chunk, int position) {
    const int32_t page = chunk->tables[kv->group][position / KV_PAGE_TOKENS];
    CHECK(page >= 0);
    return (float *)(void *)(kv->base + (size_t)page * kv->page_stride + kv->layer_offset +
        (size_t)(position % KV_PAGE_TOKENS) * kv->layout.row_bytes);
}

/* Keys that a row at this position sees. */
static inline int compressed_keys(int rate, int position) { return (position + 1) / rate; }

/* Keeps values and gates of each row and, at the last position of a window, computes its key: norm(Σ softmax(gate +
 * position_bias) ∘ value), a softmax of each element over the positions, rotated by the window's first position. With
 * `overlap` values and gates have two parts, and a key is over 2 · rate positions: the first parts of the window before
 * its own, if there is one, and the second parts of its own. */
struct Compression {
    KvLayer state; /* rows of all values, then all gates */
    KvLayer keys;
    int rows, rate, width; /* rate: a divisor of KV_PAGE_TOKENS and of width */
    bool overlap;
    const float *position_bias;  /* [rate, parts · width], bound */
    const Norm *norm;            /* [width]; NULL: none */
    const Rope *rope;            /* rotates the last rope->dims elements of a key */
    const float *values, *gates; /* [rows, parts · width] */
};
static inline int64_t compression_width(const Compression *op) { return (int64_t)(op->overlap ? 2 : 1) * op->width; }

/* Chooses the best compressed keys for each row: Σ_h weight[h] · max(0, q_h · key), where the end of q_h is rotated by
 * the row's position; of equal scores the lower key. */
struct CompressedSelect {
    KvLayer keys;
    int rows, rate, width, heads, top_k;
    bool tail; /* behind the chosen ones lies the window of the row's own position, if it is not whole */
    const Rope *rope;
    float *q;             /* [rows, heads · width], may be overwritten */
    const float *weights; /* [rows, heads] */
    float *work;          /* [rows, 2 · top_k] */
    int32_t *chosen;      /* [rows, compressed_chosen()] numbers of keys, ascending, then −1 */
};
static inline int compressed_chosen(const CompressedSelect *op) { return op->top_k + op->tail; }
/* The window that is not whole at a position; −1: it is. */
static inline int compressed_tail(int rate, int position) { return (position + 1) % rate ? (position + 1) / rate : -1; }

/* Attention of all heads to one key for each position of a window and to compressed keys, which are the values as well.
 * The ends of queries and keys are rotated by their positions, and that of the result back by the row's. Row r of heads
 * of group g is at out[g, r, heads / groups · width]. */
struct CompressedAttention {
    KvLayer latest; /* rows of keys */
    KvLayer keys;   /* undefined if rate is 0 */
    int rows, heads, width, window, groups;
    int rate;              /* 0: there are no compressed keys */
    int top_k;             /* numbers in `chosen` */
    const int32_t *chosen; /* [rows, top_k]; NULL: all that a row sees */
    float scale;           /* multiplies q·k */
    const Norm *q_norm, *k_norm;
    const Rope *rope;
    const float *sinks; /* [heads] extra logit in the denominator */
    float *q, *k;       /* [rows, heads · width], [rows, width]; may be overwritten */
    float *out;         /* [groups, rows, heads / groups · width] */
};

/* out[r, g · width + i] = x[g, r, i], or x[r, i] */
struct GroupJoin {
    int rows, groups;
    int64_t width;
    bool repeated; /* x is [rows, width], the same for all groups */
    const float *x;
    float *out;
};

/* Manifold-constrained hyper-connections: the residual is `streams` streams. With the logits l of a row, scaled and
 * shifted: pre = σ(l[0 … n)) + eps, post = 2·σ(l[n … 2n)), mix = the doubly stochastic matrix that `iterations` of
 * Sinkhorn and Knopp make of softmax(l[2n + n·i …) over j) + eps. Independent ones (iHC): post = magnitude·σ(l[n … 2n))
 * + eps, and mix is the identity.
 *     y NULL: out = Σ pre_i · x_i
 *     else    x_j = post_j · y + Σ_i mix[i, j] · x_i */
struct HyperConnection {
    int rows, streams;
    int64_t width;
    int iterations;  /* 0: there are logits of pre alone, or of pre and post where they are independent */
    float magnitude; /* > 0: independent, with iterations 0 */
    float eps;
    float *x;            /* [rows, streams, width] */
    const float *logits; /* [rows, hyper_logits()] */
    const float *scale;  /* [hyper_scales()] of pre, post and mix; bound */
    const float *base;   /* added after that; as a row of logits; bound */
    const float *y;      /* [rows, width] */
    float *out;          /* [rows, width] */
};
static inline int hyper_scales(int iterations, float magnitude) { return iterations ? 3 : magnitude > 0 ? 2 : 1; }
static inline int64_t hyper_logits(int streams, int iterations, float magnitude) {
    return iterations ? (int64_t)streams * (streams + 2) : (int64_t)streams * hyper_scales(0, magnitude);
}
