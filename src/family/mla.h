/* What families with multi-head latent attention in DeepSeek's form share. */
#pragma once
#include "family/family.h"

enum { INDEX_WIDTH_MAX = 1024 }; /* the largest head of an indexer whose elements change places */

typedef struct MlaFamily {
    Dims d;
    HeadSizes sizes;
    int q_rank, rope_dim, dense, every; /* q_rank 0: queries come from the input */
    bool bias;
    float residual_scale;          /* 0: 1 */
    bool moe_norm;                 /* post_mlp_layernorm behind MoE blocks; dense layers have it and do not use it */
    float scale, latent_eps;       /* latent_eps: of the norms of the latent and of low-rank queries */
    float q_factor, latent_factor; /* multiply those norms; 0: 1 */
    const Rope *rope;
    bool joined; /* MlaComponent.joined: the family loads q and gate itself, and the norm before the indexer */
    bool mixed;  /* there are experts at all */
    /* The sparse indexer; top_k 0: attention reads all keys. */
    IndexSelect index;
    bool index_rope_last;    /* the indexer rotates the last elements of its heads, not the first */
    float index_eps;         /* epsilon of the norm of its keys; 0: 1e-6 */
    const Json *index_types; /* [layers] "full" or "shared": reads what an earlier layer has chosen; NULL: all full */
    Moe moe;
} MlaFamily;

/* value_width: v_head_dim where the file has none. Sizes, rotary embedding, experts without their choice, the model's
 * ends; allocates the layers. */
MlaFamily mla_load_fields(Loader *ld, Spec *spec, int value_width);
/* layer_types of a model whose layers all have an indexer. */
void mla_expect_indexed(Loader *ld, const Spec *spec);
/* The sparse indexer's fields; heads: where the file has no number. It is left out where a context has no more tokens
 * than it chooses. */
void mla_load_index(Loader *ld, const Spec *spec, MlaFamily *s, int heads, bool interleaved);
/* The same of a model without rotary embedding, qk_rope_head_dim being 0. */
MlaFamily mla_load_unrotated(Loader *ld, Spec *spec, int value_width);
/* The attention of the layer in scope. */
MlaComponent mla_load_attention(Loader *ld, const MlaFamily *s);
/* The attention of layer i, which is in scope, behind its indexer, which is added if it has one. */
Component mla_load_indexed(Loader *ld, Spec *spec, Layer *layer, const MlaFamily *s, int i);
/* All layers. */
void mla_load_blocks(Loader *ld, Spec *spec, const MlaFamily *s);
