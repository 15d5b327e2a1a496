/* Operations of layers that keep a recurrent state: causal short convolution, recurrences with a matrix state (gated
 * delta rule, Mamba-2, lightning attention), Mamba-1 and RG-LRU; and the gated norm that follows them.
 *
 * Anchors. Pages have RECURRENT_PAGE_TOKENS positions (KvLayer.page_tokens). A page holds an anchor, which is the state
 * before its first position, and a tail, which is one row for each of its positions. Every token, of a prompt or of an
 * answer, is computed from the anchor and the tail, with sums over the tail in ascending order: bits do not depend on
 * where a step begins or ends. What is read and written when is the contract of cache/cache_spec.h.
 *
 * Layout of a page, on every backend: the anchor, f32 [anchor_bytes / 4], then the tail, f32 [page_tokens, row_bytes /
 * 4]. A component may give parts of both to several operations (RecurrentPart): the state of a recurrence first, the
 * inputs of the convolution behind it.
 *
 * State before a text: zero. Rows, chunks, positions and page tables are those of the step. Widths are in floats.
 * Sources: Gated Delta Networks (arXiv 2412.06464), Kimi Linear (2510.26692), Mamba-2 (2405.21060), lightning attention
 * (2401.04658), Mamba (2312.00752), Griffin (2402.19427). */
#pragma once
#include "backend/backend.h"

enum {
    RECURRENT_PAGE_TOKENS = 32,
    RECURRENT_DIM_MAX = 256, /* largest key_dim and value_dim of a recurrence, and largest state of Mamba-1 */
    CONV_TAPS_MAX = 8,
    CONV_PARTS_MAX = 3,
    RG_LRU_UNIT = 16,
    MAMBA_SLICE_TOKENS = 8, /* rows of a page that share one stored state; a divisor of RECURRENT_PAGE_TOKENS */
};

/* The part of a page that belongs to one operation. */
typedef struct RecurrentPart {
    KvLayer kv;
    int64_t anchor_at; /* offset in the anchor */
    int64_t row_at;    /* offset in a row of the tail */
} RecurrentPart;

/* Its floats in a page, at the anchor or at a row. Address arithmetic only. */
static inline float *recurrent_page(const KvLayer *kv, int32_t page) {
    CHECK(page >= 0);
    return (float *)(void *)(kv->base + (size_t)page * kv->page_stride + kv->layer_offset);
}
static inline float *recurrent_anchor(const RecurrentPart *place, int32_t page) {
    return recurrent_page(&place->kv, page) + place->anchor_at;
}
static inline float *recurrent_row(const RecurrentPart *place, int32_t page, int row) {
    const KvLayout *l = &place->kv.layout;
    return recurrent_page(&place->kv, page) + (l->anchor_bytes + (size_t)row * l->row_bytes) / sizeof(float) +
        place->row_at;
}

/* ---- causal short convolution ---- */

/* Channels with one input and one result. */
typedef struct ConvPart {
    int64_t channels;
    const float *weight; /* [channels, taps], bound; the last tap multiplies the row's own input */
    const float *bias;   /* [channels], bound; NULL: none */
    const float *x;      /* [rows, channels] */
    float *out;          /* [rows, channels]; not x */
} ConvPart;

/* out[t] = act(bias + Σ_i weight[i] · in[t − taps + 1 + i]) for each channel, summed from the oldest input on; in = x,
 * or in_gate ∘ x. The result is multiplied by out_gate. The anchor has the last taps − 1 inputs before the page, a row
 * of the tail the input of its position; in both the channels of all parts follow each other. */
typedef struct Conv {
    RecurrentPart place;
    int rows;
    int taps;
    bool silu; /* act is SiLU; otherwise the identity */
    int part_count;
    ConvPart part[CONV_PARTS_MAX];
    const float *in_gate, *out_gate; /* [rows, channels]; NULL: none. Only with one part */
} Conv;
int64_t conv_channels(const Conv *op); /* sum over the parts */
int64_t conv_anchor_width(const Conv *op);
int64_t conv_row_width(const Conv *op);

/* ---- recurrences with a matrix state ---- */

typedef enum RecurrenceKind {
    RECURRENCE_DELTA, /* gated delta rule */
    RECURRENCE_SSD,   /* Mamba-2, lightning attention */
} RecurrenceKind;

/* For each value head, S [key_dim, value_dim], decay w and time step dt of the row:
 *     w = exp(rate · dt), dt = clip(softplus(dt_scale · a + dt_bias)), σ(dt_slope · (a + dt_bias)) or 1
 *     DELTA  S = w·S; u = β·(v − Sᵀk), β = σ(b) or 1; S += k uᵀ; y = Sᵀq
 *     SSD    S = w·S;  u = dt·v;                      S += k uᵀ; y = Sᵀq + skip·v
 * where q and k of a key head are normalised, rotated and scaled first. Value head h uses key head h / (value_heads /
 * key_heads). Computed from the anchor S0 and the tail, G = Σ log w since the anchor:
 *     Sᵀx = e^G · S0ᵀx + Σ_j e^{G − G_j} (k_j·x) u_j
 * With channel_decay G is a vector over the key: S0ᵀ(e^G ∘ x) + Σ_j ((e^{G − G_j} ∘ k_j)·x) u_j.
 * The anchor is S [value_heads, key_dim, value_dim]; a row of the tail is log w [value_heads, or value_heads · key_dim
 * with channel_decay], k [key_heads, key_dim], u [value_heads, value_dim]. */
typedef struct Recurrence {
    RecurrenceKind kind;
    RecurrentPart place;
    int rows;
    int key_heads, value_heads;  /* value_heads is a multiple of key_heads */
    int key_dim, value_dim;      /* at most RECURRENT_DIM_MAX */
    bool tiled;                  /* value head h uses key head h % key_heads instead (llama.cpp's order of heads) */
    bool channel_decay;          /* DELTA with key_heads = value_heads: a decay per element of the key (KDA) */
    const Norm *q_norm, *k_norm; /* RMS over key_dim, before the rotation; NULL: none. An L2 norm x / √(Σx² + eps) is
                                    an RMS norm with eps / key_dim and a scale of key_dim^−½ */
    const Rope *rope;            /* NULL: none */
    float q_scale, k_scale;      /* multiply the normalised q and k */
    const float *rate;           /* [value_heads], bound, ≤ 0: −exp(A_log), −slope, or the smallest log w */
    const float *dt_bias;        /* as a; bound; NULL: none */
    const float *dt_slope;       /* [value_heads], bound, with channel_decay only: log w is bounded; NULL: it is not */
    float dt_scale;
    float dt_min, dt_max; /* limits of dt; 0 and INFINITY: none */
    const float *skip;    /* [value_heads], bound; NULL: none */
    float *q, *k;         /* [rows, key_heads · key_dim]; may be overwritten */
    const float *v;       /* [rows, value_heads · value_dim] */
    const float *a;       /* [rows, value_heads], with channel_decay [rows, value_heads · key_dim]; NULL: dt is 1 */
    const float *b;       /* [rows, value_heads]; DELTA only; NULL: β is 1 */
    float *work;          /* [rows · recurrence_width()] */
    float *out;           /* [rows, value_heads · value_dim] */
} Recurrence;
/* The key head that a value head uses. */
static inline int recurrence_key_head(const Recurrence *op, int head) {
    return op->tiled ? head % op->key_heads : head / (op->value_heads / op->key_heads);
}
int64_t recurrence_anchor_width(const Recurrence *op);
int64_t recurrence_row_width(const Recurrence *op);
int64_t recurrence_width(const Recurrence *op); /* floats of work per row */

/* ---- Mamba-1 ---- */

/* For each channel, with a state h of `state` elements: dt = softplus(dt), h = exp(rate · dt) ∘ h + (dt · x) · b,
 * y = Σ h ∘ c + skip · x. The recurrence is elementwise and sequential. The anchor is h [channels, state]; a row of the
 * tail is dt [channels], dt · x [channels], b [state], then a slice of h behind the last row of its slice: each
 * MAMBA_SLICE_TOKENS rows hold one state together, so that at most MAMBA_SLICE_TOKENS − 1 rows are computed again. */
typedef struct Mamba {
    RecurrentPart place;
    int rows;
    int64_t channels;   /* a multiple of MAMBA_SLICE_TOKENS */
    int state;          /* at most RECURRENT_DIM_MAX */
    const float *rate;  /* [channels, state], bound, ≤ 0: −exp(A_log) */
    const float *skip;  /* [channels], bound */
    const float *x;     /* [rows, channels] */
    const float *dt;    /* [rows, channels] before softplus, its bias added */
    const float *b, *c; /* [rows, state] */
    float *out;         /* [rows, channels] */
} Mamba;
int64_t mamba_anchor_width(const Mamba *op);
int64_t mamba_row_width(const Mamba *op);

/* ---- RG-LRU ---- */

/* Real-gated linear recurrent unit. For each channel, with a state h of one number: a = exp(rate · σ(decay_gate of x)),
 * h = a · h + √(1 − a²) · σ(input_gate of x) · x, at position 0 without the root; the result is h. A gate is a matrix
 * for each head [heads, channels / heads, channels / heads], whose rows belong to inputs, and a bias [channels], bound.
 * A row of the tail is h behind it [channels]; the anchor has nothing. */
typedef struct RgLru {
    RecurrentPart place;
    int rows;
    int64_t channels;
    int heads;         /* channels / heads is a multiple of RG_LRU_UNIT */
    const float *rate; /* [channels], bound, ≤ 0 */
    const float *decay_gate, *decay_bias, *input_gate, *input_bias;
    const float *x; /* [rows, channels] */
    float *out;     /* [rows, channels]; not x */
} RgLru;
static inline int64_t rg_lru_row_width(const RgLru *op) { return op->channels; }

/* ---- gated norm ---- */

typedef enum GateKind { GATE_NONE, GATE_SILU, GATE_SIGMOID } GateKind;

/* out = norm(x) ∘ act(gate_scale · gate), or norm(x ∘ act(…)) with gate_first. The norm is an RMS norm of each group of
 * a row. */
typedef struct GatedNorm {
    int rows;
    int64_t width;       /* elements of a row */
    int64_t group;       /* elements of a group, a divisor of width; 0: no norm */
    float eps;           /* inside the square root */
    const float *weight; /* [width], bound; NULL: ones */
    GateKind gate_kind;
    bool gate_first;
    float gate_scale;
    const float *x;
    const float *gate; /* [rows, width]; NULL with GATE_NONE */
    float *out;        /* may be x */
} GatedNorm;

/* The three in turn: the recurrence reads the results of the convolution, which need not be left, and the norm those of
 * the recurrence. */
typedef struct RecurrentBlock {
    const Conv *conv;
    const Recurrence *recurrence;
    const GatedNorm *norm;
} RecurrentBlock;
