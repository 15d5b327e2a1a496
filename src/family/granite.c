/* Granite: a llama whose embeddings, scores, residuals and logits have factors.
 * Reference: mlx_lm/models/granite.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
    };
    const float attention = load_positive_or(ld, "attention_multiplier", 1),
                residual = load_positive_or(ld, "residual_multiplier", 1);
    spec->embedding_scale = load_positive_or(ld, "embedding_multiplier", 1);
    spec->logit_scale = 1 / load_positive_or(ld, "logits_scaling", 1);
    dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) {
        Component *components = spec->layers[i].components;
        components[0].attention.op.scale = attention;
        components[0].residual_scale = components[1].residual_scale = residual;
    }
}

const Family granite_family = {.load = load, .gguf = &granite_gguf};
