/* The attention of DeepSeek-V4: deepseek_v4_attention.c. */
#pragma once
#include "family/family.h"

typedef struct DeepseekV4 {
    Dims d;
    int q_rank, o_rank, groups, window, sparse_rate, heavy_rate, hash_layers;
    IndexSelect index;
    const Json *types, *ratios, *mlp_types; /* for each layer; NULL: none */
    const Rope *main_rope, *compress_rope;
    bool mlx;
    Moe moe;
} DeepseekV4;

/* A layer's attention: to the latest keys alone, to compressed ones that an indexer chooses, or to all of those. */
typedef enum Kind { SLIDING, SPARSE, HEAVY } Kind;

/* What the config says of it. */
void deepseek_v4_attention_fields(Loader *ld, const Spec *spec, DeepseekV4 *s);
Kind deepseek_v4_kind(Loader *ld, const DeepseekV4 *s, int i);
/* The attention of the layer in scope; its state entry is what deepseek_v4_compressors() returns. */
CompressedAttentionComponent deepseek_v4_attention(Loader *ld, const DeepseekV4 *s, Kind kind);
/* Adds what goes before it. Returns the cache entry of the compressed keys; −1: there are none. */
int deepseek_v4_compressors(Loader *ld, Spec *spec, Layer *layer, const DeepseekV4 *s,
    const CompressedAttentionComponent *attention, Kind kind);
