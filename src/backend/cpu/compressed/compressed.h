/* backend/cpu/compressed/: attention to compressed keys and hyper-connections (backend/compressed.h) of the vector
 * backends. compressed.c shares the work among threads; compressed_impl.h computes one item of it and is compiled once
 * per instruction set.
 *
 * Every sum has one order, which depends on the row alone: over the elements of a key in 16 lanes from the first to the
 * last, over keys from the first to the last, over an indexer's heads in 16 lanes. */
#pragma once
#include "backend/compressed.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/hyper.h"

enum {
    COMPRESSED_HEADS = 4,  /* heads of a tile */
    COMPRESSED_BLOCK = 32, /* keys whose scores are known before their values are added: two vectors */
};

/* Some heads of a row: a softmax whose largest score may still grow. */
typedef struct CompressedTile {
    int heads, width; /* heads: COMPRESSED_HEADS at most */
    float scale;      /* multiplies q·k */
    const float *q;   /* [heads, width] */
    float *out;       /* [heads, width] Σ e^(score − most) · value */
    float most[COMPRESSED_HEADS], sum[COMPRESSED_HEADS];
} CompressedTile;

/* A position of a key's softmax: its values and gates, and the bias of the gates; [width] each. */
typedef struct CompressedSlot {
    const float *value, *gate, *bias;
} CompressedSlot;

/* The indexer's heads of a row. */
typedef struct CompressedIndex {
    int heads, width;
    const float *q;       /* [width, heads rounded up to 16], then zeros */
    const float *weights; /* [heads] */
} CompressedIndex;
static inline int compressed_lanes(int heads) { return (heads + 15) / 16 * 16; }

struct CompressedKernels {
    /* key = Σ softmax(gate + bias) ∘ value over the slots, before its norm */
    void (*pool)(int width, const CompressedSlot *slots, int count, float *key);
    /* Rotates pairs at the end of a head, with cos and sin [dims / 2]; back: by the negative angles. */
    void (*rotate)(int dims, const float *cosines, const float *sines, bool back, float *end);
    /* Scores of `count` keys, which lie one after the other. */
    void (*score)(const CompressedIndex *index, const float *keys, int count, float *scores);
    /* Adds COMPRESSED_BLOCK keys at most. */
    void (*attend)(CompressedTile *tile, const float *const *keys, int count);
    /* x /= sum */
    void (*divide)(int width, float sum, float *x);
    /* One row of a HyperConnection. */
    void (*hyper)(const HyperConnection *op, const HyperWeights *weights, int64_t row);
};

void cpu_compress(Backend *, const Compression *);
void cpu_compressed_select(Backend *, const CompressedSelect *);
void cpu_compressed_attention(Backend *, const CompressedAttention *);
void cpu_join_groups(Backend *, const GroupJoin *);
void cpu_hyper_connect(Backend *, const HyperConnection *);
