/* Granite: a llama whose embeddings, scores, residuals and logits have factors. HyperCLOVA X: the same with sandwich
 * norms, and its factor multiplies the logits. References: mlx_lm/models/granite.py, transformers/models/hyperclovax.
 */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load_row(Loader *ld, Spec *spec, const Dense *row) {
    const float attention = load_positive_or(ld, "attention_multiplier", 1),
                residual = load_positive_or(ld, "residual_multiplier", 1);
    const bool scaled = load_has_field(ld, "attention_multiplier") || !row->norms; /* otherwise 1 / √head_dim */
    spec->embedding_scale = load_positive_or(ld, "embedding_multiplier", 1);
    dense_load(ld, spec, row);
    for (int i = 0; i < spec->layer_count; i++) {
        Component *components = spec->layers[i].components;
        if (scaled) components[0].attention.op.scale = attention;
        components[0].residual_scale = components[1].residual_scale = residual;
    }
}

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
    };
    spec->logit_scale = 1 / load_positive_or(ld, "logits_scaling", 1);
    load_row(ld, spec, &row);
}

static void load_hyperclovax(Loader *ld, Spec *spec) {
    const bool outer = load_bool_or(ld, "use_post_norm", true);
    const NormNames norms = {load_rms, "input_layernorm", outer ? "post_norm1" : NULL, "post_attention_layernorm",
        outer ? "post_norm2" : NULL};
    const Dense row = {.eps = 1e-6,
        .norms = &norms,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false}};
    spec->logit_scale = load_positive_or(ld, "logits_scaling", 1);
    load_row(ld, spec, &row);
}

const Family hyperclovax_family = {.load = load_hyperclovax};
const Family granite_family = {.load = load, .gguf = &granite_gguf};
