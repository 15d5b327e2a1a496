/* What Gemma 3n, Gemma 4 and its assistants share. */
#pragma once
#include "family/family.h"

/* The last layers have no keys and values of their own: they attend to those of the last earlier layer of their kind.
 */
typedef struct GemmaSharing {
    int from;       /* the first such layer */
    int entries[2]; /* the last cache entry of full layers, of those with a window; −1: none yet */
} GemmaSharing;
/* num_kv_shared_layers */
GemmaSharing gemma_sharing(Loader *ld, const Spec *spec, int absent);

/* Attention of layer i, with its norms before and behind; d: sizes of this layer's heads. Scores are not scaled, q, k
 * and v are normalised. k_is_v: values are the keys as projected. */
Component *gemma_attention(Loader *ld, Spec *spec, Layer *layer, int i, const Dims *d, const Rope *rope, int window,
    bool k_is_v, GemmaSharing *sharing);

/* Experts of a layer, beside a feed-forward network. */
typedef struct GemmaExperts {
    int count; /* 0: none */
    int top_k, intermediate_size;
} GemmaExperts;
/* enable_moe_block, num_experts, top_k_experts, moe_intermediate_size */
GemmaExperts gemma_experts(Loader *ld);
/* Their weights and norms; dense: the network beside them. */
MoeComponent gemma_moe(Loader *ld, const Dims *d, const GemmaExperts *experts, GluComponent dense);

/* The config of Gemma 4. */
typedef struct Gemma4 {
    Dims d;
    int full_head_dim, full_kv_heads, input_width;
    GemmaExperts experts;
    bool k_is_v, double_wide;
    bool spans; /* tokens of an image see each other, in layers with a window alone */
    Windows windows;
    const Rope *full_rope, *sliding_rope;
    GemmaSharing sharing; /* set by the caller, before the layers */
} Gemma4;
Gemma4 gemma4_config(Loader *ld, Spec *spec);
void gemma4_layer(Loader *ld, Spec *spec, Gemma4 *s, int i);
