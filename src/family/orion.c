/* Orion 14B: a llama with layer norms. References: modeling_orion.py of OrionStarAI/Orion-14B-Base; as
 * transformers/models/stablelm with whole heads rotated. */
#include "family/dense.h"

static void load(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    static const Dense row = {.eps = 1e-5, .norms = &norms};
    load_expect_bool(ld, "attention_bias", false);
    load_ignore(ld, "pretraining_tp", NULL);
    dense_load(ld, spec, &row);
}

const Family orion_family = {.load = load};
