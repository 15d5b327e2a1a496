/* Granite: a llama whose embeddings, scores, residuals and logits have factors.
 * Reference: mlx_lm/models/granite.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .tied = true};
    const float attention = load_positive(ld, "attention_multiplier"),
                residual = load_positive(ld, "residual_multiplier");
    spec->embedding_scale = load_positive(ld, "embedding_multiplier");
    spec->logit_scale = 1 / load_positive(ld, "logits_scaling");
    dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) {
        Component *components = spec->layers[i].components;
        components[0].attention.op.scale = attention;
        components[0].residual_scale = components[1].residual_scale = residual;
    }
}

const Family granite_family = {.load = load, .gguf = &granite_gguf};
