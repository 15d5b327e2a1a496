/* The attention of GLM-5.3-Flash, and its fields: glm5_next_attention.c. */
#pragma once
#include "family/mla.h"
#include "family/recurrent.h"

typedef struct Glm5 {
    MlaFamily mla;
    DeltaAttention delta;
    const Json *types;
    int index_top_k, pool; /* index_top_k: blocks of `pool` positions that are chosen; 0: all are read */
    int index_heads, index_width;
} Glm5;

Glm5 glm5_next_fields(Loader *ld, Spec *spec);
/* The latent attention of the layer in scope. */
MlaComponent glm5_next_latent(Loader *ld, const Glm5 *s);
/* Adds the indexer of the layer in scope, behind the compressor of its keys. */
void glm5_next_indexer(Loader *ld, Spec *spec, Layer *layer, const Glm5 *s, const MlaComponent *mla);
